"""Change batches on their way through rows: what the daemon's feed gives, also paired.

The readers are called as Spark does; no Spark is started here.
"""

from __future__ import annotations

import pickle
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest
from pyspark.sql.streaming.datasource import ReadMaxFiles

from tailer.changes import ChangeBatch, Offset
from tailer.feed.options import FeedOptions
from tailer.feed.progress import Observer
from tailer.feed.read import read_items
from tailer.spark.envelope import BatchSource, feed_option, items
from tests.feed.test_pair import POST, PRE, cdf_table, image
from tests.golden.test_golden import GoldenCase, golden
from tests.support.feeds import table_log

__all__ = ["golden"]  # a fixture


FIRST = Offset(0)


def by_spark(table: Path, *, paired: bool, files: int, start: Offset = FIRST) -> list[ChangeBatch]:
    """The batches that the pipeline's driver puts together, in queries' batches of few files."""
    feed = feed_option(FeedOptions(key=("id",), paired=paired))
    options = {"path": str(table), "startingOffset": str(start), "feed": feed}
    source = BatchSource(options)
    reader = source.streamReader(source.schema())
    found: list[ChangeBatch] = []
    at = reader.initialOffset()
    while (end := reader.latestOffset(at, ReadMaxFiles(files))) != at:
        rows = []
        for partition in reader.partitions(at, end):
            travelled = pickle.loads(pickle.dumps(partition))  # noqa: S301  # our own
            for batch in reader.read(travelled):
                rows += [(row["head"], row["rows"]) for row in batch.to_pylist()]
        found += [item for item in items(rows) if isinstance(item, ChangeBatch)]
        at = end
    reader.stop()
    return found


def by_feed(table: Path, *, paired: bool, start: Offset = FIRST) -> list[ChangeBatch]:
    """The batches that the daemon's feed reads."""

    async def read() -> list[ChangeBatch]:
        log = table_log(table)
        options = FeedOptions(key=("id",), paired=paired)
        last = await log.latest_version()
        feed = read_items(log, start, last, options, Observer())
        async with aclosing(feed) as found:
            return [item async for item in found if isinstance(item, ChangeBatch)]

    return anyio.run(read)


def events(batches: list[ChangeBatch]) -> list[str]:
    """All events with their ids and preimages, in order; as text, in which NaN equals NaN."""
    found: list[Any] = []
    for batch in batches:
        before = [None] * batch.num_rows if batch.before is None else batch.before.to_pylist()
        rows, ids = batch.rows.to_pylist(), batch.event_ids().to_pylist()
        found += zip(rows, ids, before, strict=True)
    return [repr(event) for event in found]


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("name", ["cdf_dv", "plain", "types", "variant", "rowtracking"])
def test_events_come_in_the_feeds_order_with_its_ids(
    name: str,
    paired: bool,  # noqa: FBT001  # a parameter of the test
    golden: GoldenCase,
) -> None:
    table = golden(name).table
    wanted = by_feed(table, paired=paired)
    found = by_spark(table, paired=paired, files=1)
    assert events(found) == events(wanted)
    assert str(found[-1].next_offset) == str(wanted[-1].next_offset)
    offsets = [batch.offset for batch in found] + [found[-1].next_offset]
    assert offsets == sorted(offsets, key=lambda offset: offset.position)


@pytest.mark.parametrize("files", [1, 10_000])
def test_batches_have_the_feeds_offsets(files: int, golden: GoldenCase) -> None:
    table = golden("cdf_dv").table
    wanted, found = by_feed(table, paired=False), by_spark(table, paired=False, files=files)
    assert [str(b.next_offset) for b in found] == [str(b.next_offset) for b in wanted]


def test_a_feed_from_a_snapshot_goes_on_behind_it(golden: GoldenCase) -> None:
    table = golden("plain_dv").table
    wanted = by_feed(table, paired=False, start=Offset(3, snapshot=True))
    found = by_spark(table, paired=False, files=1, start=Offset(3, snapshot=True))
    assert events(found) == events(wanted)
    assert [str(b.next_offset) for b in found] == [str(b.next_offset) for b in wanted]


def test_an_update_of_the_key_has_both_its_images(tmp_path: Path) -> None:
    table = cdf_table(tmp_path)
    table.commit(table.cdc([image(PRE, 1, "a"), image(POST, 2, "b")]))
    both = by_feed(table.folder, paired=True), by_spark(table.folder, paired=True, files=1)
    partners = [[b.partner.to_pylist() for b in one if b.partner is not None] for one in both]
    assert partners[0] == partners[1] == [[{"id": 2, "v": "b"}, {"id": 1, "v": "a"}]]
