"""Large versions in parts: together they are the version, whatever its files are.

The tasks are done as Spark does them; no Spark is started here.
"""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest

from tailer.changes import ChangeBatch, Offset
from tailer.decode.rows import DecodeOptions
from tailer.errors import FileGone
from tailer.feed.options import FeedOptions
from tailer.feed.policy import LostFiles
from tailer.feed.progress import Observer
from tailer.feed.read import read_items
from tailer.feed.read_context import FeedItem, ReadContext
from tailer.shape.expressions import parse_condition
from tailer.shape.selection import Selection
from tailer.spark.options import SourceOptions
from tailer.spark.orders import VersionOrder
from tailer.spark.pipeline.envelope import VersionReader
from tailer.spark.pipeline.parts import divide_version, group_jobs
from tailer.spark.source.planning import Planner
from tailer.testing.table import TableBuilder
from tests.golden.test_golden import GoldenCase
from tests.spark.test_envelope import done, events
from tests.spark.test_stream import SCHEMA, rows
from tests.support.extent import rest_slow
from tests.support.feeds import table_log

PLAIN = FeedOptions(decode=DecodeOptions(batch_rows_max=2))


async def _orders(
    table: Path, feed: FeedOptions, at: Offset, lost: LostFiles
) -> list[VersionOrder]:
    """The version at an offset, with a part for each file."""
    log = table_log(table)
    source = SourceOptions(str(table), paired=True, change_source=feed.change_source)
    planner = Planner(log, source)
    end = at.next_version(0)
    async with aclosing(planner.plan_orders(at, end)) as found:
        whole = [order async for _, some in found for order in some]
    context = ReadContext.from_options(log, feed, lost=lost)
    (order,) = (order for order in whole if isinstance(order, VersionOrder))
    return await divide_version(context, order, 1)


def in_parts(
    table: Path,
    at: Offset,
    feed: FeedOptions = PLAIN,
    lost: LostFiles | None = None,
    found: list[FeedItem] | None = None,
) -> tuple[list[VersionOrder], list[FeedItem]]:
    """The orders of the version at an offset, and what comes of them in several jobs; ``found``
    has what came before an error."""
    lost = lost or LostFiles()
    found = [] if found is None else found
    source = SourceOptions(str(table), paired=True, change_source=feed.change_source)
    orders = anyio.run(_orders, table, feed, at, lost)
    reader = VersionReader(source, feed, lost)
    for job in group_jobs(orders, 2 * max(order.cost for order in orders)):
        found.extend(done(reader, job, found[-1].next_offset if found else at))
    return orders, found


def by_feed(
    table: Path, at: Offset, feed: FeedOptions = PLAIN, lost: LostFiles | None = None
) -> list[FeedItem]:
    """What the daemon's feed reads of the version at an offset."""

    async def read() -> list[FeedItem]:
        known = lost or LostFiles()
        items = read_items(table_log(table), at, at.version, feed, Observer(), lost=known)
        async with aclosing(items) as found:
            return [item async for item in found]

    return anyio.run(read)


def told(items: list[FeedItem]) -> list[Any]:
    """Items, comparable; without the empty batch that only leads on, and where the others lead."""
    found: list[Any] = []
    for item in items:
        if not isinstance(item, ChangeBatch):
            found.append(item.to_json() | {"at": str(item.offset), "next": str(item.next_offset)})
        elif item.num_rows:
            found.append((str(item.offset), events([item])))
    return [*found, str(items[-1].next_offset)]


def many_files(folder: Path, files: int, **options: Any) -> TableBuilder:
    """A table whose version 1 has added several files of three rows."""
    table = TableBuilder(folder, SCHEMA, **options)
    table.create()
    adds = [table.add(rows(*range(3 * n, 3 * n + 3))) for n in range(files)]
    table.commit(*adds)
    return table


@pytest.mark.parametrize("kind", ["commit", "snapshot"])
def test_the_parts_are_the_version_from_any_offset_on(kind: str, tmp_path: Path) -> None:
    table = many_files(tmp_path, 5).folder
    start = Offset(1, snapshot=kind == "snapshot")
    batches = [item for item in by_feed(table, start) if isinstance(item, ChangeBatch)]
    assert [batch.offset.index for batch in batches] == [0, 2, 3, 5, 6, 8, 9, 11, 12, 14]
    for batch in batches:
        orders, found = in_parts(table, batch.offset)
        assert len(orders) == 5 - batch.offset.index // 3
        assert told(found) == told(by_feed(table, batch.offset))


