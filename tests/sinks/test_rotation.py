"""A JSON lines file that other programs rename, remove, truncate or want to share."""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from sinks.jsonl import JsonlSink
from tailer.changes import ChangeBatch
from tailer.errors import SinkRejected, TransientError
from tailer.testing.batches import change_batch

pytestmark = pytest.mark.anyio


def batch(*ids: int) -> ChangeBatch:
    return change_batch(pa.schema([("id", pa.int64())]), [{"id": i} for i in ids])


def ids(file: Path) -> list[int]:
    lines = file.read_bytes().split(b"\n")
    assert lines.pop() == b"", "the last line is whole"
    return [json.loads(line)["id"] for line in lines]


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What the sink writes to the log."""
    lines: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger, handler = logging.getLogger("tailer.jsonl"), Kept()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield lines
    logger.removeHandler(handler)
    logger.setLevel(level)


def while_syncing(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> None:
    """Have another program do something while the next batch is written."""
    sync, left = os.fdatasync, [work]

    def meanwhile(descriptor: int) -> None:
        if left:
            left.pop()()
        sync(descriptor)

    monkeypatch.setattr(os, "fdatasync", meanwhile)


@pytest.mark.parametrize("how", ["renamed", "removed"])
async def test_what_follows_a_rotation_is_in_the_new_file(
    tmp_path: Path, said: list[str], how: str
) -> None:
    file, old = tmp_path / "out.jsonl", tmp_path / "out.jsonl.1"
    sink = JsonlSink(file)
    await sink.open("orders")
    await sink.write(batch(1))
    file.rename(old)
    if how == "removed":
        old.unlink()
    await sink.write(batch(2))
    await sink.write(batch(3))
    assert ids(file) == [2, 3]
    assert said == [
        f"feed orders: {file} was renamed or removed: its next lines go into a new file"
    ]
    assert how == "removed" or ids(old) == [1]
    await sink.aclose()


async def test_a_batch_is_durable_only_under_the_name_that_its_file_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, old = tmp_path / "out.jsonl", tmp_path / "out.jsonl.1"
    sink = JsonlSink(file)
    await sink.open("orders")
    await sink.write(batch(1))
    while_syncing(monkeypatch, lambda: file.rename(old))
    await sink.write(batch(2))
    assert ids(file) == [2], "who rotates may compress the old file by now"
    assert ids(old) == [1, 2]
    while_syncing(monkeypatch, lambda: old.replace(file))  # an older one takes its place
    await sink.write(batch(3))
    assert ids(file) == [1, 2, 3]
    await sink.aclose()


async def test_a_symbolic_link_that_names_another_file_is_a_rotation(tmp_path: Path) -> None:
    link = tmp_path / "out.jsonl"
    link.symlink_to("monday.jsonl")
    sink = JsonlSink(link)
    await sink.open("orders")
    await sink.write(batch(1))
    link.unlink()
    link.symlink_to("tuesday.jsonl")
    await sink.write(batch(2))
    assert (ids(tmp_path / "monday.jsonl"), ids(tmp_path / "tuesday.jsonl")) == ([1], [2])
    await sink.aclose()


async def test_a_folder_that_is_moved_away_is_made_again(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "out" / "orders.jsonl")
    await sink.open("orders")
    await sink.write(batch(1))
    (tmp_path / "out").rename(tmp_path / "archive")
    await sink.write(batch(2))
    assert ids(tmp_path / "out" / "orders.jsonl") == [2]
    await sink.aclose()


async def test_a_rotated_file_is_left_when_the_operator_says_so(tmp_path: Path) -> None:
    file, old = tmp_path / "out.jsonl", tmp_path / "out.jsonl.1"
    sink = JsonlSink(file)
    await sink.reopen()  # it is not open yet
    await sink.open("orders")
    await sink.write(batch(1))
    file.rename(old)
    with old.open("rb") as held, pytest.raises(BlockingIOError):
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    await sink.reopen()
    assert ids(file) == [], "the new file is there before there is anything to write"
    with old.open("rb") as free:
        fcntl.flock(free, fcntl.LOCK_EX | fcntl.LOCK_NB)
    await sink.reopen()  # nothing has been moved
    await sink.write(batch(2))
    assert (ids(old), ids(file)) == ([1], [2])
    await sink.aclose()
    await sink.reopen()


async def test_a_file_that_cannot_be_made_after_a_rotation_is_tried_again(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    sink = JsonlSink(file)
    await sink.open("orders")
    file.unlink()
    file.mkdir()  # also root can't write to it
    await sink.reopen()
    with pytest.raises(TransientError, match="Is a directory"):
        await sink.write(batch(1))
    file.rmdir()
    await sink.write(batch(1))
    assert ids(file) == [1]
    await sink.aclose()


async def test_a_truncated_file_is_said_and_goes_on_with_whole_lines(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "out.jsonl"
    sink = JsonlSink(file)
    await sink.open("orders")
    await sink.write(batch(1, 2))
    end = file.stat().st_size
    os.truncate(file, end - 2)  # in the middle of a line
    await sink.write(batch(3))
    assert ids(file) == [1, 3]
    assert said[0].startswith(
        f"feed orders: {file} was truncated by another program, from {end} bytes to {end - 2}: "
    )
    while_syncing(monkeypatch, lambda: os.truncate(file, 0))
    await sink.write(batch(4))
    assert ids(file) == [4], "it is written again, and not acknowledged before"
    assert len(said) == 2
    await sink.aclose()


async def test_a_batch_that_fails_half_written_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise OSError(5, "Input/output error")

    file = tmp_path / "out.jsonl"
    sink = JsonlSink(file)
    await sink.open("orders")
    await sink.write(batch(1))
    while_syncing(monkeypatch, broken)
    with pytest.raises(TransientError, match="Input/output error"):
        await sink.write(batch(2, 3))
    assert ids(file) == [1]
    await sink.write(batch(2, 3))
    assert ids(file) == [1, 2, 3]
    await sink.aclose()


def other_name(folder: Path, kind: str) -> Path:
    """Another name of the file ``out.jsonl``."""
    (folder / "sub").mkdir()
    (folder / "out.jsonl").touch()
    match kind:
        case "parent":
            return folder / "sub" / ".." / "out.jsonl"
        case "symbolic link":
            (folder / "other.jsonl").symlink_to("out.jsonl")
        case "linked folder":
            (folder / "linked").symlink_to(folder)
            return folder / "linked" / "out.jsonl"
        case "hard link":
            (folder / "other.jsonl").hardlink_to(folder / "out.jsonl")
    return folder / "other.jsonl"


NAMES = ["parent", "symbolic link", "linked folder", "hard link"]


@pytest.mark.parametrize("kind", NAMES)
async def test_a_file_has_one_writer_whatever_it_is_called(tmp_path: Path, kind: str) -> None:
    other = other_name(tmp_path, kind)
    one, two = JsonlSink(tmp_path / "out.jsonl"), JsonlSink(other)
    assert one.traits.exclusive == two.traits.exclusive
    await one.open("orders")
    with pytest.raises(TransientError, match="written by another process or feed"):
        await two.open("others")
    await one.write(batch(1))
    await one.aclose()
    await two.open("others")
    await two.write(batch(2))
    await two.aclose()
    assert ids(other) == [1, 2]


async def test_a_link_that_names_no_file_yet_is_the_file_that_it_will_name(tmp_path: Path) -> None:
    (tmp_path / "other.jsonl").symlink_to("out.jsonl")
    assert (
        JsonlSink(tmp_path / "other.jsonl").traits.exclusive
        == JsonlSink(tmp_path / "out.jsonl").traits.exclusive
    )


async def test_the_names_of_new_files_and_folders_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, sync = [], os.fsync

    def noted(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().relative_to(tmp_path))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    sink = JsonlSink(tmp_path / "new" / "deep" / "out.jsonl")
    await sink.open("orders")
    assert [str(path) for path in synced] == [".", "new", "new/deep"]
    await sink.aclose()


async def test_a_file_that_is_refused_and_one_that_may_heal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SinkRejected, match="can't be opened"):
        await JsonlSink(tmp_path).open("orders")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(TransientError, match="Too many open files"):
        await JsonlSink(tmp_path / "out.jsonl").open("orders")
