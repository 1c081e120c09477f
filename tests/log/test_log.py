"""The table's log: its listing, its snapshots, its commits one by one."""

from __future__ import annotations

import bz2
import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio
import pyarrow as pa
import pytest

import tailer.log.json_files
import tailer.log.readers
from tailer.delta.snapshot import TableState
from tailer.errors import CorruptLog, DataLoss, TableError, TransientError, UnsupportedTable
from tailer.log.table import TableLog
from tailer.store import Found
from tailer.store.budget import Budget
from tailer.store.local import LocalStore
from tailer.testing.table import Action, TableBuilder
from tests.support.faulty import FaultyStore, Script
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.anyio

SCHEMA = pa.schema([("id", pa.int64())])


def log_of(table: TableBuilder, patience_s: float = 0.0) -> TableLog:
    return TableLog(LocalStore(str(table.folder)), torn_commit_max_s=patience_s)


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    return TableBuilder(tmp_path, SCHEMA)


def filled(table: TableBuilder, versions: int) -> list[Action]:
    """Version 0 without a file, then one new file a version."""
    table.create()
    adds = [table.add([{"id": v}]) for v in range(1, versions + 1)]
    for add in adds:
        table.commit(add)
    return adds


async def paths(log: TableLog, version: int | None = None) -> set[str]:
    snapshot = await log.load_snapshot(version)
    return {add.path async for add in log.live_files(snapshot)}


def of(*adds: Action) -> set[str]:
    return {add["add"]["path"] for add in adds}


# Listing


async def test_the_newest_version_needs_no_commit(table: TableBuilder) -> None:
    filled(table, 3)
    assert await log_of(table).latest_version() == 3
    table.checkpoint()
    for version in range(4):
        table.commit_path(version).unlink()
    assert await log_of(table).latest_version() == 3


