"""A store in memory, at rest: every file is there already, and nothing is waited for."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pyarrow as pa

from tailer.store import BlockingFiles, FileStatus, Store, Watch


class MemoryStore(Store, BlockingFiles):
    """A table's files by location: their bytes, and their modification time in ms."""

    atomic = True
    root = "memory"

    def __init__(self, files: Mapping[str, tuple[bytes, int]]) -> None:
        self._files = files
        self._folders: dict[str, list[str]] = {}
        for path in files:
            folder, _, name = path.rpartition("/")
            self._folders.setdefault(folder, []).append(name)

    async def list(self, folder: str, start_after: str = "") -> AsyncGenerator[FileStatus, None]:
        for name in self._folders.get(folder, ()):
            if name > start_after:
                yield await self.stat(f"{folder}/{name}")

    async def stat(self, location: str) -> FileStatus:
        """See :class:`tailer.store.Store`."""
        return self.stat_here(location)

    def stat_here(self, location: str) -> FileStatus:
        try:
            data, mtime_ms = self._files[location]
        except KeyError:
            raise FileNotFoundError(location) from None
        return FileStatus(location.rpartition("/")[2], len(data), mtime_ms, "1")

    async def read(
        self, location: str, offset: int = 0, length: int | None = None
    ) -> tuple[bytes, FileStatus]:
        """See :class:`tailer.store.Store`."""
        return self.read_here(location, offset, length)

    def read_here(
        self, location: str, offset: int = 0, length: int | None = None
    ) -> tuple[bytes, FileStatus]:
        status = self.stat_here(location)
        data = self._files[location][0]
        return data[offset : None if length is None else offset + length], status

    async def open(self, location: str, size: int | None) -> pa.NativeFile:  # noqa: ARG002 - known
        """See :class:`tailer.store.Store`."""
        return self.open_here(location)

    def open_here(self, location: str) -> pa.NativeFile:
        self.stat_here(location)
        return pa.BufferReader(self._files[location][0])

    def blocking_files(self) -> MemoryStore:
        return self

    @asynccontextmanager
    async def watch(self, folder: str) -> AsyncIterator[_NoWatch]:  # noqa: ARG002 - at rest
        yield _NoWatch()


class _NoWatch(Watch):
    async def wait(self, seconds: float) -> None:
        raise AssertionError(f"waited {seconds} s for a version that is not there")
