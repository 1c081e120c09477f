"""Where sinks publish files on Azure and Google storage: a folder of a container."""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import suppress
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, PreconditionError

from tailer.storage.store_target import StoreTarget
from tailer.store.objects.asking import asking
from tailer.store.objects.errors import FAILURES, translated
from tailer.store.objects.place import Place
from tailer.store.objects.store import Client, ObjectStore

__all__ = ["ObjectsTarget"]

#: How far the process may grow while a file is sent, in bytes for each of its own: the larger it
#: is, the longer others are at work meanwhile.
_ROOM = 32


class ObjectsTarget(StoreTarget):
    """Files below a place of a container."""

    def __init__(self, address: str, place: Place, client: Client) -> None:
        super().__init__(ObjectStore(address, client))
        self._container = client.container(place)
        self._prefix = f"{place.key}/" if place.key else ""

    async def _put(self, name: str, body: bytes, *, create: bool) -> bool:
        mode: Any = "create" if create else "overwrite"
        key = self._prefix + name
        # In one request: parts have no condition.
        put = obstore.put_async(self._container, key, body, mode=mode, use_multipart=False)
        with suppress(AlreadyExistsError, PreconditionError):
            await self._request("put", name, put, _ROOM * len(body))
            return True
        return False

    async def _delete(self, name: str) -> None:
        key = self._prefix + name
        with suppress(FileNotFoundError):
            await self._request("delete", name, obstore.delete_async(self._container, key))

    async def _request(
        self, operation: str, name: str, request: Awaitable[object], room_bytes: float = 0
    ) -> None:
        try:
            async with asking(f"{self.root}: {operation} of {name}", room_bytes):
                await request
        except (AlreadyExistsError, PreconditionError):
            raise
        except FAILURES as e:
            raise translated(e, operation, self.root, name) from None
