"""Shared tables, read through the reference server, against the very tables on the disk."""

from __future__ import annotations

import json
import os
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from tailer.changes import ChangeFile, Offset
from tailer.errors import (
    ConfigError,
    CorruptLog,
    DataLoss,
    TableError,
    TableReplaced,
    TransientError,
)
from tailer.feed.rows.fetch import fetch_file
from tailer.log.follow import follow_commits
from tailer.log.starts import find_start_offset
from tailer.log.table import TableLog
from tailer.log.times import version_at_or_after, version_at_or_before
from tailer.plan.rules import ChangeSource, plan_changes, plan_rewrite, plan_snapshot
from tailer.store.local import LocalStore
from tailer.store.shared.store import SharingStore
from tests.sharing.reference_server import serving
from tests.sharing.shared import (
    NAME,
    golden_table,
    insert,
    orders,
    read_shared,
    read_store,
    shared_store,
)

pytestmark = pytest.mark.anyio

# Each with its whole log, so that the reference server can tell of it.
GOLDEN = (
    "cdf_dv",
    "cdf_ict_midway",
    "cdf_overwrite_schema",
    "cdf_partition_types",
    "cdf_replaced",
    "cdf_restore_dv",
    "cdf_schema_evolution",
    "cdf_times_backwards",
    "cdf_toggled",
    "cdf_types",
    "mapping_id_cdf",
    "mapping_name_cdf",
    "mapping_upgraded",
    "reorg_purge",
    "replace_where",
    "toggled",
    "type_widening_cdf",
    "variant",
)


def plain(events: list[dict[str, Any]]) -> list[str]:
    """Events as they can be compared between two ways of reading: without their ids."""
    kept = [{k: v for k, v in event.items() if k != "_event_id"} for event in events]
    return [json.dumps(event, default=repr) for event in kept]


def untimed(events: list[dict[str, Any]]) -> list[str]:
    """Without the time, too: a server does not tell that of a version without data changes."""
    return plain([{k: v for k, v in e.items() if k != "_commit_timestamp"} for e in events])


def ids(events: list[dict[str, Any]]) -> list[str]:
    return [event["_event_id"] for event in events]


async def direct(table: Path, first: int | Offset, source: ChangeSource = "auto") -> list[str]:
    store = LocalStore(str(table))
    last = await TableLog(store).latest_version()
    return plain(await read_store(store, first, last, source))


async def newest(table: Path) -> int:
    return await TableLog(LocalStore(str(table))).latest_version()


@pytest.mark.parametrize("name", GOLDEN)
async def test_a_shared_table_has_the_tables_own_changes(name: str, tmp_path: Path) -> None:
    """In windows of three versions, so that states are carried from one to the next."""
    table = golden_table(name, tmp_path)
    expected = await direct(table, 0)
    assert expected
    with serving({NAME: table}) as server:
        profile = server.profile(tmp_path)
        last = await newest(table)
        found = await read_shared(profile, 0, last, versions_per_request=3)
        assert plain(found) == expected
        if name in ("cdf_types", "cdf_overwrite_schema", "cdf_partition_types", "replace_where"):
            server.faults.only_parquet = True
            older = await read_shared(profile, 0, last, versions_per_request=3)
            assert ids(older) == ids(found), "they are made of the files' own ids"
            assert plain(older) == expected


@pytest.mark.parametrize(
    "name", ["cdf_restore_dv", "mapping_name_cdf", "cdf_overwrite_schema", "rowtracking_cdf"]
)
async def test_a_shared_table_can_be_derived_from_its_files(name: str, tmp_path: Path) -> None:
    table = golden_table(name, tmp_path)
    expected = await direct(table, 0, "derived")
    with serving({NAME: table}) as server:
        last = await newest(table)
        found = await read_shared(server.profile(tmp_path), 0, last, change_source="derived")
        assert server.seen("changes") == []
    if "rowtracking" in name:  # nothing says that a commit preserved the ids: rows pair by value
        expected = [e.replace("update_preimage", "delete") for e in expected]
        expected = [e.replace("update_postimage", "insert") for e in expected]
        assert sorted(plain(found)) == sorted(expected)
    else:
        assert plain(found) == expected


@pytest.mark.parametrize("name", ["cdf_restore_dv", "mapping_name_cdf", "cdf_overwrite_schema"])
async def test_a_read_may_begin_at_any_version(name: str, tmp_path: Path) -> None:
    """The schema of the version before comes from another request than the changes."""
    table = golden_table(name, tmp_path)
    last = await newest(table)
    with serving({NAME: table}) as server:
        profile = server.profile(tmp_path)
        for first in range(1, last + 1, 2):
            assert plain(await read_shared(profile, first, last)) == await direct(table, first)


