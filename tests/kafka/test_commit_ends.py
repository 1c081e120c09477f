"""Every version that a topic has events of begins once and ends once, with their number."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sinks.kafka.progress import Progress, _checksum, _progress_json
from sinks.kafka.sink import KafkaSink
from tailer.changes import CHANGE_TYPES, Offset
from tailer.compare.engine import DiffOptions
from tailer.decode.rows import DecodeOptions
from tailer.errors import TransientError
from tailer.feed.options import FeedOptions, RetryOptions
from tailer.feed.orders import Orders, ResnapshotRequest
from tailer.feed.policy import Policies
from tailer.feed.progress import FeedProgress
from tailer.feed.run import Feed, run_feed
from tailer.feed.selection import Selection
from tailer.feed.where import parse_where
from tailer.offsets.memory import MemoryOffsetStore
from tailer.testing.batches import empty_batch, notice
from tailer.testing.faulty import FaultySink, Script
from tailer.testing.table import TableBuilder
from tests.kafka.broker import Broker
from tests.kafka.sinks import SCHEMA, batch, fresh, made, opened
from tests.kafka.topics import read_topic
from tests.support.feeds import table_log

pytestmark = pytest.mark.anyio
PRE, POST = "update_preimage", "update_postimage"


def markers(kafka: Broker, topic: str) -> list[tuple[str, str, int | None]]:
    found = [event.row for event in read_topic(kafka.bootstrap, topic)]
    return [(m["status"], m["id"].partition(":")[2], m["event_count"]) for m in found]


def image(rng: random.Random, kind: str) -> dict[str, Any]:
    return {"id": rng.randrange(4), "name": rng.choice("ab"), "_change_type": kind}


def random_version(table: TableBuilder, rng: random.Random) -> None:
    """Adds alone, cdc files of any images in any order, a notice alone, or nothing at all; in one
    of two partitions, of which a filter may leave out one."""
    what = rng.choice(["insert", "images", "pairs", "pairs", "new column", "nothing"])
    partition = {"p": rng.choice("xy")}
    if what == "insert":
        rows = [{"id": rng.randrange(4), "name": "a"} for _ in range(rng.randint(1, 5))]
        table.insert(rows, partition=partition)
    elif what == "images":
        kinds = rng.choices([*CHANGE_TYPES, PRE], k=rng.randint(1, 6))
        table.commit(table.cdc([image(rng, kind) for kind in kinds], partition=partition))
    elif what == "pairs":  # all postimages first: the last rows are images of those before
        pairs = range(rng.randint(1, 4))
        rows = [{"id": i, "name": "b", "_change_type": POST} for i in pairs]
        rows += [{"id": i, "name": "a", "_change_type": PRE} for i in pairs]
        table.commit(table.cdc(rows, partition=partition))
    elif what == "new column":
        table.schema = table.schema.append(pa.field(f"c{table.version}", pa.int64()))
        table.commit(table.metadata())
    else:
        table.commit()


def random_table(folder: Path, rng: random.Random) -> TableBuilder:
    schema = SCHEMA.append(pa.field("p", pa.string()))
    table = TableBuilder(folder / "orders", schema, cdf=True, partition_by=["p"])
    table.create()
    for _ in range(rng.randint(6, 12)):
        random_version(table, rng)
    return table


def feed_of(table: TableBuilder, sink: KafkaSink, rng: random.Random) -> Feed:
    """A feed of small batches whose writes fail now and then, before or behind the sink."""
    failures = [TransientError("again") if rng.random() < 0.25 else None for _ in range(12)]
    faulty = FaultySink(sink, Script({"write": failures}))
    offsets = MemoryOffsetStore()
    start = Offset(0, snapshot=True, table_id=table.table_id)

    async def first(*_: object) -> Offset:
        return start

    where = rng.choice([None, None, "p = 'x'"])
    return Feed(
        name="orders",
        log=table_log(table),
        sink=faulty,
        offsets=offsets,
        start=first,
        progress=FeedProgress("orders", lambda: 0.0),
        jitter=lambda: 0.0,
        options=FeedOptions(
            decode=DecodeOptions(batch_rows_max=rng.randint(1, 4)),
            diff=DiffOptions(memory_bytes_max=rng.choice([1 << 24, 1 << 26])),
            retry=RetryOptions(pause_min_s=0.01),
            selection=Selection(where=parse_where(where) if where else None),
            policies=Policies(on_schema_change="continue"),
        ),
        last=table.version,
        orders=Orders(resnapshots=[ResnapshotRequest(None)] * rng.randrange(2)),
    )


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["debezium", "rows"])
async def test_every_version_of_any_table_ends(kafka: Broker, tmp_path: Path, kind: str) -> None:
    rng = random.Random(random.random())  # the run's own seed repeats it
    for number in range(4):
        folder = tmp_path / str(number)
        table, topic = random_table(folder, rng), fresh()
        options: dict[str, Any] = {
            "format": kind,
            "key": rng.choice([[], ["id"]]),
            "transaction_topic": f"{topic}-markers",
            "transaction_rows": rng.choice([2, 100]),
            "partitions": 1,
        }
        sink = made(kafka.bootstrap, topic, **options)
        await run_feed(feed_of(table, sink, rng))
        written = Counter(
            event.headers["_commit_version"].decode()
            + (":snapshot" if "_snapshot" in event.headers else "")
            for event in read_topic(kafka.bootstrap, topic)
        )
        found = markers(kafka, f"{topic}-markers")
        statuses = [(status, name) for status, name, _ in found]
        assert statuses[0::2] == [("BEGIN", name) for _, name in statuses[1::2]]
        assert statuses[1::2] == [("END", name) for _, name in statuses[0::2]]
        ended: Counter[str] = Counter()
        for status, name, events in found:
            if status == "END":
                ended[name] += events or 0
        assert ended == written


async def test_a_last_batch_without_rows_ends_its_version(kafka: Broker) -> None:
    topic = fresh()
    options: dict[str, Any] = {"transaction_topic": f"{topic}-markers"}
    async with opened(kafka.bootstrap, topic, **options) as (sink, _):
        await sink.write(batch(7, [1, 2], last=False))
        await sink.write(empty_batch(SCHEMA, version=7))
        await sink.write(empty_batch(SCHEMA, version=8))
        await sink.write(batch(9, [3], last=False))
    async with opened(kafka.bootstrap, topic, **options) as (sink, offset):
        assert offset is not None
        assert (offset.version, offset.index) == (9, 1)
        # The rest of the version is skipped, or lost.
        await sink.announce(notice("skipped_version", offset, versions=1))
        await sink.write(empty_batch(SCHEMA, version=10))
    assert markers(kafka, f"{topic}-markers") == [
        ("BEGIN", "7", None), ("END", "7", 2), ("BEGIN", "9", None), ("END", "9", 1),
    ]  # fmt: skip


async def test_a_version_that_is_left_by_an_order_ends_too(kafka: Broker) -> None:
    topic = fresh()
    options: dict[str, Any] = {"transaction_topic": f"{topic}-markers"}
    async with opened(kafka.bootstrap, topic, **options) as (sink, _):
        await sink.write(batch(7, [1, 2], last=False))
    await made(kafka.bootstrap, topic, **options).set_offset("orders", Offset(3))
    async with opened(kafka.bootstrap, topic, **options) as (sink, _):
        await sink.write(batch(3, [1]))
    assert markers(kafka, f"{topic}-markers") == [
        ("BEGIN", "7", None), ("END", "7", 2), ("BEGIN", "3", None), ("END", "3", 1),
    ]  # fmt: skip


def test_progress_of_an_earlier_release_is_in_mid_version_too() -> None:
    table = batch(7, []).offset.table_id
    earlier = Progress("orders", 3, "me", Offset(7, 2, table_id=table), topics={"t": "an-id"})
    document = json.loads(earlier.to_bytes())
    del document["checksum"], document["begun"]
    document["events"] = 2
    found = Progress.from_bytes(_progress_json({**document, "checksum": _checksum(document)}))
    assert found.begun is not None
    assert (found.begun.id, found.events, found.begun.topic) == (f"{table}:7", 2, "t")
    assert Progress.from_bytes(found.to_bytes()) == found
