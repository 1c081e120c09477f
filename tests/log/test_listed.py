"""A read of versions that are there, on this machine: the log is listed once, and each small file
of it is read once, but only as it was listed."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import anyio
import pyarrow as pa
import pytest

from tailer.changes import Offset
from tailer.delta.commit import Commit
from tailer.delta.segment import format_commit_name
from tailer.errors import TableError, TableReplaced
from tailer.log.follow import follow_backlog, follow_commits
from tailer.log.listed import ListedLog, list_once
from tailer.log.table import TableLog
from tailer.store import FileStatus
from tailer.store.local import LocalStore
from tailer.testing.table import TableBuilder

pytestmark = pytest.mark.anyio

SCHEMA = pa.schema([("id", pa.int64())])
VERSIONS = 4


class CountingStore(LocalStore):
    """Counts listings, and the reads of each file."""

    def __init__(self, table: Path) -> None:
        super().__init__(str(table))
        self.listings = 0
        self.reads = Counter[str]()

    def _scan_folder(self, folder: str, start_after: str) -> Sequence[FileStatus]:
        self.listings += 1
        return super()._scan_folder(folder, start_after)

    def read_here(
        self, location: str, offset: int = 0, length: int | None = None
    ) -> tuple[bytes, FileStatus]:
        self.reads[Path(location).name] += 1
        return super().read_here(location, offset, length)


def written(folder: Path) -> TableBuilder:
    """A table whose versions after the first have a row each."""
    made = TableBuilder(folder, SCHEMA)
    made.create()
    for i in range(VERSIONS):
        made.insert([{"id": i}])
    return made


async def followed(log: TableLog, first: int, last: int) -> list[Commit]:
    return [commit async for commit in follow_commits(log, Offset(first), last)]


async def test_a_bounded_read_lists_once_and_reads_each_commit_once(tmp_path: Path) -> None:
    store = CountingStore(written(tmp_path / "orders").folder)
    log = await list_once(TableLog(store))
    end = await log.load_snapshot()
    assert isinstance(log, ListedLog)
    await log.prefetch_start(1)
    found = await followed(log, 1, end.version)
    before = await log.load_snapshot(0)
    assert [add async for add in log.live_files(before)] == []
    assert [c.version for c in found] == [1, 2, 3, 4]
    assert store.listings == 1
    # The state before the first version is made of version 0 by itself.
    assert store.reads == {format_commit_name(v): 1 + (v == 0) for v in range(VERSIONS + 1)}


async def test_a_commit_that_changed_after_it_was_read_is_read_again(
    tmp_path: Path,
) -> None:
    made = written(tmp_path / "orders")
    log = await list_once(TableLog(LocalStore(str(made.folder))))
    await log.load_snapshot()
    path = made.commit_path(3)
    text = path.read_text()
    path.unlink()
    path.write_text(text + "\n")
    found = await followed(log, 1, VERSIONS)
    assert [c.version for c in found] == [1, 2, 3, 4]
    assert found[2].size == path.stat().st_size


@pytest.mark.parametrize("read", [0, VERSIONS])
async def test_a_table_that_was_replaced_after_the_listing_is_not_mixed_with_the_old_one(
    tmp_path: Path, read: int
) -> None:
    folder = tmp_path / "orders"
    written(folder)
    log = await list_once(TableLog(LocalStore(str(folder))))
    old = await log.load_snapshot(read)  # which keeps its files
    shutil.rmtree(folder)
    written(folder)
    new = await log.load_snapshot(1)
    assert new.state.table_id != old.state.table_id
    found: list[Commit] = []
    with suppress(TableReplaced):  # where an old file was kept, this is what is said
        found = await followed(log, 2, VERSIONS)
    assert len(found) in {0, VERSIONS - 1}
    assert {c.after.table_id for c in found} <= {new.state.table_id}


async def test_what_was_cleaned_up_after_the_listing_is_listed_again(tmp_path: Path) -> None:
    made = written(tmp_path / "orders")
    log = await list_once(TableLog(LocalStore(str(made.folder))))
    made.checkpoint()
    made.commit_path(0).unlink()
    assert (await log.load_snapshot(VERSIONS)).version == VERSIONS
    with pytest.raises(TableError, match="commit 0 is missing"):
        await log.load_snapshot(VERSIONS - 1)


class GrowingStore(LocalStore):
    """A writer adds to version 3 whenever it was read: it is never whole."""

    def read_here(
        self, location: str, offset: int = 0, length: int | None = None
    ) -> tuple[bytes, FileStatus]:
        found = super().read_here(location, offset, length)
        if location.endswith(format_commit_name(3)):
            with self.path(location).open("a") as file:
                file.write("\n")
        return found


@pytest.mark.parametrize("last", [2, 3, 4])
async def test_a_commit_that_changes_after_it_was_read_does_not_count(
    tmp_path: Path, last: int
) -> None:
    store = GrowingStore(str(written(tmp_path / "orders").folder))
    log = TableLog(store)
    first = await log.read_commit(1, (await log.load_snapshot(0)).state, None)
    found = log.read_commits_blocking(first, last - 1, store)
    assert [commit.version for commit in found] == [2]


async def test_a_folder_that_rests_is_listed_once(tmp_path: Path) -> None:
    made = written(tmp_path / "orders")
    store = CountingStore(made.folder)
    log = TableLog(store)
    for _ in range(2):  # it may change within the same tick
        await log.list_files()
    assert store.listings == 2
    os.utime(made.folder / "_delta_log", (1_000_000_000, 1_000_000_000))
    for start_after in ("", "", format_commit_name(2), format_commit_name(2)):
        names = [file.name for file in await log.list_files(start_after)]
        assert names == [
            format_commit_name(v) for v in range(3 if start_after else 0, VERSIONS + 1)
        ]
    assert store.listings == 4
    made.insert([{"id": 9}])
    assert [file.version for file in await log.list_files(format_commit_name(2))] == [3, 4, 5]


async def test_a_backup_that_is_unpacked_over_a_log_hides_no_version(tmp_path: Path) -> None:
    """The folder has the time of the backup then, and is not what it was at that time."""
    made = written(tmp_path / "orders")
    folder = made.folder / "_delta_log"
    os.utime(folder, (1_000_000_000, 1_000_000_000))
    log = TableLog(LocalStore(str(made.folder)))
    assert await log.latest_version() == VERSIONS
    shutil.copytree(made.folder, tmp_path / "backup")
    made.insert([{"id": 9}])
    shutil.copytree(tmp_path / "backup", made.folder, dirs_exist_ok=True)
    assert folder.stat().st_mtime == 1_000_000_000
    assert await log.latest_version() == VERSIONS + 1


async def test_a_feed_that_waits_holds_no_listing(tmp_path: Path) -> None:
    """One of 10,000 files takes 4 MB: of 500 feeds, 2 GB."""
    made = written(tmp_path / "orders")
    os.utime(made.folder / "_delta_log", (1_000_000_000, 1_000_000_000))
    log = TableLog(LocalStore(str(made.folder)))
    waiting = anyio.Event()

    async def run() -> None:
        offset = Offset(VERSIONS + 1)
        async for _ in follow_backlog(log, offset, on_wait=lambda _: waiting.set()):
            raise AssertionError

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await waiting.wait()
            await anyio.wait_all_tasks_blocked()
            assert log._rest is None
            tasks.cancel_scope.cancel()
