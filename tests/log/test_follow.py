"""Following a log as it grows, and noticing that it is no longer the same log."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import anyio
import pyarrow as pa
import pytest
from msgspec import structs

from tailer.changes import Offset
from tailer.delta.commit import Commit
from tailer.errors import (
    CorruptLog,
    DataLoss,
    OffsetError,
    TableError,
    TableReplaced,
    TransientError,
)
from tailer.log.follow import FollowOptions, follow_commits
from tailer.log.table import TableLog
from tailer.store.local import LocalStore
from tailer.testing.table import TableBuilder
from tests.support.faulty import FaultyStore, Script
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.anyio

SCHEMA = pa.schema([("id", pa.int64())])
HOUR = 3600.0
# Nothing but the watch can see a commit; and nothing but its writer can finish it.
PATIENT = FollowOptions(poll_min_s=HOUR, poll_max_s=HOUR)
QUICK = FollowOptions(poll_min_s=0.001, poll_max_s=0.001)


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    return make_table(tmp_path / "orders", versions=3)


def make_table(folder: Path, versions: int) -> TableBuilder:
    """A table with so many versions; only the first has a metaData action."""
    table = TableBuilder(folder, SCHEMA)
    table.create()
    for version in range(1, versions):
        table.insert([{"id": version}])
    return table


def log_of(table: TableBuilder, patience_s: float = 0.0) -> TableLog:
    return TableLog(LocalStore(str(table.folder)), torn_commit_max_s=patience_s)


async def versions(commits: AsyncGenerator[Commit, None], count: int) -> list[int]:
    with anyio.fail_after(150):
        return [(await anext(commits)).version for _ in range(count)]


async def insert_later(table: TableBuilder, value: int) -> None:
    """Commit once everyone waits."""
    await anyio.wait_all_tasks_blocked()
    table.insert([{"id": value}])


def replace_table(old: TableBuilder, versions: int) -> TableBuilder:
    """Another table under the same path, as a rename of a folder does it."""
    new = make_table(old.folder.with_name("other"), versions)
    shutil.rmtree(old.folder)
    new.folder.rename(old.folder)
    return TableBuilder(old.folder, SCHEMA, table_id=new.table_id)


async def test_commits_come_in_order_and_end_after_the_last(table: TableBuilder) -> None:
    async with aclosing(follow_commits(log_of(table), Offset(0), 2)) as commits:
        assert [commit.version async for commit in commits] == [0, 1, 2]


async def test_a_commit_is_seen_by_the_watch_alone(table: TableBuilder) -> None:
    async with aclosing(follow_commits(log_of(table), Offset(2), options=PATIENT)) as commits:
        assert await versions(commits, 1) == [2]
        for version in (3, 4, 5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(insert_later, table, version)
                assert await versions(commits, 1) == [version]


async def test_a_commit_is_seen_by_polling_where_nothing_can_be_watched(
    table: TableBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "asyncinotify", None)
    async with aclosing(follow_commits(log_of(table), Offset(2), options=QUICK)) as commits:
        assert await versions(commits, 1) == [2]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(insert_later, table, 3)
            assert await versions(commits, 1) == [3]


async def test_a_torn_commit_that_is_finished_goes_on(table: TableBuilder) -> None:
    whole = json.dumps(table.add([{"id": 3}])) + "\n"
    script = Script({})
    log = TableLog(FaultyStore(LocalStore(str(table.folder)), script), torn_commit_max_s=HOUR)
    path = table.commit_path(3)

    async def write_slowly() -> None:
        path.write_text(whole[:30])
        read = ("read", f"_delta_log/{path.name}")
        await eventually_async(lambda: read in script.calls[seen:], why="the commit is read")
        with path.open("a") as f:
            f.write(whole[30:])

    async with aclosing(follow_commits(log, Offset(2), options=PATIENT)) as commits:
        assert await versions(commits, 1) == [2]
        seen = len(script.calls)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write_slowly)
            assert await versions(commits, 1) == [3]


async def test_a_torn_commit_that_is_never_finished_is_said(table: TableBuilder) -> None:
    table.commit_path(3).write_text('{"add": {"path"')
    async with aclosing(follow_commits(log_of(table, 0.1), Offset(2))) as commits:
        assert await versions(commits, 1) == [2]
        with pytest.raises(CorruptLog, match=r"version 3.*half-written.*repair or remove it"):
            await anext(commits)


async def test_a_gap_is_named(table: TableBuilder) -> None:
    table.commit(version=5)
    async with aclosing(follow_commits(log_of(table), Offset(1))) as commits:
        assert await versions(commits, 2) == [1, 2]
        with pytest.raises(DataLoss, match=r"version 3, 0+3\.json: .*missing, though version 5"):
            await anext(commits)


async def test_a_gap_that_opens_while_waiting_is_named(table: TableBuilder) -> None:
    async with aclosing(follow_commits(log_of(table), Offset(2), options=PATIENT)) as commits:
        assert await versions(commits, 1) == [2]
        async with anyio.create_task_group() as tasks:

            async def commit_too_far() -> None:
                await anyio.wait_all_tasks_blocked()
                table.commit(version=7)

            tasks.start_soon(commit_too_far)
            with anyio.fail_after(150), pytest.raises(DataLoss, match="though version 7 exists"):
                await anext(commits)


async def test_a_start_that_was_cleaned_away_is_named(table: TableBuilder) -> None:
    table.checkpoint(2)
    table.commit_path(0).unlink()
    table.commit_path(1).unlink()
    table.insert([{"id": 3}])
    async with aclosing(follow_commits(log_of(table), Offset(1))) as commits:
        with pytest.raises(DataLoss, match=r"version 0 can't be built.*start at a newer version"):
            await anext(commits)
    async with aclosing(follow_commits(log_of(table), Offset(3))) as commits:
        assert await versions(commits, 1) == [3]


async def test_a_start_beyond_the_end_is_named(table: TableBuilder) -> None:
    async with aclosing(follow_commits(log_of(table), Offset(9))) as commits:
        with pytest.raises(TableError, match="no version 8: the newest is 2"):
            await anext(commits)


@pytest.mark.parametrize("start", [0, 2, 3])
async def test_an_offset_of_another_table_is_refused(table: TableBuilder, start: int) -> None:
    offset = Offset(start, table_id="another-id")
    async with aclosing(follow_commits(log_of(table), offset, 2)) as commits:
        with pytest.raises((OffsetError, TableReplaced)) as caught:
            await anext(commits)
    for name in ("another-id", table.table_id, str(table.folder)):
        assert name in str(caught.value)


async def test_a_table_that_was_replaced_by_a_longer_one_is_noticed(table: TableBuilder) -> None:
    """Its next commit has no metaData: nothing in it says whose it is."""
    async with aclosing(follow_commits(log_of(table), Offset(2))) as commits:
        assert await versions(commits, 1) == [2]
        new = replace_table(table, versions=6)
        with pytest.raises(TableReplaced, match=r"version 3: .*another one") as caught:
            await anext(commits)
    assert table.table_id in str(caught.value)
    assert new.table_id in str(caught.value)


async def test_a_table_that_was_replaced_while_waiting_is_noticed(table: TableBuilder) -> None:
    script = Script({})
    log = TableLog(FaultyStore(LocalStore(str(table.folder)), script))
    async with aclosing(follow_commits(log, Offset(2), options=QUICK)) as commits:
        assert await versions(commits, 1) == [2]
        new = replace_table(table, versions=3)
        async with anyio.create_task_group() as tasks:

            async def commit_later() -> None:
                seen = len(script.calls)
                await eventually_async(lambda: len(script.calls) > seen + 3, why="it polls")
                new.insert([{"id": 3}])

            tasks.start_soon(commit_later)
            with anyio.fail_after(150), pytest.raises(TableReplaced, match="another one"):
                await anext(commits)


async def test_a_table_that_was_replaced_before_the_first_commit_is_noticed(
    table: TableBuilder,
) -> None:
    """The follower has the old table's state, and no commit that it has read itself."""
    script = Script({})
    log = TableLog(FaultyStore(LocalStore(str(table.folder)), script))

    async def replace_later() -> None:
        await eventually_async(lambda: len(script.calls) > 8, why="it polls")
        replace_table(table, versions=6)

    async with (
        aclosing(follow_commits(log, Offset(3), options=QUICK)) as commits,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(replace_later)
        with anyio.fail_after(150), pytest.raises(TableReplaced, match="another one"):
            await anext(commits)


async def test_a_replaced_table_whose_snapshot_can_t_be_built_is_noticed(
    table: TableBuilder,
) -> None:
    async with aclosing(follow_commits(log_of(table), Offset(2))) as commits:
        assert await versions(commits, 1) == [2]
        new = replace_table(table, versions=6)
        new.commit_path(0).unlink()
        with pytest.raises(TableReplaced, match="can't be built to see whose it is"):
            await anext(commits)


async def test_a_new_table_s_metadata_in_the_next_commit_is_noticed(table: TableBuilder) -> None:
    table.commit(table.metadata(id="another-id"))
    async with aclosing(follow_commits(log_of(table), Offset(2))) as commits:
        assert await versions(commits, 1) == [2]
        with pytest.raises(TableReplaced, match=f"{table.table_id} and is another-id"):
            await anext(commits)


async def test_a_table_that_lost_versions_is_noticed(table: TableBuilder) -> None:
    async with aclosing(follow_commits(log_of(table), Offset(2), options=QUICK)) as commits:
        assert await versions(commits, 1) == [2]
        table.commit_path(2).unlink()
        table.commit_path(1).unlink()
        with (
            anyio.fail_after(150),
            pytest.raises(TableReplaced, match="the table went back to version 0"),
        ):
            await anext(commits)


async def test_a_table_that_is_away_is_waited_for(table: TableBuilder) -> None:
    away = table.folder.with_name("away")
    async with aclosing(follow_commits(log_of(table), Offset(2), options=QUICK)) as commits:
        assert await versions(commits, 1) == [2]
        table.folder.rename(away)
        with anyio.fail_after(150), pytest.raises(TransientError, match="the table is gone"):
            await anext(commits)
    known = Offset(2, table_id=table.table_id)
    async with aclosing(follow_commits(log_of(table), known, options=QUICK)) as commits:
        with pytest.raises(TransientError, match="version 2: the table is gone"):
            await anext(commits)
    away.rename(table.folder)
    async with aclosing(follow_commits(log_of(table), known, options=QUICK)) as commits:
        assert await versions(commits, 1) == [2]


async def test_a_log_that_was_copied_and_is_the_same_goes_on(table: TableBuilder) -> None:
    async with aclosing(follow_commits(log_of(table), Offset(2))) as commits:
        assert await versions(commits, 1) == [2]
        copy = table.folder.with_name("copy")
        shutil.copytree(table.folder, copy)
        shutil.rmtree(table.folder)
        copy.rename(table.folder)
        table.insert([{"id": 3}])
        assert await versions(commits, 1) == [3]


async def test_a_log_that_was_cleaned_behind_the_offset_goes_on(table: TableBuilder) -> None:
    async with aclosing(follow_commits(log_of(table), Offset(2))) as commits:
        assert await versions(commits, 1) == [2]
        table.insert([{"id": 3}])
        table.checkpoint()
        for version in range(3):
            table.commit_path(version).unlink()
        assert await versions(commits, 1) == [3]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(insert_later, table, 4)
            assert await versions(commits, 1) == [4]


async def test_the_newest_version_is_told_when_it_becomes_known(table: TableBuilder) -> None:
    told: list[int] = []
    commits = follow_commits(log_of(table), Offset(0), options=PATIENT, on_newest=told.append)
    async with aclosing(commits):
        assert await versions(commits, 1) == [0]
        assert told == [2], "the backlog is known from the first commit on"
        assert await versions(commits, 2) == [1, 2]
        table.insert([{"id": 3}])
        assert await versions(commits, 1) == [3]
    assert told == [2, 3]


async def test_who_is_at_the_end_of_the_log_is_told_so(table: TableBuilder) -> None:
    """A feed that failed knows by it that nothing is unread."""
    told: list[int] = []
    commits = follow_commits(log_of(table), Offset(3), options=PATIENT, on_newest=told.append)
    async with aclosing(commits), anyio.create_task_group() as tasks:
        tasks.start_soon(versions, commits, 1)
        await eventually_async(lambda: told == [2], why="the newest version is told")
        table.insert([{"id": 3}])
    assert told == [2, 3]


async def test_the_timestamp_floor_of_the_offset_holds(table: TableBuilder) -> None:
    table.commit(timestamp_ms=1_000_000)
    start = Offset(3, timestamp_floor_ms=2_000_000)
    for offset, expected in (
        (start, 2_000_001),
        (structs.replace(start, timestamp_floor_ms=None), 10**6),
    ):
        async with aclosing(follow_commits(log_of(table), offset)) as commits:
            assert (await anext(commits)).timestamp_ms == expected
