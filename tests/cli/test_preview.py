"""`tailer preview`: what would be sent, and that nothing is."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from sinks.formats.load import load_encoder
from sinks.formats.registry import RegistryClient
from tailer.cli.main import main
from tailer.testing.batches import change_batch
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
@pytest.mark.parametrize("format_", ["avro", "json_schema", "protobuf"])
def test_records_with_a_schema_are_shown_and_nothing_is_registered(
    config: Path, capsys: pytest.CaptureFixture[str], registry: Registry, format_: str
) -> None:
    topic = f"preview-{format_}-{uuid4().hex}"
    more = f'format = "{format_}"\nregistry = {{ url = "{registry.url}" }}\n'
    config.write_text(config.read_text().replace("by.{country|none}", topic) + more)
    _, before = registry.call("GET", "/subjects")
    assert preview(config, capsys, "0")
    assert registry.call("GET", "/subjects")[1] == before
    options = {"topic": topic, "name": "orders", "key": ["id"]}
    client = RegistryClient(registry.url)
    rows = [{"id": 0, "country": "DE", "mail": "x"}]
    batch = change_batch(SCHEMA, rows)
    records = load_encoder(format_, {**options, "table": "t"}, client).encode(batch)
    config.write_text(f'{config.read_text()}table = "t"\n')
    number = dict(records.whole_headers())["_schema_id"].decode()
    assert number != "0"
    assert preview(config, capsys, number)
    config.write_text(
        config.read_text().replace("registry = {", "registry = {auto_register=false,")
    )
    assert preview(config, capsys, number)
    config.write_text(config.read_text().replace(topic, topic + "-other"))
    assert main(["preview", str(config), "orders", "--from", "1", "--to", "1"]) != 0
    assert "register it first" in capsys.readouterr().err


def preview(config: Path, capsys: pytest.CaptureFixture[str], number: str) -> int:
    """How many records are shown, all of the schema with this id."""
    assert main(["preview", str(config), "orders", "--from", "1", "--to", "1", "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for record in found:
        assert record["headers"]["_schema_id"] == number
        key, value = (
            part.encode() if isinstance(part, str) else base64.b64decode(part["base64"])
            for part in (record["key"], record["value"])
        )
        assert key[0] == 0
        assert value[:5] == b"\0" + int(number).to_bytes(4, "big")
        assert b"[REDACTED]" in value
    return len(found)


@pytest.mark.java
@pytest.mark.needs("registry")
def test_a_registry_is_asked_once_for_all_versions(
    config: Path,
    capsys: pytest.CaptureFixture[str],
    registry: Registry,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A preview of many files asks no more than that of one."""
    asked: list[str] = []

    def count_requests(self: RegistryClient, method: str, path: str, body: Any = None) -> Any:
        asked.append(path)
        return ask_registry(self, method, path, body)

    ask_registry = RegistryClient._ask_registry
    monkeypatch.setattr(RegistryClient, "_ask_registry", count_requests)
    more = f'format = "avro"\nregistry = {{ url = "{registry.url}" }}\n'
    topic = f"preview-{uuid4().hex}"
    config.write_text(config.read_text().replace("by.{country|none}", topic) + more)
    for end in ("1", "2"):
        asked.clear()
        assert main(["preview", str(config), "orders", "--from", "1", "--to", end]) == 0
        assert asked == [f"/subjects/{topic}-{part}" for part in ("key", "value")]
    assert capsys.readouterr().out
