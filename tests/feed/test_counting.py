"""An index counts the rows that are there: statistics may be absent, and wrong ones are refused."""

from __future__ import annotations

import json
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pyarrow.parquet as pq
import pytest
from msgspec import structs

from tailer.changes import Offset
from tailer.errors import CorruptLog, FileGone, OffsetError
from tailer.feed.options import FeedOptions
from tailer.plan.rules import ChangeSource
from tailer.spark.options import SourceOptions
from tailer.spark.orders import FileOrder
from tailer.spark.source.planning import BatchBudget, StreamPlanner
from tailer.testing.table import Action, TableBuilder
from tests.support.feeds import ID, batches, events, refusal, table_log, without_pages

PLAN = FeedOptions().counting_id()
VECTORS = ["deletionVectors", "changeDataFeed"]
#: Per file: rows, and how many of them the statistics tell.
WRONG = [(5, 3), (6, 6), (3, 7), (0, 2), (4, None), (2, 0)]
TOTAL = sum(count for count, _ in WRONG)


def some_adds(table: TableBuilder, *, wrong: bool = False) -> list[Action]:
    """Files without statistics, or with those of WRONG."""
    made, first = [], 0
    for number, (count, told) in enumerate(WRONG):
        rows = [{"id": first + i} for i in range(count)]
        stats = json.dumps({"numRecords": told}) if wrong and told is not None else "{}"
        made.append(table.add(rows, path=f"{number}.parquet", stats=stats, row_group_size=2))
        first += count
    return made


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    made = TableBuilder(tmp_path / "t", ID, cdf=True)
    made.create(made.protocol(3, 7, readerFeatures=VECTORS[:1], writerFeatures=VECTORS))
    return made


def ids(table: TableBuilder, start: Offset) -> list[int]:
    return [e["id"] for e in events(table, start, start.version)]


@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_resume_counts_what_the_files_have(
    table: TableBuilder, *, snapshot: bool, checkpoint: bool
) -> None:
    version = table.commit(*some_adds(table))
    if checkpoint:
        table.checkpoint()
    whole = ids(table, Offset(version, snapshot=snapshot))
    assert whole == list(range(TOTAL))
    for index in range(TOTAL + 1):
        start = Offset(version, index, snapshot=snapshot, counted_by=PLAN)
        assert ids(table, start) == whole[index:]
    beyond = Offset(version, TOTAL + 1, snapshot=snapshot, counted_by=PLAN)
    assert f"has {TOTAL}" in refusal(lambda: ids(table, beyond), OffsetError)


@pytest.mark.parametrize("source", ["cdf", "derived"])
def test_rows_that_a_vector_hides_are_not_counted(
    table: TableBuilder, source: ChangeSource
) -> None:
    first, second = some_adds(table)[:2]
    table.commit(first, second)
    gone, left = table.delete_rows(first, [0, 4])
    table.commit(gone, left)
    removed = table.remove(left, stats=json.dumps({"numRecords": 5}))
    version = table.commit(removed, table.remove(second))
    whole = [e["id"] for e in events(table, version, source=source)]
    assert whole == [1, 2, 3, 5, 6, 7, 8, 9, 10]
    for index in range(len(whole)):
        plan = FeedOptions(change_source=source).counting_id()
        found = events(table, Offset(version, index, counted_by=plan), version, source=source)
        assert [e["id"] for e in found] == whole[index:]


def test_what_is_passed_over_is_not_decoded(table: TableBuilder) -> None:
    adds = some_adds(table)[:2]
    version = table.commit(*adds)
    without_pages(table.folder / adds[0]["add"]["path"])
    assert ids(table, Offset(version, 7, counted_by=PLAN)) == [7, 8, 9, 10]
    assert "0.parquet" in refusal(lambda: ids(table, Offset(version)))


def test_of_a_file_that_is_gone_the_log_is_believed(table: TableBuilder) -> None:
    files = [table.add([{"id": n}, {"id": n + 1}], path=f"{n}") for n in range(0, 40, 2)]
    version = table.commit(*files)
    for n in (0, 4):
        (table.folder / str(n)).unlink()
    assert ids(table, Offset(version, 7)) == list(range(7, 40))
    message = refusal(lambda: ids(table, Offset(version, 5)), FileGone)
    assert "4: the data file is gone" in message, "one of its rows was not delivered"


@pytest.mark.parametrize("plan", [None, PLAN])
@pytest.mark.parametrize("snapshot", [False, True])
def test_statistics_that_contradict_a_file_are_refused(
    table: TableBuilder, plan: str | None, *, snapshot: bool
) -> None:
    right = [table.add([{"id": n}], path=f" {n + 3}") for n in (-2, -1)]
    version = table.commit(*right, *some_adds(table, wrong=True))
    for index in (1, 2, 4):
        start = Offset(version, index, snapshot=snapshot, counted_by=plan)
        message = refusal(lambda at=start: ids(table, at), CorruptLog)  # type: ignore[misc]
        assert "0.parquet" in message
        assert "the log says that it has 3 rows (numRecords), and its footer 5" in message


def test_offsets_within_a_version_say_how_they_count(table: TableBuilder) -> None:
    version = table.commit(*some_adds(table)[:2])
    for batch in batches(table, version, batch_rows_max=4):
        for row in range(1, batch.num_rows):
            cut = batch.slice(0, row).next_offset
            assert (cut.index, cut.counted_by) == (batch.offset.index + row, PLAN)


def plan_of(table: TableBuilder, start: Offset, *, files: int = 1) -> list[list[FileOrder]]:
    """The orders of one batch after the other."""

    async def plan() -> list[list[FileOrder]]:
        planner, at, found = (
            StreamPlanner(table_log(table), SourceOptions(str(table.folder))),
            start,
            [],
        )
        while at.version <= table.version:
            end = await planner.advance(at, table.version, BatchBudget(files=files), None)
            several: list[Any] = []
            async with aclosing(planner.plan_orders(at, end)) as orders:
                several += [o async for _, orders_of in orders for o in orders_of]
            found.append(several)
            at = end
        return found

    return anyio.run(plan)


def rows_in(table: TableBuilder, order: FileOrder) -> list[int]:
    file = table.folder / order.file.path
    column: list[int] = pq.read_table(file).column("id").to_pylist()
    end = None if order.take is None else order.skip + order.take
    return column[order.skip : end]


@pytest.mark.parametrize("snapshot", [False, True])
def test_spark_cuts_a_version_by_what_its_files_have(
    table: TableBuilder, *, snapshot: bool
) -> None:
    version = table.commit(*some_adds(table, wrong=True))
    for files in (1, 2, 4):
        found = plan_of(table, Offset(version, snapshot=snapshot), files=files)
        assert len(found) >= 5 // files
        rows = [i for several in found for order in several for i in rows_in(table, order)]
        assert rows == list(range(TOTAL))


@pytest.mark.parametrize(("plan", "first"), [(None, 7), ("another", 0), ("own", 7)])
def test_spark_begins_again_where_an_index_was_counted_otherwise(
    table: TableBuilder, plan: str | None, first: int
) -> None:
    version = table.commit(*some_adds(table, wrong=True))
    own = PLAN if plan == "own" else plan
    found = plan_of(table, structs.replace(Offset(version, 7), counted_by=own), files=100)
    rows = [i for several in found for order in several for i in rows_in(table, order)]
    assert rows == list(range(first, TOTAL))
