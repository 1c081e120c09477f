"""Where sinks publish files on S3, Azure and Google storage: a folder of a container.

A file that is not there yet is created, whole or not at all, on condition that there is none.
"""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio.to_thread
import obstore
from msgspec import structs
from obstore.exceptions import AlreadyExistsError, PreconditionError

from tailer.errors import TableError, TargetRefused, TransientError
from tailer.storage.targets import translate_write_errors
from tailer.store.objects.requests import Client, Requests
from tailer.store.objects.store import ObjectStore

#: How far the process may grow while a file is sent, in bytes for each of its own: the larger it
#: is, the longer others are at work meanwhile.
_ROOM = 32


class ObjectsTarget:
    """Files below a place of a container: see :class:`tailer.storage.targets.FolderTarget`."""

    def __init__(self, address: str, client: Client) -> None:
        self._store = ObjectStore(address, client)
        self.root = self._store.root
        self._requests = Requests(address, client)
        self._spool: tempfile.TemporaryDirectory[str] | None = None

    def spool(self) -> Path:
        """See :class:`~tailer.storage.targets.FolderTarget`: in the system's temporary folder."""
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
        with _translate_refusals(), suppress(FileNotFoundError):
            await self._send_request("delete", name, obstore.delete_async)

    async def rehearse(self) -> None:
        """See :class:`~tailer.storage.targets.FolderTarget`. Whether the address may be written is
        seen by a write alone."""

    async def aclose(self) -> None:
        spool, self._spool = self._spool, None
        if spool is not None:
            spool.cleanup()
        await self._store.aclose()

    async def _put_object(self, name: str, body: bytes, *, create: bool) -> bool:
        """Write an object; with ``create`` only if there is none, which it returns."""
        mode: Any = "create" if create else "overwrite"

        # In one request: parts have no condition.
        def put(container: Any, key: str) -> Awaitable[Any]:
            return obstore.put_async(container, key, body, mode=mode, use_multipart=False)

        with suppress(AlreadyExistsError, PreconditionError):
            await self._send_request("put", name, put, _ROOM * len(body))
            return True
        return False

    async def _send_request(
        self,
        operation: str,
        name: str,
        request: Callable[[Any, str], Awaitable[object]],
        room_bytes: float = 0,
    ) -> None:
        folder = self._requests.place
        key = f"{folder.key}/{name}" if folder.key else name
        await self._requests.send(
            operation,
            name,
            structs.replace(folder, key=key),
            lambda container: request(container, key),
            room_bytes=room_bytes,
            answers=(AlreadyExistsError, PreconditionError),
        )


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
