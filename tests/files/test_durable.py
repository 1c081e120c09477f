"""What is private is so whatever the umask, and whatever it was before."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tailer.files.durable import (
    create_private,
    is_everyones,
    make_folder,
    make_private,
    open_private,
)


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("mask", [0, 0o022, 0o777])
def test_what_is_private_is_so_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    with umask(mask):
        make_folder(tmp_path / "a" / "b", private=True)
        os.close(open_private(tmp_path / "a" / "b" / "file", os.O_RDWR | os.O_CREAT))
    assert mode_of(tmp_path / "a") == mode_of(tmp_path / "a" / "b") == 0o700
    assert mode_of(tmp_path / "a" / "b" / "file") == 0o600


def test_a_file_of_an_earlier_version_becomes_private(tmp_path: Path) -> None:
    for name in ("opened", "read"):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(0o666)
    os.close(open_private(tmp_path / "opened", os.O_RDWR))
    make_private(tmp_path / "read")
    assert mode_of(tmp_path / "opened") == mode_of(tmp_path / "read") == 0o600


def test_the_mode_of_a_folder_that_exists_is_its_operators(tmp_path: Path) -> None:
    with umask(0):
        (tmp_path / "shared").mkdir(mode=0o750)
        make_folder(tmp_path / "shared", private=True)
    assert mode_of(tmp_path / "shared") == 0o750


def test_a_rotation_may_give_a_log_another_mode(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with umask(0):
        os.close(create_private(log))
        assert mode_of(log) == 0o600
        log.chmod(0o640)
        os.close(create_private(log))
    assert mode_of(log) == 0o640


@pytest.mark.parametrize(("mode", "expected"), [(0o777, True), (0o1777, False), (0o755, False)])
def test_a_folder_that_every_user_may_write_to(
    tmp_path: Path, mode: int, *, expected: bool
) -> None:
    tmp_path.chmod(mode)
    assert is_everyones(tmp_path) is expected
    assert not is_everyones(tmp_path / "none")
