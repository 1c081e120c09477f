"""`tailer preview`: what would be sent, and that nothing is."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest

from tailer.cli.main import main
from tailer.testing.table import TableBuilder
from tests.support.registry import Registry

SCHEMA = pa.schema([("id", pa.int64()), ("country", pa.string()), ("mail", pa.string())])
CONFIG = """
[daemon]
state = "state"
http = ""
[feeds.orders]
table = "orders"
where = "id <> 2"
select = ["id", "country", "upper(mail) as mail"]
mask = { mail = "redact" }
[feeds.orders.sink]
"""
KAFKA = """
type = "kafka"
bootstrap_servers = "127.0.0.1:1"
topic = "by.{country|none}"
key = ["id"]
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    table = TableBuilder(tmp_path / "orders", SCHEMA)
    table.create()
    table.insert(
        [{"id": i, "country": c, "mail": f"{i}@x"} for i, c in enumerate(["DE", None, "FR"])]
    )
    table.insert([{"id": 9, "country": "DE", "mail": None}])
    path = tmp_path / "tailer.toml"
    path.write_text(CONFIG + KAFKA)
    return path


def test_each_record_is_shown_with_its_target_and_nothing_is_sent(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(config.parent.rglob("*"))
    assert main(["preview", str(config), "orders", "--from", "1", "--to", "1", "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(r["target"], r["key"], r["value"]["mail"]) for r in found] == [
        ("by.DE", {"id": 0}, "[REDACTED]"), ("by.none", {"id": 1}, "[REDACTED]"),
    ]  # fmt: skip
    assert {r["headers"]["_change_type"] for r in found} == {"insert"}
    assert main(["preview", str(config), "orders", "--from", "1", "--to", "2"]) == 0
    printed = capsys.readouterr().out
    assert printed.count('by.DE  key {"id":') == 2
    assert '"mail":null' in printed
    assert sorted(config.parent.rglob("*")) == before, "no state, no offset"


def test_a_sink_that_sends_no_records_has_its_rows_shown(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(CONFIG + 'type = "sqlite"\npath = "copy.db"\nmode = "mirror"\nkey = ["id"]\n')
    assert main(["preview", str(config), "orders", "--from", "2", "--json"]) == 0
    (record,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert record["target"] == "sqlite"
    assert record["value"]["id"] == 9
    assert not (config.parent / "copy.db").exists()


def test_what_does_not_fit_is_one_sentence(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(config.read_text().replace("by.{country|none}", "by.{countri}"))
    assert main(["preview", str(config), "orders", "--from", "1"]) == 2
    said = "the column 'countri', which the rows do not have (did you mean 'country'?)"
    assert said in capsys.readouterr().err
    assert main(["preview", str(config), "none", "--from", "1"]) == 2
    assert "no feed 'none'; it has orders" in capsys.readouterr().err


@pytest.mark.java
@pytest.mark.needs("registry")
@pytest.mark.parametrize("format_", ["avro", "protobuf"])
def test_records_of_bytes_are_shown_as_bytes(
    config: Path, capsys: pytest.CaptureFixture[str], registry: Registry, format_: str
) -> None:
    topic = f"preview-{format_}-{uuid4().hex}"
    more = f'format = "{format_}"\nregistry = {{ url = "{registry.url}" }}\n'
    config.write_text(config.read_text().replace("by.{country|none}", topic) + more)
    assert main(["preview", str(config), "orders", "--from", "1", "--to", "1", "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for record in found:
        number = int(record["headers"]["_schema_id"])
        for part in ("key", "value"):
            data = base64.b64decode(record[part]["base64"])
            assert data[0] == 0
        assert data[:5] == b"\0" + number.to_bytes(4, "big")
        assert b"[REDACTED]" in data
    assert main(["preview", str(config), "orders", "--from", "1", "--to", "1"]) == 0
    assert capsys.readouterr().out.count("base64") == 2 * len(found)
