"""Where sinks publish files on a server: below an address of a store.

A file that is not there yet is created, whole or not at all, on condition that there is none.
"""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio.to_thread

from tailer.errors import TableError, TargetRefused, TransientError
from tailer.storage.targets import translate_write_errors
from tailer.store import Store


class StoreTarget(ABC):
    """See :class:`tailer.storage.targets.Target`. ``store`` reads what is there."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.root = store.root
        self._spool: tempfile.TemporaryDirectory[str] | None = None

    @abstractmethod
    async def _put_object(self, name: str, body: bytes, *, create: bool) -> bool:
        """Write an object; with ``create`` only if there is none, which it returns."""

    @abstractmethod
    async def _delete_object(self, name: str) -> None:
        """Remove an object, if it is there."""

    def spool(self) -> Path:
        """See :class:`~tailer.storage.targets.Target`: in the system's temporary folder."""
        if self._spool is None:
            self._spool = tempfile.TemporaryDirectory(prefix="delta-tailer-files-")
        return Path(self._spool.name)

    async def names(self, folder: str, after: str = "") -> list[str]:
        with _translate_refusals():
            return [found.name async for found in self._store.list(folder, after)]

    async def read(self, name: str) -> bytes | None:
        with _translate_refusals(), suppress(FileNotFoundError):
            return (await self._store.read(name))[0]
        return None

    async def create(self, name: str, source: bytes | Path) -> bool:
        path = source if isinstance(source, Path) else None
        body = source if isinstance(source, bytes) else await _read_bytes(source)
        with _translate_refusals():
            created = await self._put_object(name, body, create=True)
        if not created:  # also where this was done, and only the answer was lost
            there = await self.read(name)
            if there is None:
                raise TransientError(f"{self.root}: the server refused {name}, which is not there")
            created = there == body
        if path is not None:
            path.unlink()
        return created

    async def replace(self, name: str, data: bytes) -> None:
        with _translate_refusals():
            await self._put_object(name, data, create=False)

    async def remove(self, name: str) -> None:
        with _translate_refusals():
            await self._delete_object(name)

    async def rehearse(self) -> None:
        """See :class:`~tailer.storage.targets.Target`. Whether the address may be written is seen
        by a write alone."""

    async def aclose(self) -> None:
        spool, self._spool = self._spool, None
        if spool is not None:
            spool.cleanup()
        await self._store.aclose()


async def _read_bytes(path: Path) -> bytes:
    with translate_write_errors(str(path)):
        return await anyio.to_thread.run_sync(path.read_bytes)


@contextmanager
def _translate_refusals() -> Iterator[None]:
    """Raise the refusals of the server as the sink's."""
    try:
        yield
    except TableError as e:
        raise TargetRefused(str(e)) from e
