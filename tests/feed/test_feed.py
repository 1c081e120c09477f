"""One table to one sink: order, offsets, retries, and what is left when it is interrupted."""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
import pyarrow as pa
import pytest

from tailer.changes import ChangeBatch, Offset
from tailer.compare.engine import DiffOptions
from tailer.errors import (
    ConfigError,
    DataLoss,
    OffsetError,
    SinkRejected,
    TableError,
    TailerError,
    TransientError,
)
from tailer.feed.pipe import pipe_items
from tailer.feed.read_context import EmitBatch
from tailer.feed.run import run_feed
from tailer.log.starts import find_start_to_keep
from tailer.log.table import TableLog
from tailer.sink import Sink
from tailer.testing.batches import change_batch
from tailer.testing.table import TableBuilder
from tests.support.faulty import Script
from tests.support.feeds import position_of
from tests.support.rig import SCHEMA, Rig
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.anyio


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """Version 1: five rows in two files; version 2: nothing; version 3: a delete and an update."""
    rig = Rig(tmp_path)
    table = rig.table
    table.commit(
        table.add([{"id": 1}, {"id": 2}, {"id": 3}], row_group_size=2),
        table.add([{"id": 4}, {"id": 5}]),
    )
    table.commit()
    changes = [(1, "delete"), (2, "update_preimage"), (20, "update_postimage")]
    table.commit(table.cdc([{"id": i, "_change_type": kind} for i, kind in changes]))
    return rig


EVERYTHING = [1, 2, 3, 4, 5, 1, 2, 20]


async def test_every_event_comes_once_and_in_order(rig: Rig) -> None:
    await run_feed(rig.feed())
    assert rig.ids == EVERYTHING
    assert [e["_commit_version"] for e in rig.events] == [1] * 5 + [3] * 3
    assert len({e["_event_id"] for e in rig.events}) == 8
    assert position_of(await rig.offset()) == (4, 0)
    assert (rig.progress.versions_delivered, rig.progress.events_delivered) == (4, 8)


