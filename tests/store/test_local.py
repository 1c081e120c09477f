"""What the local store holds beyond the suite of all stores."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from tailer.errors import ConfigError, TableError, TransientError
from tailer.storage import open_store
from tailer.store import local
from tailer.store.folders import FolderWatch
from tailer.store.local import LocalStore

pytestmark = pytest.mark.anyio

HOUR = 3600.0


async def test_a_path_and_a_file_uri_are_one_table(tmp_path: Path) -> None:
    table = tmp_path / "a table%20"
    assert open_store(str(table)).root == str(table)
    assert open_store(table.as_uri()).root == str(table)
    assert open_store("file:" + table.as_uri().removeprefix("file://")).root == str(table)


async def test_a_relative_path_is_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_store("orders").root == str(tmp_path / "orders")


async def test_an_address_of_no_store_is_refused() -> None:
    with pytest.raises(ConfigError, match="ftp://"):
        open_store("ftp://host/table")


@pytest.mark.parametrize(
    "location",
    [
        "{tmp}/source/part.parquet",
        "linked.parquet",
        "folder/part.parquet",
        "{tmp}/table/linked.parquet",
    ],
)
async def test_a_file_outside_of_the_table_is_read_where_the_options_say_so(
    tmp_path: Path, location: str
) -> None:
    """By an absolute path, as a shallow clone names it, or by a link on the way to it."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "part.parquet").write_bytes(b"bytes")
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "linked.parquet").symlink_to(source / "part.parquet")
    (tmp_path / "table" / "folder").symlink_to(source)
    location = location.format(tmp=tmp_path)
    store = open_store(str(tmp_path / "table"))
    refusals = (store.read(location), store.open(location, 5), store.stat(location))
    for refused in refusals:
        with pytest.raises(TableError, match=r"outside the table's folder.*also") as caught:
            await refused
        assert str(caught.value).startswith(f"{tmp_path / 'table'}, {location}: ")
    for also in ([str(source)], f"/nowhere,{source}", [source.as_uri()]):
        store = open_store(str(tmp_path / "table"), {"also": also})
        assert (await store.read(location))[0] == b"bytes"
        with await store.open(location, 5) as file:
            assert file.read() == b"bytes"
    other = open_store(str(tmp_path / "table"), {"also": [str(tmp_path / "sour")]})
    with pytest.raises(TableError, match="outside the table's folder"):
        await other.read(location)


async def test_a_log_that_is_a_link_to_elsewhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "else").mkdir()
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "_delta_log").symlink_to(tmp_path / "else")
    with pytest.raises(TableError, match="outside the table's folder: it leads to"):
        _ = [s async for s in LocalStore(str(tmp_path / "table")).list("_delta_log")]


async def test_a_table_may_itself_be_a_link_and_its_links_lead_within_it(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "part.parquet").write_bytes(b"bytes")
    (tmp_path / "real" / "linked.parquet").symlink_to("part.parquet")
    (tmp_path / "table").symlink_to("real")
    store = LocalStore(str(tmp_path / "table"))
    for location in (
        "part.parquet",
        "linked.parquet",
        str(tmp_path / "real" / "part.parquet"),
        str(tmp_path / "table" / "part.parquet"),
    ):
        assert (await store.read(location))[0] == b"bytes"


