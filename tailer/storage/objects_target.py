"""Where sinks publish files on S3, Azure and Google storage: a folder of a container."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import obstore
from msgspec import structs
from obstore.exceptions import AlreadyExistsError, PreconditionError

from tailer.storage.store_target import StoreTarget
from tailer.store.objects.requests import Client, Requests
from tailer.store.objects.store import ObjectStore

#: How far the process may grow while a file is sent, in bytes for each of its own: the larger it
#: is, the longer others are at work meanwhile.
_ROOM = 32


class ObjectsTarget(StoreTarget):
    """Files below a place of a container."""

    def __init__(self, address: str, client: Client) -> None:
        super().__init__(ObjectStore(address, client))
        self._requests = Requests(address, client)

    async def _put_object(self, name: str, body: bytes, *, create: bool) -> bool:
        mode: Any = "create" if create else "overwrite"

        # In one request: parts have no condition.
        def put(container: Any, key: str) -> Awaitable[Any]:
            return obstore.put_async(container, key, body, mode=mode, use_multipart=False)

        with suppress(AlreadyExistsError, PreconditionError):
            await self._send_request("put", name, put, _ROOM * len(body))
            return True
        return False

    async def _delete_object(self, name: str) -> None:
        with suppress(FileNotFoundError):
            await self._send_request("delete", name, obstore.delete_async)

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
