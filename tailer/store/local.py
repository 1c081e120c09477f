"""The store of tables on the local disk.

File system calls are short, so they run on the event loop, except listings and long reads, which go
to a worker thread. Folders are watched through the operating system's notifications, so that a
commit is seen within milliseconds. Where there are none (some network file systems), a wait takes
its full time.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tailer.delta.paths import parse_location as decode_location
from tailer.delta.paths import split_scheme
from tailer.errors import TableError, TransientError, may_heal, out_of_reach
from tailer.process.threads import parse_in_thread, run_blocking
from tailer.store import BlockingFiles, FileStatus, FolderEntries, Found, Store, make_outside_error

if TYPE_CHECKING:
    import pyarrow as pa

    from tailer.store.folders import FolderWatch


def _make_status(name: str, result: os.stat_result) -> FileStatus:
    # The inode distinguishes a replaced file from its predecessor, even within one clock tick.
    tag = f"{result.st_ino}-{result.st_mtime_ns}-{result.st_size}"
    return FileStatus(name, result.st_size, result.st_mtime_ns // 1_000_000, tag)


#: There is no such file, and a retry will not find one: the log may name anything.
_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP}


def _local_path(text: str) -> Path:
    path = decode_location(text) if split_scheme(text)[0] == "file" else text
    return Path(path).expanduser().absolute()


#: Two changes of a folder that are further apart than this differ in time on any file system.
_REST_NS = 3_000_000_000
#: The mounted file systems of this process; not on every system.
_MOUNTS = Path("/proc/self/mountinfo")


@lru_cache(maxsize=256)
def _keeps_times(device: int, minute: int) -> bool:  # noqa: ARG001 - for the cache
    """Return whether a folder's modification time is sure to change with its names: not on mounted
    object stores and the like (FUSE), on some of which it is always that of the mount. Looked at
    once a ``minute``: what is mounted later may have the number of a device that is gone."""
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = _MOUNTS.read_text(errors="replace").splitlines()
    except OSError:
        return True
    return not any(
        mount.split(maxsplit=3)[2] == number and mount.partition(" - ")[2].startswith("fuse")
        for mount in mounts
    )


class _File(NamedTuple):
    path: str
    status: os.stat_result


class LocalStore(Store, BlockingFiles):
    """A table in a local folder. ``table`` is a path or a ``file:`` URI.

    Its files must be below that folder, or one of ``also``, which symbolic links on the way may not
    leave. (Not held is a folder that is replaced by a link from one moment to the next.)
    """

    def __init__(self, table: str, also: Sequence[str] = ()) -> None:
        self._root, *self._also = map(_local_path, (table, *also))
        self._folder = str(self._root)
        self._inside = self._folder.rstrip("/") + "/"

    @property
    def root(self) -> str:
        """The table's folder."""
        return str(self._root)

    def path(self, location: str) -> Path:
        """Return the local path of a location.

        Raises :class:`TableError` for one in another store, or outside of the table's folders.
        """
        path = self._find_path(location)
        if path.startswith(self._inside) and os.path.islink(path):  # noqa: PTH114
            self._check_inside(location, path)
        return Path(path)

    def _find_path(self, location: str) -> str:
        """Return what :meth:`path` does, as text, which takes a tenth of the time. Of a path in the
        table's folder, the last name may be that of a link, which is not looked up here."""
        if "://" in location:
            raise TableError(
                "the log refers to a file in a different store than the table's",
                table=self.root,
                path=location,
                hint="only files on the same disk are read",
            )
        path = location if location.startswith("/") else self._inside + location
        if not path.startswith(self._inside):
            self._check_inside(location, path)
            return path
        at = self._folder
        *folders, last = path[len(self._inside) :].split("/")
        for name in folders:
            at = f"{at}/{name}"
            if name == ".." or os.path.islink(at):  # noqa: PTH114
                self._check_inside(location, path)
                return path
        if last == "..":
            self._check_inside(location, path)
        return path

    def _find_file(self, location: str) -> _File:
        """Return the path of a location and its status: one system call shows both that it is no
        link and what it is."""
        path = self._find_path(location)
        found = os.lstat(path)
        if stat.S_ISLNK(found.st_mode):
            self._check_inside(location, path)
            found = os.stat(path)  # noqa: PTH116  # a path object takes longer
        return _File(path, found)

    def _find_regular_file(self, location: str) -> str:
        """Return the path of a location. Raises FileNotFoundError unless it is a regular file: a
        folder, device or pipe is not a table's file, and opening one may block for ever."""
        file = self._find_file(location)
        if not stat.S_ISREG(file.status.st_mode):
            raise FileNotFoundError(errno.ENOENT, "no such file", file.path)
        return file.path

    def _check_inside(self, location: str, path: str) -> None:
        """Raise :class:`TableError` unless a path, with its links followed, is in the folders."""
        real = os.path.realpath(path)
        for folder in (self._root, *self._also):
            root = os.path.realpath(folder)
            if real == root or real.startswith(root.rstrip("/") + "/"):
                return
        raise make_outside_error(self.root, location, "" if real == location else real)

    async def list(self, folder: str, start_after: str = "") -> AsyncGenerator[FileStatus, None]:
        for status in await run_blocking(self._scan_folder, folder, start_after):
            yield status

    def _scan_folder(self, folder: str, start_after: str) -> Sequence[FileStatus]:
        found = []
        try:
            with os.scandir(self.path(folder)) as entries:
                for entry in entries:
                    try:
                        if entry.name > start_after and entry.is_file():
                            found.append(_make_status(entry.name, entry.stat()))
                    except OSError as e:
                        if e.errno not in _ABSENT:
                            raise
                        # A temporary file that was renamed meanwhile, or a link to itself.
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as e:
            raise self._translate_error(folder, e) from e
        return found

    async def entries(self, address: str) -> FolderEntries | None:
        from tailer.store.surroundings import NAMES_MAX  # on demand: for errors alone

        def scan() -> FolderEntries | None:
            files: list[str] = []
            folders: list[str] = []
            try:
                with os.scandir(address) as found:
                    for entry in islice(found, NAMES_MAX):
                        if entry.is_dir():
                            folders.append(entry.name)
                        elif entry.is_file():  # no link that leads nowhere
                            files.append(entry.name)
            except (FileNotFoundError, NotADirectoryError):
                return None
            return FolderEntries(files, folders)

        return await run_blocking(scan)

    def _translate_error(self, location: str, e: OSError) -> Exception:
        if e.errno in _ABSENT:
            return FileNotFoundError(location)
        if isinstance(e, PermissionError):
            return TableError(
                "permission denied", table=self.root, path=location,
                hint="give this user the right to read it",
            )  # fmt: skip
        if may_heal(e):
            return out_of_reach(f"{self.root}, {location}: it can't be read", e)
        return TransientError(f"{self.root}, {location}: {e.strerror or e}")

    async def stat(self, location: str) -> FileStatus:
        return self.stat_here(location)

    def stat_here(self, location: str) -> FileStatus:
        try:
            file = self._find_file(location)
            return _make_status(file.path.rpartition("/")[2], file.status)
        except OSError as e:
            raise self._translate_error(location, e) from e

    def blocking_files(self) -> BlockingFiles:
        return self

    def rest_mark(self, folder: str) -> str | None:
        """See :class:`tailer.store.Store`: made of the folder's identity and times, of which a
        backup that is unpacked over it sets the modification time back, and the other one forward.

        None for a change so recent that a further one could have the same time, and on file systems
        that may not keep it.
        """
        try:
            found = self.path(folder).stat()
        except OSError:
            return None
        minute = int(time.monotonic() / 60)
        if time.time_ns() - found.st_mtime_ns < _REST_NS or not _keeps_times(found.st_dev, minute):
            return None
        return f"{found.st_dev}-{found.st_ino}-{found.st_mtime_ns}-{found.st_ctime_ns}"

    async def read(self, location: str, offset: int = 0, length: int | None = None) -> Found:
        size = self.stat_here(location).size  # raises at most polls, which need no thread
        read = partial(self.read_here, location, offset, length)
        return await parse_in_thread(read, size if length is None else min(size, length))

    def read_here(self, location: str, offset: int = 0, length: int | None = None) -> Found:
        try:
            path = self._find_regular_file(location)
            with open(path, "rb") as f:  # noqa: PTH123  # see above
                status = os.fstat(f.fileno())
                f.seek(offset)
                # A damaged log may ask for any length; memory is only taken for bytes that exist.
                rest = max(0, status.st_size - offset)
                data = f.read() if length is None else f.read(min(length, rest))
                return data, _make_status(path.rpartition("/")[2], status)
        except OSError as e:
            raise self._translate_error(location, e) from e

    async def open(self, location: str, size: int | None) -> pa.NativeFile:  # noqa: ARG002  # the file system knows it
        return self.open_here(location)

    def open_here(self, location: str) -> pa.NativeFile:
        import pyarrow as pa  # on demand: a log without checkpoints is read without it

        try:
            return pa.OSFile(self._find_regular_file(location), "rb")
        except OSError as e:
            raise self._translate_error(location, e) from e

    @asynccontextmanager
    async def watch(self, folder: str) -> AsyncIterator[FolderWatch]:
        from tailer.store.folders import FolderWatch  # on demand: only what follows a table waits

        watch = FolderWatch(self.path(folder))
        try:
            yield watch
        finally:
            watch.close()
