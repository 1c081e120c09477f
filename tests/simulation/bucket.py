"""Where a simulated table lies: files in memory, and stores that read them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import pyarrow as pa
from msgspec import Struct

from tailer.errors import TransientError
from tailer.store import BlockingFiles, FileStatus, Store, Watch
from tailer.store.budget import Budget
from tests.simulation.world import World

#: How long a listing may lack a new file, in seconds.
_STALE_S = 20.0
#: A folder that has changed within so many seconds is not at rest, as on a local disk.
_REST_S = 2.0


class BucketFile(Struct, frozen=True):
    """One file: its bytes, when it was written (epoch ms, and simulated seconds), and its tag."""

    data: bytes
    mtime_ms: int
    written_s: float
    tag: str


class Bucket:
    """Files by their location.

    :meth:`changed` gives an event of the next change in a folder. ``on_put`` is called with the
    location and the bytes of every file that is written.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.on_put: Callable[[str, bytes], None] = lambda _, __: None
        self.files: dict[str, BucketFile] = {}
        #: The time of day of the last change, by folder.
        self.changed_at: dict[str, float] = {}
        self._changed: dict[str, anyio.Event] = {}
        self._tags = 0

    def put(self, location: str, data: bytes, mtime_ms: int | None = None) -> BucketFile:
        """Write a file as a whole."""
        self._tags += 1
        now_ms = int(self.world.clock() * 1000) if mtime_ms is None else mtime_ms
        file = BucketFile(data, now_ms, self.world.now, f'"{self._tags}"')
        self.files[location] = file
        self._notify(location)
        self.on_put(location, data)
        return file

    def remove(self, location: str) -> None:
        """Remove a file, if it is there."""
        if self.files.pop(location, None) is not None:
            self._notify(location)

    def changed(self, folder: str) -> anyio.Event:
        """Return the event of the next change in a folder at the top."""
        return self._changed.setdefault(folder, anyio.Event())

    def listed(self, folder: str, *, stale: bool) -> list[tuple[str, BucketFile]]:
        """Return the files in a folder by name; a stale listing lacks the newest ones."""
        prefix, newest = f"{folder}/", self.world.now - (_STALE_S if stale else 0.0)
        return [
            (location[len(prefix) :], file)
            for location, file in sorted(self.files.items())
            if location.startswith(prefix)
            and "/" not in location[len(prefix) :]
            and (not stale or file.written_s < newest)
        ]

    def _notify(self, location: str) -> None:
        self.changed_at[location.rpartition("/")[0]] = self.world.clock()
        changed = self._changed.pop(location.partition("/")[0], None)
        if changed is not None:
            changed.set()


class BucketFolder:
    """A folder of a bucket, as a builder of tables writes it: at once, and without faults."""

    def __init__(self, bucket: Bucket, folder: str) -> None:
        self._bucket = bucket
        self._folder = folder

    def put(
        self, location: str, data: bytes, *, mtime_ms: int | None = None, new: bool = False
    ) -> None:
        """See :class:`tailer.testing.table_files.TableFiles`."""
        if new and f"{self._folder}/{location}" in self._bucket.files:
            raise FileExistsError(location)
        self._bucket.put(f"{self._folder}/{location}", data, mtime_ms)

    def read(self, location: str) -> bytes:
        """See :class:`tailer.testing.table_files.TableFiles`."""
        return self._bucket.files[f"{self._folder}/{location}"].data

    def names(self, folder: str) -> list[str]:
        """See :class:`tailer.testing.table_files.TableFiles`."""
        return [n for n, _ in self._bucket.listed(f"{self._folder}/{folder}", stale=False)]

    def remove(self, location: str) -> None:
        """See :class:`tailer.testing.table_files.TableFiles`."""
        self._bucket.remove(f"{self._folder}/{location}")

    def uri(self, location: str) -> str:
        """See :class:`tailer.testing.table_files.TableFiles`."""
        return f"simulated:{self._folder}/{location}"


class _Watch(Watch):
    """A watch that is woken by changes in a table, as inotify wakes one."""

    def __init__(self, bucket: Bucket, folder: str) -> None:
        self._bucket = bucket
        self._folder = folder
        self._changed = bucket.changed(folder)

    async def wait(self, seconds: float) -> None:
        """See :class:`tailer.store.Watch`."""
        with anyio.move_on_after(seconds):
            await self._changed.wait()
        self._changed = self._bucket.changed(self._folder)