@pytest.mark.parametrize("name", ["cdf_restore_dv", "cdf_partition_types", "mapping_id"])
async def test_a_snapshot_of_any_version_has_the_tables_own_rows(name: str, tmp_path: Path) -> None:
    table = golden_table(name, tmp_path)
    with serving({NAME: table}) as server:
        store = shared_store(server.profile(tmp_path))
        for version in range(await newest(table) + 1):
            start = Offset(version, snapshot=True)
            found = await read_store(store, start, version)
            own = await read_store(LocalStore(str(table)), start, version)
            assert sorted(untimed(found)) == sorted(untimed(own))
        await store.aclose()


async def test_a_table_is_asked_for_in_windows_and_what_lies_beyond_is_dropped(
    tmp_path: Path,
) -> None:
    table = orders(tmp_path / "orders", versions=8)
    with serving({NAME: table.folder}) as server:
        server.faults.ignore_ending_version = True
        found = await read_shared(server.profile(tmp_path), 1, 7, versions_per_request=3)
        asked = [(r.query["startingVersion"], r.query["endingVersion"])
                 for r in server.seen("changes$")]  # fmt: skip
    assert [e["id"] for e in found] == [1, 2, 3, 4, 5, 6, 7]
    assert asked[-3:] == [("1", "3"), ("4", "6"), ("7", "7")]


@pytest.mark.parametrize("name", ["cdf_types", "cdf_overwrite_schema"])
async def test_a_server_that_tells_no_properties_is_read_by_what_it_answers(
    name: str, tmp_path: Path
) -> None:
    table = golden_table(name, tmp_path)
    with serving({NAME: table}) as server:
        server.faults.only_parquet = server.faults.omit_configuration = True
        found = await read_shared(server.profile(tmp_path), 0, await newest(table))
        assert plain(found) == await direct(table, 0)


async def test_ids_are_the_same_in_every_run_and_window(tmp_path: Path) -> None:
    table = golden_table("cdf_dv", tmp_path)
    last = await newest(table)
    with serving({NAME: table}) as server:
        profile = server.profile(tmp_path)
        found = [await read_shared(profile, 0, last, versions_per_request=n) for n in (1, 4, 100)]
    assert ids(found[0]) == ids(found[1]) == ids(found[2])
    assert plain(found[0]) == plain(found[1]) == plain(found[2])
    assert len(set(ids(found[0]))) == len(found[0])


async def test_times_are_looked_up_by_the_server(tmp_path: Path) -> None:
    table = orders(tmp_path / "orders")
    zero = 1_767_225_600_000
    with serving({NAME: table.folder}) as server:
        store = shared_store(server.profile(tmp_path))
        log = TableLog(store)
        assert await version_at_or_after(log, zero + 30_000) == 1
        assert await version_at_or_before(log, zero + 130_000) == 2
        assert await version_at_or_before(log, zero * 2) == 3
        with pytest.raises(TableError, match="no version is at or after 2"):
            await version_at_or_after(log, zero * 2)
        with pytest.raises(TableError, match="at or before 2025"):
            await version_at_or_before(log, zero - 1)
        assert (await find_start_offset(log, "earliest")).version == 0
        server.faults.history = False
        with pytest.raises(TableError, match="history sharing is not enabled"):
            await version_at_or_after(log, zero)
        await store.aclose()


# Files and feeds that end


async def test_a_feed_is_read_up_to_where_it_ends(tmp_path: Path) -> None:
    """A window over the end of the feed is refused as a whole, its beginning is not."""
    table = orders(tmp_path / "orders")
    off = {"metaData": {**table.metadata()["metaData"], "configuration": {}}}
    table.commit(off, timestamp_ms=1_767_225_600_000 + 4 * 60_000)
    insert(table, 5)
    with serving({NAME: table.folder}) as server:
        server.faults.streaming = False
        profile = server.profile(tmp_path)
        found = await read_shared(profile, 0, 3, change_source="cdf")
        assert [e["id"] for e in found] == [1, 2, 3]
        with pytest.raises(DataLoss, match="no change data at 4"):
            await read_shared(profile, 0, 5, change_source="cdf")
        server.faults.streaming = True
        found = await read_shared(profile, 0, 5)
        assert [e["id"] for e in found] == [1, 2, 3, 5]


async def test_nothing_is_derived_from_change_data_alone(tmp_path: Path) -> None:
    table = golden_table("cdf_restore_dv", tmp_path)
    with serving({NAME: table}) as server:
        store = shared_store(server.profile(tmp_path), change_source="cdf")
        log = TableLog(store)
        last = await log.latest_version()
        async with aclosing(follow_commits(log, Offset(0), last)) as commits:
            found = [commit async for commit in commits if commit.header.cdcs]
        with pytest.raises(TableError, match="nothing can be derived"):
            plan_rewrite(found[0], {})
        await store.aclose()