@pytest.mark.parametrize("kind", ["commit", "snapshot"])
def test_files_that_a_query_of_spark_had_delivered_are_in_no_part(
    kind: str, tmp_path: Path
) -> None:
    table = many_files(tmp_path, 5).folder
    start = Offset(1, snapshot=kind == "snapshot", delivered_files=2)
    batches = [item for item in by_feed(table, start) if isinstance(item, ChangeBatch)]
    assert [batch.offset.index for batch in batches] == [0, 2, 3, 5, 6, 8]
    for batch in batches:
        orders, found = in_parts(table, batch.offset)
        assert len(orders) == 3 - batch.offset.index // 3
        assert told(found) == told(by_feed(table, batch.offset))


TABLES = ("cdf_dv", "plain_dv", "cdf_restore_dv", "rowtracking", "types")


@pytest.mark.parametrize("name", rest_slow(TABLES, "cdf_dv", "rowtracking"))
def test_the_versions_of_a_table_in_parts(name: str, golden: GoldenCase) -> None:
    table = golden(name).table
    last = anyio.run(table_log(table).latest_version)
    for version in range(last + 1):
        for snapshot in (False, True):
            start = Offset(version, snapshot=snapshot)
            assert told(in_parts(table, start)[1]) == told(by_feed(table, start)), start


def test_tasks_send_all_operations_and_the_driver_publishes_those_that_are_wanted(
    golden: GoldenCase,
) -> None:
    """Offsets of parts are counted from all rows."""
    table = golden("cdf_dv").table
    wanted = FeedOptions(decode=PLAIN.decode, selection=Selection(operations=("delete",)))
    for version in range(1 + anyio.run(table_log(table).latest_version)):
        start = Offset(version)
        assert told(in_parts(table, start, wanted)[1]) == told(by_feed(table, start)), version


def test_a_selection_of_partitions_is_divided_as_it_is_selected(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, SCHEMA, partition_by=["name"])
    table.create()
    named = [(n, "ab"[n % 2]) for n in range(8)]
    adds = [table.add([{"id": n, "name": of}], partition={"name": of}) for n, of in named]
    table.commit(*adds)
    feed = FeedOptions(selection=Selection(where=parse_condition("name = 'b'")))
    for start in (Offset(1), Offset(1, snapshot=True)):
        orders, found = in_parts(tmp_path, start, feed)
        assert [order.part and order.part.first for order in orders] == [0, 1, 2, 3]
        assert told(found) == told(by_feed(tmp_path, start, feed))


def test_a_gone_file_leaves_what_came_before_it_and_is_passed_over_when_it_is_known(
    tmp_path: Path,
) -> None:
    table = many_files(tmp_path, 4)
    adds = [action["add"]["path"] for action in table.actions() if "add" in action]
    whole = told(by_feed(table.folder, Offset(1)))
    (table.folder / adds[2]).unlink()
    found: list[FeedItem] = []
    with pytest.raises(FileGone) as gone:
        in_parts(table.folder, Offset(1), found=found)
    assert told(found)[:-1] == whole[:4], "of the two files before it"
    assert found[-1].next_offset.index == 6
    lost = LostFiles()
    lost.record_loss(1, gone.value)
    orders, rest = in_parts(table.folder, found[-1].next_offset, lost=lost)
    assert len(orders) == 1, "its changes can only be counted with the others"
    assert told(rest) == told(by_feed(table.folder, found[-1].next_offset, lost=lost))


@pytest.mark.parametrize("kind", ["paired", "derived", "small"])
def test_what_must_be_read_as_a_whole_is_one_order(kind: str, tmp_path: Path) -> None:
    feed = FeedOptions(key=("id",), paired=kind == "paired")
    table = many_files(tmp_path, 2, cdf=True)
    if kind == "paired":
        images = [table.cdc([{"id": n, "name": "x", "_change_type": "insert"}]) for n in range(2)]
        table.commit(*images)
    elif kind == "derived":
        feed = FeedOptions(change_source="derived")
        old = [action for action in table.actions() if "add" in action]
        table.commit(*map(table.remove, old), *(table.add(rows(n)) for n in range(2)))
    else:
        table.insert(rows(1))
    orders, found = in_parts(table.folder, Offset(2), feed)
    assert [order.part for order in orders] == [None]
    assert told(found) == told(by_feed(table.folder, Offset(2), feed))
