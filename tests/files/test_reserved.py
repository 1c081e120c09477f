"""Room on the disk for a file that is being written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailer.files.reserved import give_back, reserve

_MIB = 1024 * 1024


@pytest.fixture
def descriptor(tmp_path: Path) -> Iterator[int]:
    opened = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    yield opened
    os.close(opened)


def _room(descriptor: int) -> int:
    return os.fstat(descriptor).st_blocks * 512


def test_room_is_taken_and_what_is_not_written_is_given_back(descriptor: int) -> None:
    os.write(descriptor, b"first")
    reserve(descriptor, 8 * _MIB)
    if _room(descriptor) < 8 * _MIB:
        pytest.skip("the file system can't reserve room")
    assert os.fstat(descriptor).st_size == 5  # a reader sees only what was written
    os.write(descriptor, b"second")
    give_back(descriptor)
    assert os.fstat(descriptor).st_size == 11
    assert _room(descriptor) < _MIB


def test_where_none_can_be_had_nothing_happens(descriptor: int) -> None:
    reserve(descriptor, 2**62)
    reader, writer = os.pipe()  # no file has its room
    reserve(writer, _MIB)
    give_back(writer)
    for end in (reader, writer):
        os.close(end)
    assert _room(descriptor) < _MIB