async def test_a_location_in_another_store_is_refused_by_name(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    with pytest.raises(TableError, match=r"s3://bucket/part\.parquet.*different store"):
        await store.open("s3://bucket/part.parquet", 10)


async def test_a_file_in_the_place_of_a_folder_is_nothing_there(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").write_bytes(b"")
    store = LocalStore(str(tmp_path))
    assert [s async for s in store.list("_delta_log")] == []
    with pytest.raises(FileNotFoundError):
        await store.stat("_delta_log/1.json")


async def test_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileNotFoundError):
        await LocalStore(str(tmp_path)).read("folder")


async def test_a_disk_error_may_heal() -> None:
    with pytest.raises(TransientError, match="mem: it can't be read"):
        await LocalStore("/proc/self").read("mem")  # where no memory is


async def test_a_link_to_itself_is_no_file_however_often_it_is_tried(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    store = LocalStore(str(tmp_path))
    for look in (store.stat, store.read):
        with pytest.raises(FileNotFoundError):
            await look("loop")
    assert [status.name async for status in store.list("")] == ["file"]


async def test_a_new_file_of_the_same_size_and_time_has_another_tag(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    file, other = tmp_path / "1.json", tmp_path / "other"
    file.write_bytes(b"old")
    before = await store.stat("1.json")
    other.write_bytes(b"new")
    os.utime(other, ns=(file.stat().st_mtime_ns,) * 2)
    other.rename(file)
    after = await store.stat("1.json")
    assert (after.size, after.mtime_ms) == (before.size, before.mtime_ms)
    assert after.tag != before.tag


def _rename(folder: Path) -> None:
    (folder.parent / "made").rename(folder / "1.json")


def _link(folder: Path) -> None:
    os.link(folder.parent / "made", folder / "1.json")


def _write(folder: Path) -> None:
    (folder / "1.json").write_bytes(b"{}")


def _finish(folder: Path) -> None:
    with (folder / "begun.json").open("ab") as f:
        f.write(b"}")


@pytest.mark.parametrize("commit", [_rename, _link, _write, _finish])
async def test_a_watch_sees_every_way_in_which_a_commit_appears(
    tmp_path: Path, commit: object
) -> None:
    (tmp_path / "made").write_bytes(b"{}")
    folder = tmp_path / "_delta_log"
    folder.mkdir()
    (folder / "begun.json").write_bytes(b"{")
    assert callable(commit)
    async with LocalStore(str(tmp_path)).watch("_delta_log") as watch:
        with anyio.fail_after(150):  # the wait itself would take an hour
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watch.wait, HOUR)
                await anyio.lowlevel.checkpoint()
                commit(folder)


async def test_what_happened_before_the_wait_is_seen_too(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    async with LocalStore(str(tmp_path)).watch("_delta_log") as watch:
        _write(tmp_path / "_delta_log")
        with anyio.fail_after(150):
            await watch.wait(HOUR)


@contextmanager
def without_privileges() -> Iterator[None]:
    """Root may read everything, so it is another user for a while."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        if user == 0:
            os.seteuid(user)


async def test_what_may_not_be_read_is_named(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"")
    secret.chmod(0)
    store = LocalStore(str(tmp_path))
    with without_privileges(), pytest.raises(TableError, match=r"secret.*permission denied"):
        await store.read("secret")


@pytest.mark.parametrize("location", [".", "folder", "pipe", "x" * 300, "/", "/dev/zero", "a/b"])
async def test_what_is_no_file_is_not_found_and_never_waited_for(
    tmp_path: Path, location: str
) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "a").write_bytes(b"")
    store = LocalStore(str(tmp_path), also=["/"])
    with pytest.raises(FileNotFoundError):
        await store.open(location, None)
    with pytest.raises(FileNotFoundError):
        await store.read(location, 0, 10)


def inotify_instances() -> int:
    """How many of them this process has open."""
    count = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            count += "inotify" in str(link.readlink())
        except OSError:
            continue  # the listing's own descriptor
    return count


async def test_hundreds_of_watches_share_one_instance(tmp_path: Path) -> None:
    gc.collect()  # a feed that an earlier test has dropped in mid-way may have one
    before = inotify_instances()
    async with AsyncExitStack() as stack:
        folders = [tmp_path / str(i) for i in range(300)]
        watches = []
        for folder in folders:
            folder.mkdir()
            watches.append(await stack.enter_async_context(LocalStore(str(folder)).watch("")))
        assert inotify_instances() <= before + 1
        (folders[7] / "1.json").write_bytes(b"")
        with anyio.fail_after(150):
            await watches[7].wait(HOUR)
        woken = []

        async def wait(number: int) -> None:
            await watches[number].wait(0.05)
            woken.append(number)

        with anyio.move_on_after(150):
            await wait(8)
        assert woken == [8]
    assert inotify_instances() <= before


async def test_two_watches_of_one_folder_see_the_same(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    with anyio.fail_after(150):
        async with store.watch("") as first:
            async with store.watch("") as second:
                (tmp_path / "1.json").write_bytes(b"")
                await first.wait(HOUR)
                await second.wait(HOUR)
            (tmp_path / "2.json").write_bytes(b"")
            await first.wait(HOUR)


async def test_a_watch_outlives_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "_delta_log"
    folder.mkdir()
    with anyio.fail_after(150):
        async with LocalStore(str(tmp_path)).watch("_delta_log") as watch:
            folder.rmdir()
            await watch.wait(HOUR)
            folder.mkdir()
            await watch.wait(0.01)
            (folder / "1.json").write_bytes(b"")
            await watch.wait(HOUR)


async def test_a_watch_is_closed_though_its_folder_has_just_gone(tmp_path: Path) -> None:
    for left_open in (False, True):  # which keeps the notifier, as another feed does
        (tmp_path / "log").mkdir()
        others = [FolderWatch(tmp_path)] if left_open else []
        watch = FolderWatch(tmp_path / "log")
        (tmp_path / "log").rmdir()
        watch.close()
        for other in others:
            other.close()


def test_a_folder_at_rest_has_a_mark_that_any_change_changes(tmp_path: Path) -> None:
    log = tmp_path / "_delta_log"
    log.mkdir()
    store = LocalStore(str(tmp_path))
    assert store.rest_mark("_delta_log") is None, "it has just been made"
    long_ago = 1_000_000_000

    def mark() -> str | None:
        os.utime(log, (long_ago, long_ago))
        return store.rest_mark("_delta_log")

    first = mark()
    assert first is not None
    assert store.rest_mark("_delta_log") == first
    (log / "1.json").write_text("")
    assert mark() != first, "it has the same time again, as after a backup was unpacked over it"
    (log / "0.json").write_text("")
    assert store.rest_mark("_delta_log") is None, "the change is too young to be told from another"
    log.rename(tmp_path / "old")
    assert store.rest_mark("_delta_log") is None
    log.mkdir()
    assert mark() != first, "another folder in its place"


@pytest.mark.parametrize(("kind", "rests"), [("ext4", True), ("fuse.rclone", False)])
def test_a_mounted_object_store_has_no_folder_at_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, *, rests: bool
) -> None:
    """Its folders have the time of the mount, and new files do not change it."""
    log = tmp_path / "_delta_log"
    log.mkdir()
    os.utime(log, (1_000_000_000, 1_000_000_000))
    device = log.stat().st_dev
    mounts = tmp_path / "mountinfo"
    line = "{} 1 {} / {} rw,relatime shared:1 - {} source rw\n".format
    mine = line(2, f"{os.major(device)}:{os.minor(device)}", tmp_path, kind)
    mounts.write_text(line(1, "0:1", "/a\\040-\\040fuse", "proc") + mine)
    monkeypatch.setattr(local, "_MOUNTS", mounts)
    local._keeps_times.cache_clear()
    store = LocalStore(str(tmp_path))
    try:
        assert (store.rest_mark("_delta_log") is not None) is rests
        mounts.write_text("")
        later = time.monotonic() + 60
        monkeypatch.setattr(time, "monotonic", lambda: later)
        assert store.rest_mark("_delta_log") is not None, "another file system may have its number"
    finally:
        local._keeps_times.cache_clear()
