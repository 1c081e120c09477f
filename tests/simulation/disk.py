"""A simulated local disk, for the real local offset store.

What was written and not synced survives the end of a process, and at a power cut perhaps not, or
not whole; the same holds for the names of files in a folder that was not synced.
"""

from __future__ import annotations

import errno
import os as real_os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Self

from tests.simulation.loop import PROCESS
from tests.simulation.world import World

#: The flag by which a file is created anew.
_TRUNCATE = 1


class _Inode:
    """A file's content, as processes see it and as it is on the disk."""

    def __init__(self) -> None:
        self.data = b""
        self.synced = b""


class Disk:
    """One machine's disk with one folder. ``on_rename`` is called with each name that a file is
    renamed to, and its bytes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.names: dict[str, _Inode] = {}
        self.synced_names: dict[str, _Inode] = {}
        self.on_rename: Callable[[str, bytes], None] = lambda _, __: None
        self._open: dict[int, str] = {}
        self._locks: dict[str, tuple[int, Any]] = {}
        self._files = 100

    def power_cut(self) -> None:
        """Lose what was not synced, or a part of it, or nothing: the disk decides."""
        rng = self.world.rng
        if rng.random() < 0.5:
            self.names = dict(self.synced_names)
        for inode in self.names.values():
            if inode.data != inode.synced and rng.random() < 0.8:
                inode.data = rng.choice([inode.synced, inode.data[: len(inode.data) // 2]])
            inode.synced = inode.data
        self.synced_names = dict(self.names)
        self._open.clear()
        self._locks.clear()

    # What tailer.offsets.local calls

    def modules(self) -> dict[str, Any]:
        """Return what stands for modules and functions that the local offset store imports."""
        return {
            "os": SimpleNamespace(
                close=self._close, fsync=self._fsync, fdopen=self._file,
                O_RDWR=0, O_WRONLY=0, O_CREAT=0, O_TRUNC=_TRUNCATE,
            ),
            "fcntl": SimpleNamespace(flock=self._flock, LOCK_EX=0, LOCK_NB=0),
            "make_folder": lambda _, private: None,  # noqa: ARG005  # modes are not simulated
            "make_private": self._make_private,
            "open_private": self._opened,
            "find_lock_holder": lambda _: None,
            "sync_folder": lambda _: self.sync_folder(),
        }  # fmt: skip

    def sync_folder(self) -> None:
        """Write the names to the disk."""
        self.check()
        self.synced_names = dict(self.names)

    def check(self) -> None:
        """Raise what any call may raise."""
        self.world.current()

    def answer(self, name: str) -> None:
        """Raise what opening a file may raise."""
        self.check()
        if self.world.fault("disk away", name):
            raise OSError(errno.ESTALE, real_os.strerror(errno.ESTALE))

    def _opened(self, path: DiskPath, flags: int) -> int:
        """Open a file, or create or truncate it; return its descriptor."""
        self.answer(path.name)
        if flags & _TRUNCATE:
            self.names[path.name] = _Inode()
        self._files += 1
        self._open[self._files] = path.name
        return self._files

    def _make_private(self, path: DiskPath) -> None:
        self.answer(path.name)
        if path.name not in self.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path.name)

    def _file(self, number: int, _: str) -> _File:
        return _File(self, self._open[number], number)

    def _close(self, number: int) -> None:
        name = self._open.pop(number, "")
        if self._locks.get(name, (0, None))[0] == number:
            del self._locks[name]

    def _fsync(self, number: int) -> None:
        self.check()
        if self.world.fault("disk full", "fsync"):
            raise OSError(errno.EIO, real_os.strerror(errno.EIO))
        inode = self.names[self._open[number]]
        inode.synced = inode.data

    def _flock(self, number: int, _: int) -> None:
        self.check()
        name = self._open[number]
        _, owner = self._locks.get(name, (0, None))
        if owner is not None and owner.alive:
            raise BlockingIOError(errno.EWOULDBLOCK, "locked")
        self._locks[name] = number, PROCESS.get()

    def write(self, name: str, data: bytes) -> None:
        """Write a file's content, which is not synced yet."""
        self.check()
        if self.world.fault("disk full", name):
            raise OSError(errno.ENOSPC, real_os.strerror(errno.ENOSPC))
        self.names[name].data += data

    def rename(self, name: str, target: str) -> None:
        """Rename a file over another one."""
        self.check()
        self.names[target] = self.names.pop(name)
        self.on_rename(target, self.names[target].data)


class _File:
    """A file that is open for writing."""

    def __init__(self, disk: Disk, name: str, number: int) -> None:
        self._disk, self._name, self._number = disk, name, number

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._disk.modules()["os"].close(self._number)

    def write(self, data: bytes) -> None:
        """Write bytes."""
        self._disk.write(self._name, data)

    def flush(self) -> None:
        """Do nothing: there is no buffer."""

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._number


class DiskPath:
    """A path of the simulated disk; as much of :class:`pathlib.Path` as the offset store uses."""

    def __init__(self, disk: Disk, name: str = "") -> None:
        self._disk = disk
        self.name = name

    def __truediv__(self, name: str) -> DiskPath:
        return DiskPath(self._disk, name)

    def __str__(self) -> str:
        return f"disk/{self.name}"

    @property
    def parent(self) -> DiskPath:
        """The folder."""
        return DiskPath(self._disk)

    def with_suffix(self, suffix: str) -> DiskPath:
        """Return the path with another ending."""
        return DiskPath(self._disk, self.name.rpartition(".")[0] + suffix)

    def is_dir(self) -> bool:
        """Return whether it is the folder."""
        return not self.name

    def read_bytes(self) -> bytes:
        """Return the content."""
        self._disk.answer(self.name)
        inode = self._disk.names.get(self.name)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", self.name)
        return inode.data

    def replace(self, target: DiskPath) -> None:
        """Rename it."""
        self._disk.rename(self.name, target.name)

    def unlink(self, *, missing_ok: bool) -> None:  # noqa: ARG002  # it always may be missing
        """Remove it."""
        self._disk.check()
        self._disk.names.pop(self.name, None)
