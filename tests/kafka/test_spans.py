"""A run of versions in Kafka: one transaction, and each record with its own commit's time."""

from __future__ import annotations

import pytest

from sinks.kafka.client import producer_internals
from sinks.kafka.progress import TopicProgress
from tailer.changes import ChangeBatch
from tailer.errors import RowsRefused
from tailer.testing.batches import change_span
from tests.kafka.broker import Broker
from tests.kafka.sinks import SCHEMA, fresh, opened
from tests.kafka.topics import create_topic, events, read_topic

pytestmark = pytest.mark.anyio


def run_of(*versions: list[list[int]], name: str = "x") -> ChangeBatch:
    """Versions from 1 on: the ids of each one's files."""
    rows = [[[{"id": i, "name": name} for i in ids] for ids in files] for files in versions]
    return change_span(SCHEMA, rows)


def progress_of(kafka: Broker, topic: str) -> list[tuple[int, int] | None]:
    """Version and index of each progress record."""
    found = [
        TopicProgress.from_bytes(event.value or b"")
        for event in read_topic(kafka.bootstrap, f"{topic}-progress")
    ]
    return [None if p.offset is None else p.offset.position for p in found]


@pytest.mark.parametrize("way", ["by batches", "by records"])
@pytest.mark.parametrize("partitions", [1, 3])
async def test_a_run_is_one_transaction_and_keeps_each_commits_time(
    kafka: Broker, way: str, partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "by records":
        monkeypatch.setattr(producer_internals, "has_known_internals", lambda _: False)
    topic = create_topic(kafka.bootstrap, fresh(), partitions)
    run = run_of([[1, 2], [3]], [[4]], [[5], [6, 7]])
    async with opened(kafka.bootstrap, topic, key=["id"]) as (sink, _):
        await sink.write(run)
    assert progress_of(kafka, topic) == [None, (4, 0)]
    found = {event.row["id"]: event for event in read_topic(kafka.bootstrap, topic)}
    start = run.span[0].file.timestamp_ms
    assert {i: event.timestamp_ms - start for i, event in found.items()} == {
        1: 0, 2: 0, 3: 0, 4: 60_000, 5: 120_000, 6: 120_000, 7: 120_000,
    }  # fmt: skip
    assert [found[i].headers["_commit_version"] for i in (3, 4, 5)] == [b"1", b"2", b"3"]


async def test_a_cut_run_goes_on_within_its_unfinished_version(kafka: Broker) -> None:
    topic = fresh()
    run = run_of([[1, 2]], [[3], [4, 5]], [[6]])
    async with opened(kafka.bootstrap, topic) as (sink, _):
        await sink.write(run.slice(0, 4))
    async with opened(kafka.bootstrap, topic) as (sink, offset):
        assert offset is not None
        assert offset.position == (2, 2)
        await sink.write(run.slice(4, 6))
    assert progress_of(kafka, topic) == [None, (2, 2), (2, 2), (4, 0)]
    assert [row["id"] for row in events(kafka.bootstrap, topic)] == [1, 2, 3, 4, 5, 6]


async def test_a_large_run_is_several_transactions_that_end_with_a_version(
    kafka: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sinks.kafka.feed_transactions._ROWS_MAX", 4)
    topic = fresh()
    async with opened(kafka.bootstrap, topic) as (sink, _):
        await sink.write(run_of([[1, 2]], [[3]], [[4, 5]], [[6], [7, 8, 9, 10, 11]]))
    assert progress_of(kafka, topic) == [
        None, (3, 0), (4, 0), (4, 1), (4, 5), (5, 0),
    ]  # fmt: skip


async def test_a_refused_event_of_a_run_has_its_version_and_file(kafka: Broker) -> None:
    topic = create_topic(kafka.bootstrap, fresh(), max_message_bytes="5000")
    long = {"id": 3, "name": "y" * 6000}
    run = change_span(SCHEMA, [[[{"id": 1, "name": "x"}]], [[{"id": 2, "name": "x"}], [long]]])
    async with opened(kafka.bootstrap, topic) as (sink, _):
        with pytest.raises(RowsRefused, match=r"version 2 is too large.*file part-1-1.parquet"):
            await sink.write(run)
