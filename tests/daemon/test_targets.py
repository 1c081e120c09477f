"""A sink whose target is lost, or whose options name another one: `check`, `run`, remedies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailer.errors import ConfigError
from tailer.sink import Sink, make_sink
from tailer.testing.table import TableBuilder
from tests.support.programs import run_tailer, started
from tests.support.waiting import eventually

#: A sink's options, and others with which its records would be somewhere else, or another ones.
CHANGED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"type": "jsonl", "path": "a.jsonl"}, {"path": "b.jsonl"}),
    ({"type": "jsonl", "path": "a.jsonl"}, {"format": "debezium"}),
    ({"type": "jsonl", "path": "a.jsonl"}, {"type": "files", "path": "files"}),
    ({"type": "files", "path": "files"}, {"format": "jsonl"}),
    ({"type": "redis", "url": "redis://127.0.0.1:9"}, {"stream": "another"}),
    ({"type": "nats", "servers": ["nats://127.0.0.1:9"]}, {"stream": "another"}),
    ({"type": "rabbitmq", "url": "amqp://127.0.0.1:9"}, {"queue": "another"}),
    ({"type": "sqlite", "path": "a.sqlite", "key": ["id"]}, {"mode": "log", "key": []}),
    ({"type": "sqs", "queue": "a"}, {"queue": "b"}),
    (
        {"type": "pubsub", "topic": "projects/a/topics/b", "endpoint_url": "http://127.0.0.1:9"},
        {"topic": "projects/a/topics/c"},
    ),
]


def configure(folder: Path, sink: dict[str, Any]) -> Path:
    config = folder / "tailer.toml"
    lines = [f"{name} = {json.dumps(value)}" for name, value in sink.items()]
    config.write_text(
        '[daemon]\nhttp = ""\nstate = "state"\n[feeds.orders]\ntable = "orders"\n'
        'from = "earliest"\n[feeds.orders.sink]\n' + "\n".join(lines)
    )
    return config


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    table = TableBuilder(tmp_path / "orders", pa.schema([("id", pa.int64())]), cdf=True)
    table.create()
    table.insert([{"id": 1}])
    return table


def delivered(folder: Path, config: Path, version: int) -> None:
    """Run until the feed's offset is behind this version."""
    offset = folder / "state" / "orders.offset.json"

    def there() -> bool:
        return offset.exists() and f'"version": {version + 1}' in offset.read_text()

    with started("run", str(config)) as program:
        eventually(there, why=lambda: program)
        assert program.stop() == 0


def test_another_file_is_gone_on_with_by_order_alone(tmp_path: Path, table: TableBuilder) -> None:
    sink = {"type": "jsonl", "path": "a.jsonl"}
    delivered(tmp_path, configure(tmp_path, sink), 1)
    table.insert([{"id": 2}])
    config = configure(tmp_path, {**sink, "path": "b.jsonl"})
    for command in ("check", "run"):
        done = run_tailer(command, str(config))
        assert done.returncode == 2, done
        assert 'the sink\'s options change path from "a.jsonl" to "b.jsonl"' in done.stderr
        assert "`tailer offsets set --from 2 --index 0`" in done.stderr
    assert not (tmp_path / "b.jsonl").exists()
    done = run_tailer("offsets", "set", str(config), "orders", "--from", "2")
    assert done.returncode == 0, done.stderr
    delivered(tmp_path, config, 2)
    assert json.loads((tmp_path / "b.jsonl").read_text())["id"] == 2


def test_a_lost_target_is_seen_by_check_and_begun_again_by_order(
    tmp_path: Path, table: TableBuilder
) -> None:
    sink = {"type": "delta", "path": "copy", "mode": "log"}
    config = configure(tmp_path, sink)
    delivered(tmp_path, config, 1)
    table.insert([{"id": 2}])
    (tmp_path / "copy").rename(tmp_path / "moved")
    for command in ("check", "run"):
        done = run_tailer(command, str(config))
        assert done.returncode in (1, 2), done
        assert "what the feed has written is not there" in done.stdout + done.stderr
        assert not (tmp_path / "copy").exists()
    delivered(tmp_path, configure(tmp_path, {**sink, "path": "moved"}), 2)  # where it is now
    configure(tmp_path, sink)
    assert run_tailer("offsets", "reset", str(config), "orders").returncode == 0
    delivered(tmp_path, config, 2)


@pytest.mark.parametrize(("sink", "changes"), CHANGED, ids=str)
def test_every_change_of_records_or_their_place_is_refused(
    tmp_path: Path, sink: dict[str, Any], changes: dict[str, Any]
) -> None:
    def made(options: dict[str, Any]) -> Sink:
        named = {name: value for name, value in options.items() if name != "type"}
        return make_sink(options["type"], named, tmp_path)

    form = json.loads(json.dumps(made(sink).check_record_form("orders", None, None)))
    assert made(sink).check_record_form("orders", form, None) == form
    changed = {**sink, **changes} if "type" not in changes else changes
    said = r"the sink's options change (path|format|type|stream|queue|topic|mode) "
    with pytest.raises(ConfigError, match=said):
        made(changed).check_record_form("orders", form, None)
