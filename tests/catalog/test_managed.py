"""Tables with the feature "catalogManaged": their versions are what the catalog has ratified."""

from __future__ import annotations

import json
import time
from contextlib import aclosing
from functools import partial

import anyio
import pytest

from tailer.changes import Offset
from tailer.errors import DataLoss, TableError, TransientError
from tailer.log.follow import FollowOptions, follow_commits
from tailer.log.table import TableLog
from tailer.log.times import version_at_or_after
from tailer.storage import open_store
from tailer.testing.table import TableBuilder
from tests.catalog.reading import ids, newest_version, read_table
from tests.catalog.server import TOKEN, CatalogServer
from tests.catalog.writer import SCHEMA, ManagedTable
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.anyio

QUICK = FollowOptions(poll_min_s=0.01, poll_max_s=0.02)


async def test_versions_are_read_where_they_are_published_and_where_they_are_staged(
    table: ManagedTable,
) -> None:
    for _ in range(5):
        table.commit()
    table.publish()
    table.publish()
    assert ids(await read_table(table.address, 1, 5)) == [1, 2, 3, 4, 5]


async def test_what_is_not_ratified_is_not_read(table: ManagedTable) -> None:
    table.commit("ratified")
    loser = table.stage(1, "lost")
    assert table.ratify(loser) == 409
    table.stage(2, "staged alone")
    staged = table.log / "_staged_commits" / loser.name
    (table.log / f"{2:020d}.json").write_bytes(staged.read_bytes())  # by path, past the catalog
    (table.log / f"{2:020d}.checkpoint.parquet").write_bytes(b"not even a checkpoint")
    assert await newest_version(table.address) == 1
    store = open_store(table.address)
    log = TableLog(store)
    with pytest.raises(FileNotFoundError):
        await log.read_commit(2, (await log.load_snapshot(1)).state, None)
    await store.aclose()
    assert [event["v"] for event in await read_table(table.address, 1, 1)] == ["ratified"]


async def test_the_feature_under_its_older_name_is_the_same(server: CatalogServer) -> None:
    table = ManagedTable(server.endpoint, TOKEN, feature="catalogOwned-preview").create()
    table.commit()
    assert ids(await read_table(table.address, 1, 1)) == [1]
    with pytest.raises(TableError, match="'catalogOwned-preview', which can't be read by path"):
        await read_table(str(table.root), 0, 0)


async def test_a_version_is_the_same_before_and_after_it_is_published(table: ManagedTable) -> None:
    for _ in range(3):
        table.commit()
    before = await read_table(table.address, 1, 3)
    table.publish(tell=False)
    assert await read_table(table.address, 1, 3) == before
    table.publish(clean=True)
    assert await read_table(table.address, 1, 3) == before
    table.publish(clean=True)
    after = await read_table(table.address, 1, 3)
    assert json.dumps(after, default=str) == json.dumps(before, default=str)
    assert len({event["_event_id"] for event in after}) == 3


async def test_publishing_changes_nothing_for_a_reader_that_has_an_older_answer(
    table: ManagedTable,
) -> None:
    for _ in range(3):
        table.commit()
    store = open_store(table.address)
    log = TableLog(store)
    names = [f"_delta_log/{version:020d}.json" for version in range(4)]
    before = [(await store.stat(name)).tag for name in names]
    table.publish(tell=False)
    listed = [file.name for file in await log.list_files()]
    assert [f"_delta_log/{name}" for name in listed] == names  # once each, published or staged
    table.publish(clean=True)
    assert [(await store.stat(name)).tag for name in names] == before
    assert [(await store.read(name))[1].tag for name in names] == before
    found = await store.read_many([(name, 100_000) for name in names])
    assert [one and one[1].tag for one in found] == before
    assert len(set(before)) == 4
    await store.aclose()


