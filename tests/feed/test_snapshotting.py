"""The rows of a whole table: the initial snapshot, and one more while the changes go on."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import pytest
from msgspec import structs

from tailer.changes import ChangeBatch, Notice, Offset
from tailer.delta.actions import AddFile, DeletionVectorDescriptor
from tailer.errors import SinkRejected
from tailer.feed.orders import ResnapshotRequest
from tailer.feed.run import run_feed
from tailer.feed.snapshots import sort_files
from tailer.shape.expressions import parse_condition
from tailer.shape.selection import Selection
from tailer.sink import Sink
from tests.support.faulty import Script
from tests.support.feeds import position_of, without_pages
from tests.support.rig import Rig
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.anyio


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """Version 1: eight files of two rows, in the order of their names."""
    rig = Rig(tmp_path)
    rig.table.commit(
        *(rig.table.add([{"id": 2 * i}, {"id": 2 * i + 1}], path=f"f{i}.parquet") for i in range(8))
    )
    return rig


# The order of the files


async def made(count: int) -> AsyncGenerator[AddFile, None]:
    dv = DeletionVectorDescriptor("u", "x", 34, 2, 1)
    for i in range(count):
        path = f"{i * 7919 % count:06d} größe"
        yield AddFile(
            path, i, True, {"p": None, "q": "ä"},
            deletion_vector=dv if i % 2 else None, base_row_id=i, stats=f'{{"numRecords":{i}}}',
        )  # fmt: skip


@pytest.mark.parametrize("run_files", [1, 7, 100, 1000])
async def test_files_are_sorted_out_of_core(tmp_path: Path, run_files: int) -> None:
    found = list(await sort_files(made(100), str(tmp_path), run_files))
    expected = sorted([add async for add in made(100)], key=lambda add: add.path)
    bare = [structs.replace(add, stats=None, stats_parsed=None) for add in found]
    assert bare == [structs.replace(add, stats=None) for add in expected]
    assert [add.num_records for add in found] == [add.num_records for add in expected]
    assert [name async for name in anyio.Path(tmp_path).iterdir()] == [], "nothing is left behind"


# Resuming


@pytest.mark.parametrize("stop_after", [1, 5, 15])
async def test_delivered_files_are_not_decoded_again(rig: Rig, stop_after: int) -> None:
    script = Script({"write": [None] * stop_after + [SinkRejected("stop")]})
    with pytest.raises(SinkRejected):
        await run_feed(rig.feed(start="snapshot", script=script, batch_rows_max=1))
    for i in range(stop_after // 2):
        without_pages(rig.table.folder / f"f{i}.parquet")
    await run_feed(rig.feed(start="snapshot", batch_rows_max=1))
    assert rig.ids == list(range(16))
    assert [n["_notice"] for n in rig.notices] == ["snapshot_begin", "snapshot_end"]


async def test_a_new_checkpoint_does_not_disturb_it(rig: Rig) -> None:
    rig.table.insert([{"id": 16}], path="e.parquet")
    script = Script({"write": [None] * 5 + [SinkRejected("stop")]})
    with pytest.raises(SinkRejected):
        await run_feed(rig.feed(start="snapshot", script=script))
    rig.table.checkpoint(2)
    rig.table.commit_path(0).unlink()
    rig.table.commit_path(1).unlink()
    await run_feed(rig.feed(start="snapshot"))
    assert rig.ids == [16, *range(16)]
    assert len({e["_event_id"] for e in rig.events}) == 17


async def test_the_end_is_said_even_after_a_crash_right_before_it(rig: Rig) -> None:
    script = Script({"announce": [None, SinkRejected("stop")]})
    with pytest.raises(SinkRejected):
        await run_feed(rig.feed(start="snapshot", script=script))
    assert (await rig.offset()).snapshot
    await run_feed(rig.feed(start="snapshot"))
    assert rig.ids == list(range(16))
    assert [n["_notice"] for n in rig.notices] == ["snapshot_begin", "snapshot_end"]
    assert position_of(await rig.offset()) == (2, 0)


# Once more, while the changes go on


async def test_a_table_is_read_again_without_moving_the_offset(rig: Rig) -> None:
    await run_feed(rig.feed())
    assert rig.ids == list(range(16))
    rig.table.insert([{"id": 100}])
    rig.orders.resnapshots.append(ResnapshotRequest())
    await run_feed(rig.feed())
    again = [e for e in rig.events[16:] if e["id"] != 100]
    assert sorted(e["id"] for e in again) == list(range(16))
    assert {e["_event_id"][-1] for e in again} == {"s"}
    assert rig.orders.resnapshots == []
    assert position_of(await rig.offset()) == (3, 0)
    begin, end = rig.notices
    assert (begin["_notice"], end["_notice"]) == ("snapshot_begin", "snapshot_end")
    assert end["details"] == {"reason": "resnapshot", "version": 1, "where": None, "rows": 16}


async def test_several_orders_are_carried_out_one_after_the_other(rig: Rig) -> None:
    await run_feed(rig.feed())
    rig.orders.resnapshots += [ResnapshotRequest(), ResnapshotRequest()]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run_feed, rig.feed(last=100))
        await eventually_async(lambda: rig.orders.resnapshots == [], why="no commit is needed")
        tasks.cancel_scope.cancel()
    assert sorted(e["id"] for e in rig.events[16:]) == sorted([*range(16)] * 2)


async def test_versions_come_between_its_files_and_no_row_is_older_than_the_stream(
    rig: Rig,
) -> None:
    """While the stream catches up: files that were rewritten meanwhile come in their new form."""
    await run_feed(rig.feed())
    table = rig.table
    for i in range(4, 8):
        old = next(a for a in table.actions() if a.get("add", {}).get("path") == f"f{i}.parquet")
        rows = [{"id": 2 * i}, {"id": 1000 + i}]
        table.commit(table.remove(old), table.add(rows, path=f"g{i}.parquet"))
    rig.orders.resnapshots.append(ResnapshotRequest())
    await run_feed(rig.feed())
    lines = rig.lines[16:]
    versions = [line["version"] if "_notice" in line else line["_commit_version"] for line in lines]
    assert versions == sorted(versions), "a row of the snapshot is as of the version just passed"
    state: dict[int, bool] = {}
    for line in rig.events[16:]:
        state[line["id"]] = line["_change_type"] in ("insert", "update_postimage")
    live = {row for row, alive in state.items() if alive}
    assert live == {*range(8), 8, 10, 12, 14, 1004, 1005, 1006, 1007}
    snapshot_files = [line for line in rig.events[16:] if line["_event_id"].endswith("s")]
    assert {9, 11, 13, 15}.isdisjoint({e["id"] for e in snapshot_files if e["_commit_version"] > 4})


async def test_a_snapshot_is_not_told_what_was_before_its_beginning(rig: Rig) -> None:
    """The second one begins behind commits that were delivered while it waited: what they wrote is
    among its files, once, and a file that they removed may be there again."""
    await run_feed(rig.feed())
    table = rig.table
    adds = {a["add"]["path"]: a for a in table.actions() if "add" in a}
    moved = table.add([{"id": 8}, {"id": 9}], path="g4.parquet")
    table.commit(table.remove(adds["f4.parquet"]), moved)
    table.commit(table.remove(adds["f5.parquet"]))
    table.commit(adds["f5.parquet"])
    rig.orders.resnapshots += [ResnapshotRequest(), ResnapshotRequest()]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run_feed, rig.feed(last=100))
        await eventually_async(lambda: rig.orders.resnapshots == [], why="no commit is needed")
        tasks.cancel_scope.cancel()
    begins = [n for n, line in enumerate(rig.lines) if line.get("_notice") == "snapshot_begin"]
    second = [line["id"] for line in rig.lines[begins[1] :] if "_notice" not in line]
    assert sorted(second) == list(range(16))


async def test_it_starts_over_after_a_failure_and_ends(rig: Rig) -> None:
    await run_feed(rig.feed())
    rig.table.insert([{"id": 100}])
    rig.orders.resnapshots.append(ResnapshotRequest())
    with pytest.raises(SinkRejected):
        await run_feed(rig.feed(script=Script({"write": [None] * 3 + [SinkRejected("stop")]})))
    assert len(rig.orders.resnapshots) == 1
    await run_feed(rig.feed())
    assert {e["id"] for e in rig.events[16:]} == {*range(16), 100}
    assert rig.orders.resnapshots == []


async def test_only_the_wanted_partitions_are_read_again(tmp_path: Path) -> None:
    import pyarrow as pa

    from tailer.testing.table import TableBuilder

    schema = pa.schema([("id", pa.int64()), ("country", pa.string())])
    table = TableBuilder(tmp_path / "t", schema, partition_by=["country"])
    rig = Rig(tmp_path, table)
    table.create()
    table.commit(
        *(
            table.add([{"id": i}], partition={"country": c})
            for i, c in enumerate(("DE", "FR", "IT"))
        )
    )
    selection = Selection(where=parse_condition("country <> 'IT'"))
    await run_feed(rig.feed(selection=selection))
    table.commit()
    rig.orders.resnapshots.append(ResnapshotRequest(parse_condition("country >= 'FR'")))
    await run_feed(rig.feed(selection=selection))
    assert rig.ids == [0, 1, 1]


# Pairs


async def test_an_update_s_two_images_are_never_in_two_batches(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    kinds = ["insert", *["update_preimage", "update_postimage"] * 10, "delete"]
    rows = [{"id": i, "_change_type": kind} for i, kind in enumerate(kinds)]
    rig.table.commit(rig.table.cdc(rows))
    batches: list[list[str]] = []
    feed = rig.feed(batch_rows_max=3)
    inner = feed.sink

    class Watching(Sink):
        async def open(self, name: str) -> Offset | None:
            return await inner.open(name)

        async def write(self, batch: ChangeBatch) -> None:
            batches.append(batch.rows.column("_change_type").to_pylist())
            await inner.write(batch)

        async def announce(self, notice: Notice) -> None:
            raise AssertionError(notice)

        async def aclose(self) -> None:
            await inner.aclose()

    feed.sink = Watching()
    await run_feed(feed)
    assert rig.ids == list(range(len(kinds)))
    assert all(b[-1] != "update_preimage" for b in batches if b)
    assert max(map(len, batches)) <= 4


# Heartbeats


async def test_a_feed_that_rests_gives_signs_of_life(rig: Rig) -> None:
    feed = rig.feed(last=10, heartbeat_s=0.02)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run_feed, feed)
        await eventually_async(  # on a slow machine it gives some before it has read the table
            lambda: (
                rig.metric("tailer_notices_total", kind="heartbeat") >= 3
                and rig.notices[-1]["details"]["offset"]["version"] == 2
            ),
            why="three heartbeats, and one from the end",
        )
        tasks.cancel_scope.cancel()
    assert position_of(await rig.offset()) == (2, 0)