async def test_the_offset_is_saved_behind_each_batch_and_only_then(rig: Rig) -> None:
    script = Script({})
    await run_feed(rig.feed(script=script))
    steps = [(name, what) for name, what in script.calls if name in ("write", "written", "save")]
    # The start comes first, so that it is found once.
    assert [name for name, _ in steps] == [
        "save",
        *["write", "written", "save"] * (len(steps) // 3),
    ]
    written = [json.loads(what) for name, what in steps if name == "written"]
    saved = [json.loads(what) for name, what in steps if name == "save"]
    # Each batch begins where the offset saved before it points to.
    assert [(o["version"], o["index"]) for o in written] == [
        (o["version"], o["index"]) for o in saved[:-1]
    ]
    assert {o["table_id"] for o in saved[1:]} == {rig.table.table_id}


@pytest.mark.parametrize("error", [TransientError("reset"), SinkRejected("stop")])
async def test_what_is_committed_behind_a_start_at_latest_comes_whatever_happens(
    rig: Rig, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Writer(Script):
        """Commits one version when the first batch is to be written, and lets that fail."""

        def __call__(self, method: str, argument: object = "") -> None:
            if method == "write" and rig.table.version == 4:
                rig.table.insert([{"id": 5}])
                raise error
            super().__call__(method, argument)

    started = rig.progress.note_start

    def inserted(offset: Offset) -> None:
        """Commits the version before that, as soon as the feed has found its start."""
        started(offset)
        if rig.table.version == 3:
            rig.table.insert([{"id": 4}])

    monkeypatch.setattr(rig.progress, "note_start", inserted)
    with suppress(SinkRejected):
        await run_feed(rig.feed(script=Writer({}), start="latest", last=5))
    await run_feed(rig.feed(start="latest", last=5))  # a restart
    assert rig.ids == [4, 5]


async def test_another_table_in_the_place_of_one_that_was_only_waited_for_is_refused(
    rig: Rig,
) -> None:
    feed = rig.feed(last=4)

    async def start(log: TableLog) -> Offset:
        return await find_start_to_keep(log, "latest")

    feed.start = start
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run_feed, feed)
        await eventually_async(lambda: rig.progress.offset, why="it has started")
        tasks.cancel_scope.cancel()
    assert position_of(await rig.offset()) == (4, 0), "nothing came, and the start is known"
    shutil.rmtree(rig.table.folder)
    other = TableBuilder(rig.table.folder, SCHEMA, cdf=True)
    other.create()
    for number in range(5):
        other.insert([{"id": number}])
    with pytest.raises(OffsetError, match=f"the offset is of table {rig.table.table_id}"):
        await run_feed(feed)


async def test_a_version_without_changes_moves_the_offset(rig: Rig) -> None:
    await run_feed(rig.feed(last=2))
    assert position_of(await rig.offset()) == (3, 0)
    assert rig.ids == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("method", ["list", "stat", "read", "open", "write", "load"])
@pytest.mark.parametrize("place", [0, 1, 3])
async def test_what_may_heal_is_tried_again_and_nothing_comes_twice(
    rig: Rig, method: str, place: int
) -> None:
    error = TransientError("reset")
    script = Script({method: [None] * place + [error, error]})
    await run_feed(rig.feed(script=script))
    assert rig.ids == EVERYTHING
    assert position_of(await rig.offset()) == (4, 0)


@pytest.mark.parametrize("method", ["written", "save"])
async def test_a_lost_acknowledgement_repeats_a_batch_byte_for_byte(rig: Rig, method: str) -> None:
    await run_feed(rig.feed(script=Script({method: [None, None, TransientError("reset")]})))
    lines = rig.output.read_text().splitlines()
    assert len(lines) > len(EVERYTHING)
    unique = list(dict.fromkeys(lines))
    assert [json.loads(line)["id"] for line in unique] == EVERYTHING
    assert len({json.loads(line)["_event_id"] for line in lines}) == len(EVERYTHING)


async def test_progress_that_is_stored_with_the_data_wins(rig: Rig) -> None:
    await run_feed(rig.feed(last=1))
    feed = rig.feed()
    inner = feed.sink

    class Transactional(Sink):
        """Knows that the version's last two events never arrived."""

        async def open(self, name: str) -> Offset | None:
            await inner.open(name)
            return Offset(1, 3, table_id=rig.table.table_id)

        async def write(self, batch: ChangeBatch) -> None:
            await inner.write(batch)

        async def aclose(self) -> None:
            await inner.aclose()

    feed.sink = Transactional()
    await run_feed(feed)
    assert rig.ids == [1, 2, 3, 4, 5, *EVERYTHING[3:]]


async def test_the_sink_is_opened_anew_after_a_failure(rig: Rig) -> None:
    script = Script({"write": [None, TransientError("reset")]})
    await run_feed(rig.feed(script=script))
    steps = [name for name, _ in script.calls if name in ("open", "aclose") or name == "acquire"]
    sink = [n for n, what in script.calls if (n, what) == ("open", "orders") or n == "aclose"]
    assert sink == ["open", "aclose", "open", "aclose"]
    assert steps.count("acquire") == 1, "the feed stays its own owner meanwhile"


@pytest.mark.parametrize(
    ("method", "error"),
    [
        ("write", SinkRejected("no")),
        ("open", DataLoss("gone")),
        ("load", OffsetError("damaged")),
    ],
)
async def test_what_will_not_heal_ends_the_feed_with_its_offset_unmoved(
    rig: Rig, method: str, error: Exception
) -> None:
    await run_feed(rig.feed(last=0))
    before = await rig.offset()
    script = Script({method: [error] if method != "open" else [None, error]})
    with pytest.raises(type(error)):
        await run_feed(rig.feed(script=script))
    assert await rig.offset() == before
    assert rig.progress.error is error
    await run_feed(rig.feed())
    assert rig.ids == EVERYTHING


@contextmanager
def full_disk(file_bytes_max: int) -> Iterator[None]:
    """No file of this process grows beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes_max, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_full_disk_is_waited_for(rig: Rig) -> None:
    rig.table.insert([{"id": 1000 + i} for i in range(3000)])
    async with anyio.create_task_group() as tasks:
        with full_disk(100_000):
            tasks.start_soon(run_feed, rig.feed(batch_rows_max=1000))
            error = await eventually_async(lambda: rig.progress.error, why="it fails")
            assert isinstance(error, TransientError)
            tried = rig.metric("tailer_retries_total")
            await eventually_async(
                lambda: rig.metric("tailer_retries_total") > tried, why="it fails again"
            )
    unique = {event["_event_id"]: event["id"] for event in rig.events}
    assert list(unique.values()) == [*EVERYTHING, *range(1000, 4000)]
    assert position_of(await rig.offset()) == (5, 0)


async def test_a_folder_for_temporary_files_that_can_t_be_written_is_waited_for(
    rig: Rig, tmp_path: Path
) -> None:
    gone, kept = ([rig.table.add([{"id": i} for i in ids])] for ids in (range(9), range(8)))
    rig.table.commit(*gone)
    rig.table.commit(rig.table.remove(gone[0]), *kept)
    spill = tmp_path / "spill"
    errors: list[TailerError] = []

    def retried(error: TailerError) -> None:
        errors.append(error)
        spill.mkdir(exist_ok=True)

    rig.on_retry = retried
    diff = DiffOptions(spill_folder=str(spill))
    await run_feed(rig.feed(start="5", diff=diff, change_source="derived"))
    assert rig.ids == [8]
    (error,) = errors
    assert f"temporary files can't be written to {spill} (No such file" in str(error)


async def test_a_bug_is_not_taken_for_weather(rig: Rig) -> None:
    with pytest.raises(ZeroDivisionError):
        await run_feed(rig.feed(script=Script({"write": [None, ZeroDivisionError()]})))
    await run_feed(rig.feed())
    assert rig.ids == EVERYTHING


@pytest.mark.parametrize("rows", [1, 2, 3])
async def test_a_feed_goes_on_inside_a_version(rig: Rig, rows: int) -> None:
    """Stopped by an error after every single batch, and started anew."""
    starts = []
    while True:
        script = Script({"write": [None, ConfigError("enough")]})
        try:
            await run_feed(rig.feed(script=script, batch_rows_max=rows))
            break
        except ConfigError:
            starts.append(await rig.offset())
    assert rig.ids == EVERYTHING
    assert len({e["_event_id"] for e in rig.events}) == len(EVERYTHING)
    assert any(offset.index > 0 for offset in starts)


async def test_ids_do_not_depend_on_where_batches_are_cut(rig: Rig, tmp_path: Path) -> None:
    lines = []
    for rows in (1, 2, 100):
        rig.output = tmp_path / f"{rows}.jsonl"
        await rig.offsets.clear()
        await run_feed(rig.feed(batch_rows_max=rows))
        lines.append(rig.output.read_bytes())
    assert lines[0] == lines[1] == lines[2]


# The initial snapshot


async def test_the_snapshot_s_rows_come_first_then_the_changes(rig: Rig) -> None:
    await run_feed(rig.feed(start="snapshot", last=3))
    assert sorted(rig.ids) == [1, 2, 3, 4, 5], "the table's builder has not rewritten its files"
    assert {(e["_change_type"], e["_commit_version"]) for e in rig.events} == {("insert", 3)}
    rig.table.insert([{"id": 6}])
    await run_feed(rig.feed(start="snapshot"))
    assert sorted(rig.ids) == [1, 2, 3, 4, 5, 6]
    assert position_of(await rig.offset()) == (5, 0)


async def test_a_snapshot_is_resumed_as_of_its_own_version(rig: Rig) -> None:
    script = Script({"write": [None, SinkRejected("enough")]})
    with pytest.raises(SinkRejected):
        await run_feed(rig.feed(script=script, start="snapshot"))
    saved = await rig.offset()
    assert (saved.version, saved.snapshot, saved.index) == (3, True, 2)
    rig.table.insert([{"id": 6}])
    await run_feed(rig.feed(start="snapshot"))
    assert sorted(rig.ids) == [1, 2, 3, 4, 5, 6]
    assert [e["_commit_version"] for e in rig.events] == [3] * 5 + [4]
    assert len({e["_event_id"] for e in rig.events}) == 6


async def test_the_snapshot_of_an_empty_table_is_passed(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await run_feed(rig.feed(start="snapshot"))
    assert (await rig.offset()).to_json()["snapshot"] is False
    assert position_of(await rig.offset()) == (1, 0)
    rig.table.insert([{"id": 1}])
    await run_feed(rig.feed(start="snapshot"))
    assert rig.ids == [1]


async def test_a_snapshot_leaves_out_what_deletion_vectors_delete(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    add = rig.table.add([{"id": i} for i in range(6)], row_group_size=2)
    rig.table.commit(rig.table.protocol(3, 7, **features), add)
    rig.table.commit(*rig.table.delete_rows(add, [1, 2, 3]))
    await run_feed(rig.feed(start="snapshot", batch_rows_max=1))
    assert rig.ids == [0, 4, 5]


# The schema


async def test_the_schema_may_change_in_mid_stream(rig: Rig) -> None:
    table = rig.table
    table.schema = pa.schema([*SCHEMA, ("country", pa.string())])
    table.commit(table.metadata(), table.add([{"id": 6, "country": "DE"}]))
    table.insert([{"id": 7}])
    await run_feed(rig.feed())
    assert [e.get("country", "none") for e in rig.events] == ["none"] * 8 + ["DE", None]


# Ending


async def test_a_cancelled_feed_finishes_its_batch_and_saves_it(rig: Rig) -> None:
    feed = rig.feed()
    scope = anyio.CancelScope()
    inner = feed.sink

    class CancellingSink(Sink):
        """Asks the feed to end while a batch is being written."""

        async def open(self, name: str) -> Offset | None:
            return await inner.open(name)

        async def write(self, batch: ChangeBatch) -> None:
            if batch.offset.position == (1, 2):
                scope.cancel()
                await anyio.sleep(0.01)  # a cancellation would come through here
            await inner.write(batch)

        async def aclose(self) -> None:
            await inner.aclose()

    feed.sink = CancellingSink()
    with scope:
        await run_feed(feed)
    assert scope.cancelled_caught
    assert rig.ids == [1, 2, 3]
    assert position_of(await rig.offset()) == (1, 3)
    await run_feed(rig.feed())
    assert rig.ids == EVERYTHING


async def test_an_offset_beyond_the_version_s_changes_is_refused(rig: Rig) -> None:
    await rig.offsets.save(Offset(1, 99, table_id=rig.table.table_id))
    with pytest.raises(TableError, match=r"version 1.*99"):
        await run_feed(rig.feed())


# The two tasks


def _batches(made: list[int]) -> Callable[[EmitBatch], Awaitable[None]]:
    async def read(emit: EmitBatch) -> None:
        for index in range(10):
            made.append(index)
            await emit(change_batch(SCHEMA, [{"id": index}], index=index))

    return read


async def test_two_batches_are_alive_one_written_and_one_ready() -> None:
    made: list[int] = []
    go_on = anyio.Event()
    published: list[ChangeBatch] = []

    async def publish(batch: ChangeBatch) -> None:
        await go_on.wait()
        published.append(batch)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pipe_items, _batches(made), publish)
        await anyio.wait_all_tasks_blocked()
        assert made == [0, 1]
        go_on.set()
    assert [batch.offset.index for batch in published] == list(range(10))


async def test_the_publisher_s_error_comes_out_as_it_is() -> None:
    async def publish(batch: ChangeBatch) -> None:
        if batch.offset.index == 3:
            raise SinkRejected("no")

    with pytest.raises(SinkRejected, match="no"):
        await pipe_items(_batches([]), publish)


async def test_the_reader_s_error_comes_out_behind_what_was_read_before() -> None:
    published: list[int] = []

    async def broken(emit: EmitBatch) -> None:
        await emit(change_batch(SCHEMA, [{"id": 1}]))
        await emit(change_batch(SCHEMA, [{"id": 2}], index=1))
        raise DataLoss("gone")

    async def publish(batch: ChangeBatch) -> None:
        await anyio.sleep(0.01)
        published.append(batch.offset.index)

    with pytest.raises(DataLoss, match="gone"):
        await pipe_items(broken, publish)
    assert published == [0, 1]
