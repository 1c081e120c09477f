"""Offsets of a feed that took over from a query of Spark: the files that it had delivered are left
out, and everything else comes once, wherever the feed is stopped."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import pyarrow as pa
import pytest

from tailer.changes import ChangeBatch, Offset
from tailer.delta.actions import AddFile
from tailer.feed.snapshots import sort_files
from tailer.plan.rules import choose_snapshot_order
from tests.support.builders import VersatileBuilder, features_protocol
from tests.support.feeds import batches

SCHEMA = pa.schema([("id", pa.int64())])
#: By modification time and path the files come as 5, 6, 3, 4, 1, 2; each has two rows.
TIMES = {1: 30, 2: 30, 3: 20, 4: 20, 5: 10, 6: 10}
CHECKPOINTS = ("none", "classic", "multi-part", "v2-json", "v2-parquet")


def of_files(*numbers: int) -> list[int]:
    """The ids in these files."""
    return [10 * n + i for n in numbers for i in (0, 1)]


def made(folder: Path, checkpoint: str = "none") -> VersatileBuilder:
    """A table whose version 1 adds the files, and whose version 2 adds another one."""
    table = VersatileBuilder(folder, SCHEMA)
    table.create(*([features_protocol(["v2Checkpoint"])] if checkpoint.startswith("v2") else []))
    table.commit(
        *(
            table.add([{"id": i} for i in of_files(n)], path=f"{n}.parquet", modificationTime=time)
            for n, time in TIMES.items()
        )
    )
    if checkpoint != "none":
        table.checkpoint(kind=checkpoint)
        table.commit_path(0).unlink()
    table.insert([{"id": i} for i in of_files(7)], path="7.parquet", modificationTime=5)
    return table


def ids(found: list[ChangeBatch]) -> list[int]:
    return [row["id"] for batch in found for row in batch.rows.to_pylist()]


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
@pytest.mark.parametrize("delivered", [1, 2, 5])
def test_the_rest_of_a_snapshot_comes_in_sparks_order(
    tmp_path: Path, checkpoint: str, delivered: int
) -> None:
    table = made(tmp_path, checkpoint)
    start = Offset(1, snapshot=True, table_id=table.table_id, delivered_files=delivered)
    assert ids(batches(table, start)) == of_files(*(5, 6, 3, 4, 1, 2)[delivered:], 7)


@pytest.mark.parametrize("delivered", [1, 4])
def test_the_rest_of_a_version_comes_in_the_order_of_its_log(
    tmp_path: Path, delivered: int
) -> None:
    table = made(tmp_path)
    start = Offset(1, table_id=table.table_id, delivered_files=delivered)
    assert ids(batches(table, start)) == of_files(*(1, 2, 3, 4, 5, 6)[delivered:], 7)


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_feed_that_stops_within_the_rest_continues_there(
    tmp_path: Path, *, snapshot: bool
) -> None:
    table = made(tmp_path)
    start = Offset(1, snapshot=snapshot, table_id=table.table_id, delivered_files=2)
    found = batches(table, start, batch_rows_max=1)
    whole = ids(found)
    assert len(found) == len(whole) == 10
    for number, batch in enumerate(found, start=1):
        assert batch.next_offset.delivered_files == (2 if number < 8 else 0)
        again = Offset.from_json(batch.next_offset.to_json())
        assert ids(batches(table, again)) == whole[number:], again


def test_what_an_overwrite_has_left_is_not_repeated(tmp_path: Path) -> None:
    table = VersatileBuilder(tmp_path, SCHEMA, cdf=True)
    table.create()
    old = [table.add([{"id": n}]) for n in (1, 2)]
    table.commit(*old)
    new = [table.add([{"id": n}]) for n in (3, 4)]
    table.commit(new[0], table.remove(old[0]), new[1], table.remove(old[1]))
    for delivered, rest in ((1, [1, 2, 4]), (2, [2, 4]), (3, [2])):
        start = Offset(2, table_id=table.table_id, delivered_files=delivered)
        assert ids(batches(table, start)) == rest


def test_many_files_are_sorted_on_the_disk_in_sparks_order() -> None:
    adds = [
        AddFile(f"{n}", 1, data_change=True, modification_time=time) for n, time in TIMES.items()
    ]

    async def some() -> AsyncGenerator[AddFile, None]:
        for add in adds:
            yield add

    async def sort() -> list[str]:
        key = choose_snapshot_order(Offset(1, snapshot=True, delivered_files=1))
        return [add.path for add in await sort_files(some(), run_files=2, key=key)]

    assert anyio.run(sort) == ["5", "6", "3", "4", "1", "2"]