async def test_no_table_is_said(tmp_path: Path) -> None:
    for folder in ("nowhere", "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        log = TableLog(LocalStore(str(tmp_path / folder)))
        for ask in (log.latest_version, log.earliest_version, log.load_snapshot):
            with pytest.raises(TableError, match=f"{folder}: no Delta table there"):
                await ask()


class SlowStore(FaultyStore):
    """A store that is read ahead, many files at once, and never in the calling thread."""

    def __init__(self, folder: Path, budget: int) -> None:
        super().__init__(LocalStore(str(folder)), Script({}))
        self.budget = Budget(budget)
        self.brought: list[list[str]] = []

    def ahead(self) -> Budget:
        return self.budget

    async def read_many(self, reads: Sequence[tuple[str, int]]) -> list[Found | None]:
        self.brought.append([location[-6:] for location, _ in reads])
        return [await self.read(location, 0, length) for location, length in reads]


@pytest.mark.parametrize(("budget", "brought"), [(1_000_000, [8]), (0, []), (900, [4, 2, 2])])
async def test_the_commits_of_a_slow_store_are_read_at_once(
    table: TableBuilder, budget: int, brought: list[int]
) -> None:
    adds = filled(table, 7)
    store = SlowStore(table.folder, budget)
    assert await paths(TableLog(store)) == of(*adds)
    assert [len(names) for names in store.brought] == brought
    assert not store.budget.taken


async def test_a_large_commit_of_a_slow_store_is_read_alone(
    table: TableBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    adds = filled(table, 7)
    large = table.commit_path(3).stat().st_size
    with table.commit_path(3).open("a") as file:
        file.write(" " * 10_000 + "\n")
    monkeypatch.setattr(tailer.log.readers, "SMALL_BYTES_MAX", large + 100)
    store = SlowStore(table.folder, 1_000_000)
    assert await paths(TableLog(store)) == of(*adds)
    assert store.brought == [[f"{v}.json" for v in found] for found in ((7, 6, 5, 4), (2, 1))]


async def test_a_bad_hint_is_passed_over(table: TableBuilder) -> None:
    adds = filled(table, 3)
    table.checkpoint(2)
    for hint in ('{"version": 9}', '{"version": "2"}', "{", "[]", "", '{"version": -1}'):
        (table.log / "_last_checkpoint").write_text(hint)
        assert await log_of(table).latest_version() == 3
        assert await paths(log_of(table)) == of(*adds)


async def test_a_hint_that_does_not_fit_its_checksum_is_passed_over(table: TableBuilder) -> None:
    adds = filled(table, 4)
    table.checkpoint(2)
    log = log_of(table)
    # MD5 of "version"=2.
    good = {"version": 2, "checksum": "1f8f55cb45b057747700c7eb72c902b3"}
    for hint, first in ((good, 2), ({**good, "checksum": "0" * 32}, 0), ({**good, "size": 3}, 0)):
        (table.log / "_last_checkpoint").write_text(json.dumps(hint))
        assert min(file.version for file in await log.recent_files()) == first
        assert await paths(log) == of(*adds)
    (table.log / "_last_checkpoint").write_text(json.dumps({"version": 2, "x": "y" * 2**24}))
    assert min(file.version for file in await log.recent_files()) == 0


async def test_a_checksum_file_is_read_where_it_can_be_trusted(table: TableBuilder) -> None:
    filled(table, 1)
    sums = {"tableSizeBytes": 5, "numFiles": 1, "numMetadata": 1, "numProtocol": 1}
    state = {"metadata": table.metadata()["metaData"], "protocol": table.protocol()["protocol"]}
    file = table.log / f"{1:020d}.crc"
    assert await log_of(table).read_checksum(1) is None
    file.write_text(json.dumps({**sums, **state}))
    found = await log_of(table).read_checksum(1)
    assert found is not None
    assert (found.num_files, found.metadata.id) == (1, table.table_id)
    for bad in (json.dumps({**sums, **state})[:-1], json.dumps({**sums, **state, "numFiles": -1})):
        file.write_text(bad)
        assert await log_of(table).read_checksum(1) is None
        assert (await log_of(table).load_snapshot()).version == 1


async def test_a_file_s_damage_is_named_whichever_way_it_is_met(table: TableBuilder) -> None:
    filled(table, 1)
    table.commit({"add": {"path": "", "partitionValues": {}, "size": 1, "dataChange": True}})
    with pytest.raises(CorruptLog, match="empty") as caught:
        await paths(log_of(table))
    assert (caught.value.version, caught.value.path) == (2, table.commit_path(2).name)


async def test_other_files_in_the_folder_are_none_of_the_log(table: TableBuilder) -> None:
    filled(table, 1)
    for name in ("README", "1.json", f"{9:020d}.json.tmp", f"{9:020d}.crc", ".tmp"):
        (table.log / name).write_text("{}")
    (table.log / f"{9:020d}.json").mkdir()
    assert await log_of(table).latest_version() == 1


async def test_earliest_is_the_first_commit_whose_leaving_rows_can_be_told(
    table: TableBuilder,
) -> None:
    filled(table, 5)
    assert await log_of(table).earliest_version() == 0
    table.checkpoint(2)
    table.commit_path(0).unlink()
    assert await log_of(table).earliest_version() == 3
    table.commit_path(3).unlink()
    with pytest.raises(DataLoss, match="no version's changes can be read"):
        await log_of(table).earliest_version()


# Snapshots


async def test_a_snapshot_is_the_same_however_it_is_built(table: TableBuilder) -> None:
    adds = filled(table, 4)
    table.commit(table.remove(adds[0]), table.remove(adds[3]), table.add([{"id": 9}]))
    table.commit(adds[0])
    expected = [await paths(log_of(table), version) for version in range(7)]
    for version in (2, 5, 6):
        table.checkpoint(version)
        assert [await paths(log_of(table), v) for v in range(7)] == expected
    for version in range(3):
        table.commit_path(version).unlink()
    assert [await paths(log_of(table), v) for v in range(2, 7)] == expected[2:]


async def test_a_compaction_stands_in_for_the_commits_that_it_holds(table: TableBuilder) -> None:
    adds = filled(table, 4)
    compacted = table.log / f"{1:020d}.{3:020d}.compacted.json"
    compacted.write_text("".join(json.dumps(add) + "\n" for add in adds[:3]))
    for version in (1, 2, 3):
        table.commit_path(version).unlink()
    assert await paths(log_of(table), 4) == of(*adds)
    with pytest.raises(DataLoss, match="commit 1 is missing"):
        await log_of(table).load_snapshot(2)


async def test_a_damaged_checkpoint_is_passed_over_for_an_older_one(table: TableBuilder) -> None:
    adds = filled(table, 4)
    table.checkpoint(2)
    newest = table.checkpoint(4)
    newest.write_bytes(newest.read_bytes()[:200])
    assert await paths(log_of(table), 4) == of(*adds)


async def test_a_damaged_checkpoint_without_another_way_is_named(table: TableBuilder) -> None:
    filled(table, 3)
    checkpoint = table.checkpoint(3)
    checkpoint.write_bytes(b"PAR1 and no more PAR1")
    table.commit_path(1).unlink()
    with pytest.raises(CorruptLog) as caught:
        await log_of(table).load_snapshot(3)
    assert checkpoint.name in str(caught.value)
    assert str(table.folder) in str(caught.value)


async def test_a_version_that_is_not_there_yet_or_any_more_is_named(table: TableBuilder) -> None:
    filled(table, 3)
    with pytest.raises(TableError, match="no version 7: the newest is 3"):
        await log_of(table).load_snapshot(7)
    table.checkpoint(2)
    table.commit_path(0).unlink()
    with pytest.raises(DataLoss, match="version 1 can't be built: commit 0 is missing"):
        await log_of(table).load_snapshot(1)


async def test_the_deletion_vector_is_part_of_a_file_s_key(table: TableBuilder) -> None:
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    table.create(table.protocol(3, 7, **features))
    add = table.add([{"id": 1}, {"id": 2}])
    table.commit(add)
    table.commit(*table.delete_rows(add, [0]))
    for _ in ("from commits", "from the checkpoint"):
        log = log_of(table)
        (live,) = [a async for a in log.live_files(await log.load_snapshot())]
        assert live.deletion_vector is not None
        assert live.deletion_vector.cardinality == 1
        table.checkpoint()


async def test_transactions_and_domains_are_reconciled(table: TableBuilder) -> None:
    table.create({"txn": {"appId": "a", "version": 1}}, {"txn": {"appId": "b", "version": 1}})
    table.commit(
        {"txn": {"appId": "a", "version": 2}},
        {"domainMetadata": {"domain": "x", "configuration": "1", "removed": False}},
        {"domainMetadata": {"domain": "y", "configuration": "1", "removed": False}},
    )
    table.commit({"domainMetadata": {"domain": "x", "configuration": "", "removed": True}})
    table.checkpoint(1)
    snapshot = await log_of(table).load_snapshot()
    assert {a: t.version for a, t in snapshot.transactions.items()} == {"a": 2, "b": 1}
    assert list(snapshot.domains) == ["y"]


async def test_a_table_that_asks_too_much_of_readers_is_refused(tmp_path: Path) -> None:
    for name, reader, features, sentence in (
        ("feature", 3, ["deletionVectors", "quantumRows"], "feature 'quantumRows', which is not"),
        ("version", 99, None, "protocol version 99"),
    ):
        table = TableBuilder(tmp_path / name, SCHEMA)
        lists = {"readerFeatures": features, "writerFeatures": features} if features else {}
        table.create(table.protocol(reader, 7, **lists))
        with pytest.raises(UnsupportedTable, match=sentence) as caught:
            await log_of(table).load_snapshot()
        assert str(table.folder) in str(caught.value)


# Commits


async def test_a_missing_commit_is_file_not_found(table: TableBuilder) -> None:
    filled(table, 1)
    with pytest.raises(FileNotFoundError):
        await log_of(table).read_commit(2, None, None)


@pytest.mark.parametrize("last", ['{"add": {"pa', '{"add": {}', "", "  "])
async def test_a_torn_commit_is_never_read(table: TableBuilder, last: str) -> None:
    filled(table, 1)
    table.commit_path(2).write_text(last)
    with pytest.raises(CorruptLog, match="half-written") as caught:
        await log_of(table).read_commit(2, (await log_of(table).load_snapshot(1)).state, None)
    assert (caught.value.version, caught.value.path) == (2, table.commit_path(2).name)


async def test_a_commit_without_a_last_newline_is_whole(table: TableBuilder) -> None:
    filled(table, 1)
    path = table.commit_path(1)
    path.write_text(path.read_text().rstrip("\n"))
    state = (await log_of(table).load_snapshot(0)).state
    assert (await log_of(table).read_commit(1, state, None)).header.adds == 1


async def test_a_torn_commit_is_waited_for(table: TableBuilder) -> None:
    filled(table, 1)
    whole = json.dumps(table.add([{"id": 2}])) + "\n"
    path = table.commit_path(2)
    path.write_text(whole[:20])
    script = Script({})
    log = TableLog(FaultyStore(LocalStore(str(table.folder)), script), torn_commit_max_s=3600)
    state = (await log.load_snapshot(1)).state

    async def finish() -> None:
        read = ("read", f"_delta_log/{path.name}")
        await eventually_async(lambda: script.calls.count(read) >= 3, why="the commit is read")
        path.write_text(whole)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(finish)
        commit = await log.read_commit(2, state, None)
    assert commit.header.adds == 1


async def test_a_commit_that_still_grows_is_read_again(table: TableBuilder) -> None:
    """Its first line is whole, and its second comes between our reading and our looking again."""
    filled(table, 1)
    adds = [table.add([{"id": i}]) for i in (2, 3)]
    table.commit(adds[0])
    path = table.commit_path(2)

    class Growing(Script):
        def __call__(self, method: str, argument: object = "") -> None:
            super().__call__(method, argument)
            if method == "stat" and len(path.read_text().splitlines()) == 1:
                with path.open("a") as f:
                    f.write(json.dumps(adds[1]) + "\n")

    store = FaultyStore(LocalStore(str(table.folder)), Growing({}))
    state = (await log_of(table).load_snapshot(1)).state
    commit = await TableLog(store, torn_commit_max_s=3600).read_commit(2, state, None)
    assert commit.header.adds == 2


@pytest.mark.parametrize(
    ("pack", "form"),
    [
        (gzip.compress, "packed by gzip"),
        (bz2.compress, "packed by bzip2"),
        (lambda data: gzip.compress(data) + b"\n", "packed by gzip"),
        (lambda data: pa.compress(data, "zstd", asbytes=True), "packed by zstd"),
        (lambda data: data.decode().encode("utf-16"), "text in UTF-16"),
    ],
)
async def test_a_packed_commit_is_not_waited_for(
    table: TableBuilder, pack: Callable[[bytes], bytes], form: str
) -> None:
    """It is whole, and no time mends it."""
    filled(table, 2)
    path = table.commit_path(2)
    path.write_bytes(pack(path.read_bytes()))
    store = LocalStore(str(table.folder))
    with pytest.raises(CorruptLog, match=f"version 2, .*the commit is {form}, and .* plain JSON"):
        with anyio.fail_after(120):
            await TableLog(store, torn_commit_max_s=3600).read_commit(2, None, None)


async def test_a_snapshot_waits_for_a_torn_newest_commit(table: TableBuilder) -> None:
    adds = filled(table, 1)
    add = table.add([{"id": 2}])
    path = table.commit_path(2)
    path.write_text(json.dumps(add)[:20])
    with pytest.raises(CorruptLog, match=r"version 2, .*half-written"):
        await log_of(table).load_snapshot()
    assert await paths(log_of(table), 1) == of(*adds)
    script = Script({})
    log = TableLog(FaultyStore(LocalStore(str(table.folder)), script), torn_commit_max_s=3600)

    async def finish() -> None:
        read = ("read", f"_delta_log/{path.name}")
        await eventually_async(lambda: script.calls.count(read) >= 2, why="the commit is read")
        path.write_text(json.dumps(add))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(finish)
        assert await paths(log) == of(*adds, add)


async def test_a_malformed_line_is_named_by_file_and_number(table: TableBuilder) -> None:
    adds = filled(table, 1)
    lines = [json.dumps(adds[0]), '{"commitInfo": {}}', '{"add": {"path": "x"}}']
    table.commit_path(2).write_text("\n".join(lines) + "\n")
    state = (await log_of(table).load_snapshot(1)).state
    with pytest.raises(CorruptLog, match="line 3: the add action lacks its size") as caught:
        await log_of(table).read_commit(2, state, None)
    assert table.commit_path(2).name in str(caught.value)


async def test_a_large_commit_is_read_from_disk_as_from_memory(
    table: TableBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    adds = filled(table, 1)
    many = [{"add": {**adds[0]["add"], "path": f"part-{i}.parquet"}} for i in range(500)]
    table.commit(*many)
    log = log_of(table)
    state = (await log.load_snapshot(1)).state
    in_memory = await log.read_commit(2, state, None)
    monkeypatch.setattr(tailer.log.json_files, "MEMORY_BYTES_MAX", 1000)
    monkeypatch.setattr(tailer.log.json_files, "READ_CHUNK_BYTES", 777)
    on_disk = await log.read_commit(2, state, None)
    assert on_disk.header == in_memory.header
    for _ in range(2):
        assert list(on_disk.file_actions()) == list(in_memory.file_actions())


async def test_a_line_without_an_end_is_refused(
    table: TableBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(table, 1)
    monkeypatch.setattr(tailer.log.json_files, "MEMORY_BYTES_MAX", 60)  # none fits into memory
    monkeypatch.setattr(tailer.log.json_files, "LINE_BYTES_MAX", 50)
    with pytest.raises(CorruptLog, match="longer than 50 bytes"):
        await log_of(table).read_commit(1, None, None)


async def test_timestamps_rise_even_if_the_files_times_do_not(table: TableBuilder) -> None:
    table.create(timestamp_ms=1_000_000)
    table.commit(timestamp_ms=2_000_000)
    table.commit(timestamp_ms=1_500_000)
    log = log_of(table)
    state: TableState | None = None
    floor: int | None = None
    found = []
    for version in range(3):
        commit = await log.read_commit(version, state, floor)
        state, floor = commit.after, commit.timestamp_ms
        found.append(floor)
    assert found == [1_000_000, 2_000_000, 2_000_001]


async def test_the_state_before_is_that_after_where_the_commit_changes_neither(
    table: TableBuilder,
) -> None:
    filled(table, 3)
    table.checkpoint(3)
    table.commit_path(1).unlink()
    before = await log_of(table).state_before(3)
    assert before is not None
    assert before.table_id == table.table_id
    assert await log_of(table).state_before(0) is None


async def test_the_state_before_a_change_of_metadata_can_t_be_guessed(table: TableBuilder) -> None:
    filled(table, 2)
    table.commit(table.metadata(configuration={"delta.appendOnly": "true"}))
    table.checkpoint(3)
    table.commit_path(1).unlink()
    with pytest.raises(DataLoss, match="version 2 can't be built"):
        await log_of(table).state_before(3)


async def test_a_store_s_failure_comes_through(table: TableBuilder) -> None:
    filled(table, 1)
    error = OSError("disk on fire")
    store = FaultyStore(LocalStore(str(table.folder)), Script({"list": [error]}))
    with pytest.raises(OSError, match="disk on fire"):
        await TableLog(store).latest_version()


class _Vanishing(Script):
    """Has the log cleaned up between its listing and the reading of a commit."""

    def __call__(self, method: str, argument: object = "") -> None:
        if method == "read" and str(argument).endswith("1.json"):
            raise FileNotFoundError(argument)


async def test_a_commit_that_was_listed_and_is_gone_may_heal(table: TableBuilder) -> None:
    filled(table, 2)
    log = TableLog(FaultyStore(LocalStore(str(table.folder)), _Vanishing({})))
    with pytest.raises(TransientError, match=r"1\.json: listed and can't be read"):
        await log.load_snapshot()
    snapshot = await log_of(table).load_snapshot()
    with pytest.raises(TransientError, match=r"1\.json: listed and can't be read"):
        [add async for add in log.live_files(snapshot)]