async def test_a_follower_takes_each_version_once_while_they_are_published(
    table: ManagedTable,
) -> None:
    store = open_store(table.address)
    found: list[int] = []

    def is_taken(version: int) -> bool:
        return len(found) > version

    async def take() -> None:
        async with aclosing(follow_commits(TableLog(store), Offset(0), 9, QUICK)) as commits:
            async for commit in commits:
                found.append(commit.version)  # noqa: PERF401 - others look at it meanwhile

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take)
        for version in range(1, 10):
            await anyio.to_thread.run_sync(table.commit)
            if version % 3 == 0:
                await anyio.to_thread.run_sync(table.publish)
            await eventually_async(partial(is_taken, version))
    assert found == [*range(10)]
    await store.aclose()


async def test_a_late_catalog_hides_versions_and_takes_none_back(
    managed: ManagedTable, server: CatalogServer
) -> None:
    for _ in range(4):
        managed.commit()
    store = open_store(managed.address)
    log = TableLog(store)
    assert await log.latest_version() == 4
    server.late = 2
    assert await newest_version(managed.address) == 2
    assert await log.latest_version() == 4  # what was ratified stays so
    assert (await log.read_commit(4, (await log.load_snapshot(3)).state, None)).version == 4
    await store.aclose()


async def test_what_a_catalog_has_named_is_read_while_it_is_away(
    managed: ManagedTable, server: CatalogServer
) -> None:
    for _ in range(3):
        managed.commit()
    store = open_store(managed.address)
    log = TableLog(store)
    state = (await log.load_snapshot(3)).state
    server.away = None
    assert (await log.read_commit(3, state, None)).version == 3
    with pytest.raises(TransientError, match="503"):
        await log.read_commit(4, state, None)
    server.away = 2  # then it is back: two attempts that failed are nobody's concern
    with pytest.raises(FileNotFoundError):
        await log.read_commit(4, state, None)
    await store.aclose()


async def test_a_version_that_is_said_to_be_published_and_is_not_is_waited_for(
    managed: ManagedTable,
) -> None:
    for _ in range(3):
        managed.commit()
    managed.publish()
    managed.backfilled(2)  # a lie
    with pytest.raises(TransientError, match=r"version 2.* published"):
        await read_table(managed.address, 1, 3)
    managed.publish()
    assert ids(await read_table(managed.address, 1, 3)) == [1, 2, 3]


async def test_an_answer_with_a_gap_is_asked_for_again(
    managed: ManagedTable, server: CatalogServer
) -> None:
    for _ in range(3):
        managed.commit()
    entry = server.schemas["sales"]["orders"]
    kept = entry.commits.pop(2)
    with pytest.raises(TransientError, match="gap"):
        await newest_version(managed.address)
    entry.commits[2] = kept
    assert await newest_version(managed.address) == 3


async def test_a_commit_with_a_name_outside_of_its_folder_is_refused(
    managed: ManagedTable, server: CatalogServer
) -> None:
    managed.commit()
    server.schemas["sales"]["orders"].commits[1]["file-name"] = "../../../etc/passwd"
    with pytest.raises(TableError, match="no name of a staged commit"):
        await newest_version(managed.address)


async def test_versions_that_were_cleaned_up_are_lost(table: ManagedTable) -> None:
    for _ in range(3):
        table.commit()
    table.publish()
    table.publish()
    for version in (0, 1):
        (table.log / f"{version:020d}.json").unlink()
    with pytest.raises(DataLoss):
        await read_table(table.address, 1, 3)


async def test_time_travel_counts_the_times_in_the_commits(table: ManagedTable) -> None:
    staged = [table.commit() for _ in range(4)]
    table.publish()
    store = open_store(table.address)
    log = TableLog(store)
    for one in staged:
        assert await version_at_or_after(log, one.timestamp_ms) == one.version
    assert (await log.load_snapshot(2)).version == 2
    await store.aclose()