class _BucketStore(Store):
    """A table in a bucket, by the contract :class:`tailer.store.Store`."""

    def __init__(self, bucket: Bucket, folder: str = "table") -> None:
        self._bucket = bucket
        self._world = bucket.world
        self._folder = folder

    @property
    def root(self) -> str:
        """The table's address."""
        return f"simulated:{self._folder}"

    def _file(self, location: str) -> BucketFile:
        file = self._bucket.files.get(f"{self._folder}/{location}")
        if file is None:
            raise FileNotFoundError(location)
        return file

    def _status(self, name: str, file: BucketFile) -> FileStatus:
        return FileStatus(name.rpartition("/")[2], len(file.data), file.mtime_ms, file.tag)

    def _part(
        self, location: str, file: BucketFile, offset: int, length: int | None
    ) -> tuple[bytes, FileStatus]:
        end = None if length is None else offset + length
        return file.data[offset:end], self._status(location, file)

    async def list(self, folder: str, start_after: str = "") -> AsyncGenerator[FileStatus, None]:
        """See :class:`tailer.store.Store`."""
        place = f"{self._folder}/{folder}"
        stale = self.atomic and self._world.fault("stale list", folder)

        def found() -> list[FileStatus]:
            files = self._bucket.listed(place, stale=stale)
            return [self._status(name, file) for name, file in files if name > start_after]

        for status in await self._world.request(f"list {folder}", found):
            yield status

    async def stat(self, location: str) -> FileStatus:
        """See :class:`tailer.store.Store`."""
        return await self._world.request(
            f"stat {location}", lambda: self._status(location, self._file(location))
        )

    async def read(
        self, location: str, offset: int = 0, length: int | None = None
    ) -> tuple[bytes, FileStatus]:
        """See :class:`tailer.store.Store`."""
        data, status = await self._world.request(
            f"read {location}",
            lambda: self._part(location, self._file(location), offset, length),
        )
        if data and self._world.fault("short", location):
            raise TransientError(f"{location}: the answer was cut")
        return data, status

    async def open(self, location: str, size: int | None) -> pa.NativeFile:  # noqa: ARG002  # known
        """See :class:`tailer.store.Store`."""
        file = await self._world.request(f"open {location}", lambda: self._file(location))
        return pa.BufferReader(file.data)


class DiskStore(_BucketStore, BlockingFiles):
    """The same like a local disk: listings are never stale, a watch is woken, and worker threads
    read files without the event loop."""

    @asynccontextmanager
    async def watch(self, folder: str) -> AsyncIterator[_Watch]:  # noqa: ARG002  # it has one
        """See :class:`tailer.store.Store`."""
        yield _Watch(self._bucket, self._folder)

    def rest_mark(self, folder: str) -> str | None:
        """See :class:`tailer.store.Store`. Times are those of a disk that counts seconds."""
        world = self._world
        changed = int(self._bucket.changed_at.get(f"{self._folder}/{folder}", 0.0))
        return None if world.clock() - changed < _REST_S else str(changed)

    def blocking_files(self) -> DiskStore:
        """See :class:`tailer.store.Store`."""
        return self

    def stat_here(self, location: str) -> FileStatus:
        """See :class:`tailer.store.BlockingFiles`."""
        file = self._world.call(f"stat {location}", lambda: self._file(location))
        return self._status(location, file)

    def read_here(
        self, location: str, offset: int = 0, length: int | None = None
    ) -> tuple[bytes, FileStatus]:
        """See :class:`tailer.store.BlockingFiles`."""
        file = self._world.call(f"read {location}", lambda: self._file(location))
        return self._part(location, file, offset, length)

    def open_here(self, location: str) -> pa.NativeFile:
        """See :class:`tailer.store.BlockingFiles`."""
        file = self._world.call(f"open {location}", lambda: self._file(location))
        return pa.BufferReader(file.data)


class ReadAheadStore(_BucketStore):
    """The same like an object store: atomic files, no notices, stale listings, reads ahead."""

    atomic = True
    check_s = 10.0

    def __init__(self, bucket: Bucket, folder: str = "table") -> None:
        super().__init__(bucket, folder)
        self._ahead = Budget(128 * 1024 * 1024)

    def ahead(self) -> Budget:
        """See :class:`tailer.store.Store`."""
        return self._ahead
