"""Upserts on a broker: a topic's last record of each key is the table, after failures too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from tailer.errors import TransientError
from tailer.feed.run import run_feed
from tests.kafka.broker import Broker
from tests.kafka.sinks import fresh, made
from tests.kafka.test_rebuild import feed_of
from tests.kafka.topics import create_topic, read_topic
from tests.support.protobuf import read_message
from tests.support.registry import Registry
from tests.tables.writer import TableWriter

pytestmark = pytest.mark.anyio
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def write_history(folder: Path) -> TableWriter:
    """Inserts, updates, deletes, keys that change, keys that change rows, a rewrite."""
    writer = TableWriter(folder, SCHEMA, cdf=True)
    writer.append([{"id": i, "name": f"n{i % 3}"} for i in range(30)], files=2)
    writer.delete(lambda row: row["id"] % 7 == 1)
    writer.update(lambda row: row["name"] == "n2", lambda row: {**row, "name": "other"})
    writer.update(lambda row: row["id"] < 12, lambda row: {**row, "id": row["id"] + 100})
    writer.update(lambda row: row["id"] > 100, lambda row: {**row, "id": row["id"] + 1})
    writer.append([{"id": i, "name": "again"} for i in (1, 2)])
    writer.optimise()
    writer.delete(lambda row: row["name"] == "n0")
    return writer


@pytest.mark.parametrize("format_", ["upsert", "avro", "json_schema", "protobuf"])
async def test_the_last_record_of_each_key_is_the_table(
    kafka: Broker, registry: Registry, tmp_path: Path, format_: str
) -> None:
    writer, topic = write_history(tmp_path / "table"), fresh()
    create_topic(kafka.bootstrap, topic, 3)
    more: dict[str, Any] = {"registry": {"url": registry.url}, "envelope": "upsert"}
    options = {} if format_ == "upsert" else more
    sink = made(kafka.bootstrap, topic, key=["id"], format=format_, **options)
    write, written = sink.write, 0

    async def failing(batch: Any) -> None:
        nonlocal written
        await write(batch)
        written += batch.num_rows > 0
        if written in (2, 5, 7) and batch.num_rows:
            raise TransientError("the answer was lost")

    sink.write = failing  # type: ignore[method-assign]
    await run_feed(feed_of(writer, sink, topic))
    events = read_topic(kafka.bootstrap, topic)
    assert len({event.id for event in events}) == len(events)
    kept = {event.key: event for event in events}
    found = [event for event in kept.values() if event.value is not None]

    def row(value: bytes | None, schema: bytes) -> Any:
        assert value is not None
        if format_ in ("upsert", "json_schema"):
            return json.loads(value[5:] if format_ == "json_schema" else value)
        _, answer = registry.call("GET", f"/schemas/ids/{int(schema)}")
        text = json.loads(answer)["schema"]
        if format_ == "protobuf":
            return read_message(text, value[6:])
        parsed = fastavro.parse_schema(json.loads(text))
        return fastavro.schemaless_reader(pa.BufferReader(value[5:]), parsed, None)

    rows = [row(event.value, event.headers.get("_schema_id", b"")) for event in found]
    assert sorted((r["id"], r["name"]) for r in rows) == sorted(
        (r["id"], r["name"]) for r in writer.present.rows()
    )
    assert len(kept) > len(found)  # some keys have no row any more