async def test_a_table_whose_catalog_no_longer_manages_it_goes_on_by_path(
    managed: ManagedTable, server: CatalogServer
) -> None:
    managed.commit()
    protocol = {
        "minReaderVersion": 3, "minWriterVersion": 7,
        "readerFeatures": ["v2Checkpoint", "vacuumProtocolCheck"],
        "writerFeatures": ["v2Checkpoint", "vacuumProtocolCheck", "inCommitTimestamp",
                           "changeDataFeed"],
    }  # fmt: skip
    managed.commit("", {"protocol": protocol})
    managed.publish()
    managed.publish(clean=True)
    store = open_store(managed.address)
    async with aclosing(follow_commits(TableLog(store), Offset(1), None, QUICK)) as commits:
        assert [(await anext(commits)).version for _ in range(2)] == [1, 2]
        server.schemas["sales"]["orders"].properties = {}
        staged = managed.stage(3)
        path = managed.log / "_staged_commits" / staged.name
        path.rename(managed.log / f"{3:020d}.json")
        with anyio.fail_after(100):
            assert (await anext(commits)).version == 3
    await store.aclose()


async def test_a_table_that_becomes_managed_is_followed_on(
    server: CatalogServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = ManagedTable(server.endpoint, TOKEN, feature="deletionVectors").create()
    table.commit_by_path()
    clock = [time.monotonic()]
    store = open_store(table.address)
    monkeypatch.setattr(store, "_clock", lambda: clock[0])
    async with aclosing(follow_commits(TableLog(store), Offset(0), None, QUICK)) as commits:
        assert [(await anext(commits)).version for _ in range(2)] == [0, 1]
        table.become_managed()
        table.commit()
        table.publish()
        assert [(await anext(commits)).version for _ in range(2)] == [2, 3]
        table.commit()
        table.commit()
        early = table.stage(6, "not ratified")
        assert table.publish() == 4
        clock[0] += 60  # the catalog is asked now and then about a table that it does not manage
        with anyio.fail_after(100):
            assert [(await anext(commits)).version for _ in range(2)] == [4, 5]
        with anyio.move_on_after(0.2):
            raise AssertionError(await anext(commits))
        assert table.ratify(early) == 200
    await store.aclose()
    assert ids(await read_table(table.address, 1, 6)) == [1, 2, 3, 4, 5, 6]


async def test_a_checkpoint_of_what_is_published_is_read_while_later_versions_are_staged(
    table: ManagedTable,
) -> None:
    for _ in range(6):
        table.commit()
    for _ in range(4):
        table.publish(clean=True)
    TableBuilder(table.root, SCHEMA).checkpoint(3)
    for version in range(3):  # of them the checkpoint alone is left
        (table.log / f"{version:020d}.json").unlink()
    store = open_store(table.address)
    log = TableLog(store)
    for version in range(3, 7):
        snapshot = await log.load_snapshot(version)
        files = sorted([add.path async for add in log.live_files(snapshot)])
        assert [int(path.split("-")[1]) for path in files] == [*range(1, version + 1)]
    assert (await log.load_snapshot()).version == 6
    await store.aclose()
    assert ids(await read_table(table.address, 4, 6)) == [4, 5, 6]
    with pytest.raises(DataLoss):
        await read_table(table.address, 2, 6)


async def test_by_its_path_it_is_refused_with_the_address_to_use(table: ManagedTable) -> None:
    table.commit()
    table.publish()
    with pytest.raises(TableError, match=r"'catalogManaged'.*uc://catalog\.schema\.table"):
        await read_table(str(table.root), 1, 1)
    assert await newest_version(str(table.root)) == 1  # names of files alone


async def test_another_table_of_the_name_is_not_taken_for_the_same(
    managed: ManagedTable, server: CatalogServer
) -> None:
    managed.commit()
    store = open_store(managed.address)
    async with aclosing(follow_commits(TableLog(store), Offset(0), None, QUICK)) as commits:
        assert [(await anext(commits)).version for _ in range(2)] == [0, 1]
        other = ManagedTable(server.endpoint, managed.token).create()
        for _ in range(3):
            other.commit()
        with pytest.raises(TableError, match="replaced by another one"):
            await anext(commits)
    await store.aclose()
