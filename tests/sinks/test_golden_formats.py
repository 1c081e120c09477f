"""The bytes of every format, kept: what consumers have stored stays readable, and a change shows.

`python -m tests.sinks.test_golden_formats` writes the files anew; look at the difference.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sinks.formats.load import load_encoder
from sinks.formats.parts import KEY_ENCODING
from tailer.sink.encoder import Records
from tests.sinks.formats import FORMATS, MemoryRegistry, all_types

pytestmark = pytest.mark.usefixtures("way")

FOLDER = Path(__file__).parent / "golden"


def shown(data: bytes | None) -> Any:
    """Bytes as they are kept: JSON as it is, other text as text, else hexadecimal digits."""
    if data is None:
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return {"hex": data.hex()}
    return text if text.isprintable() else {"hex": data.hex()}


def listed(records: Records) -> list[dict[str, Any]]:
    found = []
    for i in range(records.num_records):
        headers = {}
        for name, value in records.whole_headers():
            one = value if isinstance(value, bytes) else value.cast(pa.binary())[i].as_py()
            headers[name] = shown(one)
        key = None if records.keys is None else shown(records.keys[i].as_py())
        found.append(
            {"key": key, "headers": headers, "value": shown(records.whole_values()[i].as_py())}
        )
    return found


def document(name: str) -> str:
    """The golden file of a format."""
    wanted, options = FORMATS[name]
    registry = MemoryRegistry()
    keyed = {"key": ["id", "string"], "tombstones": True}
    common = {"name": "feed", "topic": "orders", "table": "orders"}
    encoder = load_encoder(wanted, {**common, **keyed, **options}, registry)
    batches = [all_types(paired=encoder.paired), all_types(snapshot=True)]
    records = [record for batch in batches for record in listed(encoder.encode(batch))]
    schemas = [{"subject": subject, "schema": schema} for subject, schema in registry.schemas]
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in [*schemas, *records])


@pytest.mark.parametrize("name", FORMATS)
def test_the_bytes_are_those_that_were_kept(name: str) -> None:
    assert document(name) == (FOLDER / f"{name}.jsonl").read_text()


def test_other_bytes_of_keys_have_another_number() -> None:
    """A feed whose key had other bytes than before would keep the old records in its topic: it
    stops, if the number says so."""
    keys = [
        json.loads(line).get("key")
        for path in sorted(FOLDER.glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    digest = blake2b(json.dumps(keys).encode(), digest_size=8).hexdigest()
    assert (KEY_ENCODING, digest) == (1, "13cefbbfe861f243"), (
        "raise KEY_ENCODING, and note the digest here"
    )


if __name__ == "__main__":
    for each in FORMATS:
        (FOLDER / f"{each}.jsonl").write_text(document(each))