async def test_a_store_gives_what_its_feed_asks_for(tmp_path: Path) -> None:
    """Also where another feed of the same program asked for something else before."""
    table = golden_table("cdf_restore_dv", tmp_path)
    with serving({NAME: table}) as server:
        store = shared_store(server.profile(tmp_path))
        last = await newest(table)
        sources: tuple[ChangeSource, ...] = ("cdf", "derived", "auto")
        for source in sources:
            found = await read_store(store, 0, last, source)
            assert plain(found) == await direct(table, 0, source)
        await store.aclose()


# Files


def read_in_small_ranges(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Have files of more than two such ranges read as large ones are."""
    monkeypatch.setattr("tailer.store.https.WHOLE_BYTES_MAX", 2 * size)
    monkeypatch.setattr("tailer.store.https._TAIL_BYTES", size)
    monkeypatch.setattr("tailer.store.ranged._WINDOW_BYTES", size)


@pytest.mark.parametrize(
    ("name", "source"), [("cdf_partition_types", "auto"), ("cdf_restore_dv", "derived")]
)
async def test_urls_that_expire_are_asked_for_again(
    name: str, source: ChangeSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In mid-read: files are read in many ranges, and each URL serves two of them."""
    read_in_small_ranges(monkeypatch, 500)
    table = golden_table(name, tmp_path)
    last = await newest(table)
    expected = await direct(table, 0, source)
    with serving({NAME: table}) as server:
        server.faults.requests_per_url = 2
        found = await read_shared(server.profile(tmp_path), 0, last, change_source=source)
        assert plain(found) == expected
        asked = server.seen("query$" if source == "derived" else "changes$")
        again = [r for r in asked if (r.query or r.body) == (asked[-1].query or asked[-1].body)]
        assert len(again) > 1, "the same range was asked for again"


async def test_urls_of_a_snapshot_are_renewed_by_its_refresh_token(tmp_path: Path) -> None:
    """The table has moved on meanwhile, and shares no history."""
    table = orders(tmp_path / "orders")
    with serving({NAME: table.folder}) as server:
        server.faults.history = False
        store = shared_store(server.profile(tmp_path))
        log = TableLog(store)
        snapshot = await log.load_snapshot()
        adds = [add async for add in log.live_files(snapshot)]
        insert(table, 4)
        for key in server.urls:
            server.urls[key] = server.urls[key][0], 0
        for add in adds:
            with await store.open(add.path, add.size) as file:
                assert file.size() == add.size
        assert [r.body for r in server.seen("query$")][-1] == {
            "refreshToken": "refresh-3",
            "includeRefreshToken": True,
        }
        await store.aclose()


async def test_a_url_that_ends_soon_is_renewed_before_it_is_used(tmp_path: Path) -> None:
    table = orders(tmp_path / "orders")
    with serving({NAME: table.folder}) as server:
        store = shared_store(server.profile(tmp_path))
        store._files._clock = lambda: 4_102_444_799.0
        before = len(server.seen("changes$"))
        found = await read_store(store, 3, 3)
        assert [e["id"] for e in found] == [3]
        assert len(server.seen("changes$")) > before + 1
        await store.aclose()


@pytest.mark.parametrize(
    ("faults", "kind", "words"),
    [
        ({"file_status": 403}, TableError, "refuses a URL that the sharing server has just"),
        ({"file_status": 404}, DataLoss, "the data file is gone"),
        ({"file_status": 503}, TransientError, "answered 503"),
        ({"file_status": 429}, TransientError, "answered 429"),
        ({"file_status": 302}, TableError, "from redirect to redirect"),
        ({"file_status": 418}, TableError, "answered 418"),
    ],
)
async def test_a_file_that_can_not_be_had_is_named(
    faults: dict[str, Any], kind: type[Exception], words: str, tmp_path: Path
) -> None:
    table = orders(tmp_path / "orders")
    with serving({NAME: table.folder}) as server:
        for fault, value in faults.items():
            setattr(server.faults, fault, value)
        with pytest.raises((kind, ConfigError), match=words) as caught:
            await read_shared(server.profile(tmp_path), 1, 1)
    assert "X-Amz-Signature" not in str(caught.value)


async def test_a_server_of_files_without_ranges_serves_small_files(tmp_path: Path) -> None:
    table = golden_table("cdf_dv", tmp_path)
    with serving({NAME: table}) as server:
        server.faults.byte_ranges = False
        found = await read_shared(server.profile(tmp_path), 0, await newest(table))
    assert plain(found) == await direct(table, 0)


async def test_a_file_that_changes_is_not_read_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_in_small_ranges(monkeypatch, 50)
    table = orders(tmp_path / "orders")
    with serving({NAME: table.folder}) as server:
        server.faults.changing_etag = True
        with pytest.raises(CorruptLog, match="changed while it was read"):
            await read_shared(server.profile(tmp_path), 1, 1)


async def test_a_file_of_another_length_is_refused(tmp_path: Path) -> None:
    table = orders(tmp_path / "orders")
    with serving({NAME: table.folder}) as server:
        store = shared_store(server.profile(tmp_path))
        log = TableLog(store)
        (first, *_) = [add async for add in log.live_files(await log.load_snapshot())]
        with pytest.raises(CorruptLog, match=f"has {first.size} bytes, and the log says 7"):
            await store.open(first.path, 7)
        with pytest.raises(FileNotFoundError):
            await store.open("/etc/passwd", None)
        await store.aclose()


@pytest.mark.parametrize("source", ["auto", "cdf", "derived"])
async def test_what_one_store_planned_another_can_read(
    source: ChangeSource, tmp_path: Path
) -> None:
    """As on a cluster: one machine reads the log, others the files."""
    table = golden_table("cdf_restore_dv", tmp_path)
    with serving({NAME: table}) as server:
        profile = server.profile(tmp_path)
        planner = shared_store(profile, change_source=source)
        files = await planned(planner, source)
        assert len(files) > 4
        reader = shared_store(profile, change_source=source)
        for file in files:
            with (await fetch_file(reader, file)).source as opened:
                assert opened.size() == file.size
        await reader.aclose()
        await planner.aclose()


async def planned(store: SharingStore, source: ChangeSource) -> list[ChangeFile]:
    log, found = TableLog(store), []
    last = await log.latest_version()
    async with aclosing(follow_commits(log, Offset(0), last)) as commits:
        async for commit in commits:
            if source == "derived":
                rewrite = plan_rewrite(commit, {})
                found += [*rewrite.leaving, *rewrite.coming]
            elif commit.version:
                found += list(plan_changes(commit))
    snapshot = await log.load_snapshot()
    async with aclosing(log.live_files(snapshot)) as adds:
        found += [plan_snapshot(add, last, 0, snapshot.state) async for add in adds]
    return found


# The log


async def test_the_version_is_not_asked_for_more_often_than_allowed(tmp_path: Path) -> None:
    table = orders(tmp_path / "orders")
    with serving({NAME: table.folder}) as server:
        store = shared_store(server.profile(tmp_path), poll_interval_s=3600.0)
        log = TableLog(store)
        assert await log.latest_version() == 3
        insert(table, 4)
        for _ in range(50):
            with pytest.raises(FileNotFoundError):
                await store.stat("_delta_log/00000000000000000004.json")
        assert len(server.seen("version$")) == 1
        await store.aclose()


async def test_one_server_of_several_may_be_behind(tmp_path: Path) -> None:
    table = orders(tmp_path / "orders")
    with serving({NAME: table.folder}) as server:
        store = shared_store(server.profile(tmp_path), poll_interval_s=0.0)
        log = TableLog(store)
        assert await log.latest_version() == 3
        reference = server.tables["share", "schema", "table"][1]
        reference._commits.pop(3)
        (table.folder / "_delta_log" / "00000000000000000003.json").rename(tmp_path / "aside")
        later = "_delta_log/00000000000000000009.json"
        with pytest.raises(FileNotFoundError):
            await store.stat(later)
        assert await log.latest_version() == 3, "said once, it is not believed"
        with pytest.raises(FileNotFoundError):
            await store.stat(later)
        assert await log.latest_version() == 2
        await store.aclose()


async def test_a_table_that_was_replaced_is_noticed(tmp_path: Path) -> None:
    """By the id that the answers tell: there is no log to look at."""
    table = orders(tmp_path / "orders")
    other = {"metaData": {**table.metadata()["metaData"], "id": "another"}}
    table.commit(other, timestamp_ms=1_767_225_600_000 + 4 * 60_000)
    insert(table, 5)
    with serving({NAME: table.folder}) as server:
        store = shared_store(server.profile(tmp_path), versions_per_request=1)
        log = TableLog(store)
        with pytest.raises(TableReplaced, match=r"its id was .* and is another"):
            [commit async for commit in follow_commits(log, Offset(0), 5)]
        await store.aclose()


async def test_what_was_kept_on_the_disk_is_bounded_and_goes(tmp_path: Path) -> None:
    table = orders(tmp_path / "orders", versions=20)
    with serving({NAME: table.folder}) as server:
        store = shared_store(server.profile(tmp_path), versions_per_request=2)
        await read_store(store, 0, 19)
        folder = store._open_parts()[0].folder
        assert sum(len(files) for at, _, files in os.walk(folder) if Path(at) != folder) <= 4
        (links,) = store._open_parts()[1]._db.execute("SELECT count(*) FROM links").fetchone()
        assert links <= 4
        await store.aclose()
    assert not os.path.exists(folder)  # noqa: ASYNC240, PTH110  # a test may wait for the disk
