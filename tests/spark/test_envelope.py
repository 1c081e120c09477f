"""Change batches on their way through rows: what the daemon's feed gives, also paired.

The tasks are done as Spark does them; no Spark is started here.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest

from tailer.changes import ChangeBatch, Offset
from tailer.errors import FileGone, TailerError, TransientError
from tailer.feed.options import FeedOptions
from tailer.feed.policy import FeedPaused, LostFiles
from tailer.feed.progress import Observer
from tailer.feed.read import read_items
from tailer.feed.read_context import FeedItem
from tailer.spark.options import SourceOptions
from tailer.spark.orders import Order, VersionOrder, pack_orders
from tailer.spark.pipeline.envelope import VersionReader, join_orders, unpack_items
from tailer.spark.source.driver import Driver
from tailer.spark.source.planning import Budget, Planner
from tests.feed.test_pair import POST, PRE, cdf_table, image
from tests.golden.test_golden import GoldenCase
from tests.support.feeds import table_log

FIRST = Offset(0)


def by_spark(table: Path, *, paired: bool, files: int, start: Offset = FIRST) -> list[ChangeBatch]:
    """The batches that the pipeline's driver puts together, in jobs of few files."""
    feed = FeedOptions(key=("id",), paired=paired)
    source = SourceOptions(str(table), paired=True)
    reader = VersionReader(source, feed, LostFiles())

    async def planned(planner: Planner, at: Offset) -> tuple[Offset, list[Order]]:
        end = await planner.advance(at, await planner.find_newest(), Budget(files=files), None)
        return end, [order async for _, orders in planner.plan_orders(at, end) for order in orders]

    found: list[ChangeBatch] = []
    driver, at = Driver(source), start
    while True:
        end, orders = driver.run(planned, at)
        if not orders:
            break
        tasks = [join_orders(share) for share in pack_orders(orders, 1, 2, ordered=True)]
        found += [item for item in done(reader, tasks, at) if isinstance(item, ChangeBatch)]
        at = end
    driver.close()
    return found


def done(reader: VersionReader, tasks: list[VersionOrder], at: Offset) -> Iterator[FeedItem]:
    """What the driver makes of a job's rows."""
    rows = []
    for task in tasks:
        travelled, order = pickle.loads(pickle.dumps((reader, task)))  # noqa: S301  # our own
        for batch in travelled.read_rows(order):
            rows += [(row["head"], row["rows"]) for row in batch.to_pylist()]
    return unpack_items(rows, at)


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


@pytest.mark.parametrize(
    "error",
    [
        FeedPaused("waiting", 3),
        FileGone("gone", table="t", version=3, path="p", hint="look"),
        TransientError("later", 2.5),
    ],
)
def test_an_error_travels_whole(error: TailerError) -> None:
    travelled = pickle.loads(pickle.dumps(error))  # noqa: S301  # our own
    assert (type(travelled), str(travelled), vars(travelled)) == (
        type(error), str(error), vars(error)
    )  # fmt: skip


def test_an_error_comes_behind_what_was_read_before_it(tmp_path: Path) -> None:
    table = cdf_table(tmp_path)
    table.insert([{"id": 5, "v": "e"}])
    lost = table.actions()[-1]["add"]["path"]
    (table.folder / lost).unlink()
    source = SourceOptions(str(table.folder), paired=True)
    reader = VersionReader(source, FeedOptions(), LostFiles())
    order = VersionOrder(FIRST, table.version, 0, 1)
    rows = [row for batch in reader.read_rows(order) for row in batch.to_pylist()]
    found: list[Any] = []
    with pytest.raises(FileGone, match=lost) as gone:
        found.extend(unpack_items(((row["head"], row["rows"]) for row in rows), FIRST))
    assert gone.value.version == table.version
    assert gone.value.rows == 1
