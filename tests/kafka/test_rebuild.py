"""A table's whole history through a feed to Kafka: rebuilt from the topic, it is the table."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailer.changes import Offset
from tailer.decode.options import DecodeOptions
from tailer.errors import TransientError
from tailer.feed.options import FeedOptions
from tailer.feed.progress import FeedProgress
from tailer.feed.run import Feed, run_feed
from tailer.log.table import TableLog
from tailer.offsets.memory import MemoryOffsetStore
from tests.kafka.broker import Broker
from tests.kafka.sinks import fresh, made
from tests.kafka.topics import Event, create_topic, read_topic
from tests.support.feeds import table_log
from tests.tables.writer import TableWriter

pytestmark = pytest.mark.anyio
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
REMOVED = ("delete", "update_preimage")


def write_history(folder: Path) -> TableWriter:
    """Rows that are equal, updates, deletes, and a column that gets another name."""
    writer = TableWriter(folder, SCHEMA, mapping="name", cdf=True)
    writer.append([{"id": i % 5, "name": f"n{i % 3}"} for i in range(30)], files=2)
    writer.delete(lambda row: row["id"] == 1)
    writer.update(lambda row: row["name"] == "n2", lambda row: {**row, "name": "other"})
    writer.rename_column("label", "name")
    writer.append([{"id": i, "label": "new"} for i in (1, 1, 7)])
    writer.update(lambda row: row["id"] == 7, lambda row: {**row, "label": "seven"})
    writer.optimise()
    writer.delete(lambda row: row["label"] == "n0")
    return writer


def feed_of(writer: TableWriter, sink: Any, name: str) -> Feed:
    async def start(_: TableLog) -> Offset:
        return Offset(0)

    return Feed(
        name=name,
        log=table_log(writer.builder),
        sink=sink,
        offsets=MemoryOffsetStore(),
        start=start,
        progress=FeedProgress(name, time.time),
        jitter=lambda: 0.0,
        options=FeedOptions(decode=DecodeOptions(batch_rows_max=6)),  # or all is one run
        last=writer.present.version,
    )


def row_of(document: dict[str, Any]) -> tuple[int, str]:
    """A row's values; the column had another name before."""
    return document["id"], document["label"] if "label" in document else document["name"]


def rebuilt(events: list[Event], output: str) -> Counter[tuple[int, str]]:
    found: Counter[tuple[int, str]] = Counter()
    for event in events:
        if output == "debezium":
            before, after = event.row["before"], event.row["after"]
            found.update([row_of(after)] if after else [])
            found.subtract([row_of(before)] if before else [])
        elif event.row["_change_type"] in REMOVED:
            found.subtract([row_of(event.row)])
        else:
            found.update([row_of(event.row)])
    return Counter({row: n for row, n in found.items() if n})


@pytest.mark.parametrize("key", [["id"], []])
@pytest.mark.parametrize("output", ["rows", "debezium"])
async def test_the_table_rebuilt_from_the_topic_is_the_table(
    kafka: Broker, tmp_path: Path, key: list[str], output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, topic = write_history(tmp_path / "table"), fresh()
    options = {"key": key, "format": output}
    create_topic(kafka.bootstrap, topic, 3)
    monkeypatch.setattr("sinks.kafka.feed_transactions._ROWS_MAX", 4)
    sink = made(kafka.bootstrap, topic, **options)
    write, written = sink.write, 0

    async def failing(batch: Any) -> None:
        """Some batches are written, and the feed is told that they were not."""
        nonlocal written
        await write(batch)
        written += batch.num_rows > 0
        if written in (2, 5, 7) and batch.num_rows:
            raise TransientError("the answer was lost")

    sink.write = failing  # type: ignore[method-assign]
    await run_feed(feed_of(writer, sink, topic))
    assert written > 7
    events = read_topic(kafka.bootstrap, topic)
    table = Counter((row["id"], row["label"]) for row in writer.present.rows())
    assert len({event.id for event in events}) == len(events)
    there = [(e.partition, e.offset, e.id, e.headers["_change_type"], e.row) for e in events]
    assert rebuilt(events, output) == table, there
