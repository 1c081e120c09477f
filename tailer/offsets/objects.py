"""The object of a feed's offset on Azure and Google storage, written on condition of its ETag."""

from __future__ import annotations

from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, PreconditionError

from tailer.errors import OffsetError, TransientError
from tailer.offsets.conditional import Seen, steady_now
from tailer.offsets.document import document_name, from_bytes
from tailer.store.objects.asking import asking
from tailer.store.objects.errors import FAILURES, translated

__all__ = ["CloudObject"]


class CloudObject:
    """See :class:`tailer.offsets.conditional.ConditionalObject`.

    Google's condition is the object's generation, so the ETag that is handed on has both.
    """

    def __init__(self, address: str, key: str, feed: str, container: Any) -> None:
        name = f"{document_name(feed)}.offset.json"
        self._key = f"{key}/{name}" if key else name
        self._path = f"{address.rstrip('/')}/{name}"
        self._address, self._feed, self._container = address, feed, container

    @property
    def path(self) -> str:
        """See :class:`~tailer.offsets.conditional.ConditionalObject`."""
        return self._path

    async def open(self) -> None:
        """See :class:`~tailer.offsets.conditional.ConditionalObject`: clients are shared."""

    async def close(self) -> None:
        """See :class:`~tailer.offsets.conditional.ConditionalObject`."""

    async def get(self) -> Seen:
        """See :class:`~tailer.offsets.conditional.ConditionalObject`."""
        try:
            async with asking(f"{self._address}: get of {self._path}"):
                answer = await obstore.get_async(self._container, self._key)
                body = bytes(await answer.bytes_async())
        except FAILURES as e:
            error = translated(e, "get", self._address, self._path)
            if isinstance(error, FileNotFoundError):
                return Seen(None, "", 0.0, steady_now())
            raise error from None
        now = steady_now()
        try:
            document = from_bytes(body, self._feed, self.path)
        except OffsetError as e:
            document = {"epoch": 0, "damaged": e.what.partition(": ")[2]}
        # No answer has the server's time: a standby waits for the lease by its own clock.
        return Seen(document, _etag(answer.meta), 0.0, now)

    async def put(self, body: bytes, etag: str | None) -> str | None:
        """See :class:`~tailer.offsets.conditional.ConditionalObject`. A write whose answer was lost
        is not repeated by obstore; the second one is refused if the first was done, and the caller
        finds that its own document is there."""
        try:
            return await self._put(body, etag)
        except TransientError:
            return await self._put(body, etag)

    async def _put(self, body: bytes, etag: str | None) -> str | None:
        mode: Any = "create" if etag is None else _condition(etag)
        try:
            async with asking(f"{self._address}: put of {self._path}"):
                written = await obstore.put_async(self._container, self._key, body, mode=mode)
        except (AlreadyExistsError, PreconditionError):
            return None
        except FAILURES as e:
            error = translated(e, "put", self._address, self._path)
            if etag is not None and isinstance(error, FileNotFoundError):
                return None
            raise error from None
        return _etag(written)


def _etag(meta: Any) -> str:
    """Return ETag and version as one quoted text; "" if the server names no state."""
    etag, version = meta["e_tag"] or "", meta["version"] or ""
    return f'"{etag.strip(chr(34))}|{version}"' if etag else ""


def _condition(etag: str) -> dict[str, str]:
    """Return obstore's condition for an ETag of :func:`_etag`. No object is of generation 1."""
    plain, _, version = etag.strip('"').partition("|")
    return {"e_tag": f'"{plain}"', "version": version or "1"}
