"""The object of a feed's offset on S3, Azure and Google storage, written on condition of its
ETag."""

from __future__ import annotations

from typing import Any

import obstore
from msgspec import structs
from obstore.exceptions import AlreadyExistsError, GenericError, PreconditionError

from tailer.errors import OffsetError, TransientError
from tailer.network.clock import steady_now
from tailer.offsets.conditional import Seen
from tailer.offsets.document import decode_document, make_document_name
from tailer.store.objects.requests import Client, Requests

#: How obstore says that a write was done, and its answer named no state.
_NO_ETAG = "ETag Header missing"


class CloudObject:
    """See :class:`tailer.offsets.conditional.ConditionalObject`.

    Google's condition is the object's generation, so the ETag that is handed on has both.
    """

    def __init__(self, address: str, feed: str, client: Client) -> None:
        self._name = name = f"{make_document_name(feed)}.offset.json"
        self._requests, self._feed = Requests(address, client), feed
        folder = self._requests.place
        self._place = structs.replace(folder, key=f"{folder.key}/{name}" if folder.key else name)
        self._path = f"{address.rstrip('/')}/{name}"

    @property
    def path(self) -> str:
        return self._path

    async def get(self) -> Seen:
        async def read(container: Any) -> tuple[Any, bytes]:
            answer = await obstore.get_async(container, self._place.key)
            return answer.meta, bytes(await answer.bytes_async())

        try:
            meta, body = await self._requests.send("get", self._name, self._place, read)
        except FileNotFoundError:
            return Seen(None, "", steady_now())
        now = steady_now()
        try:
            document = decode_document(body, self._feed, self.path)
        except OffsetError as e:
            document = {"epoch": 0, "damaged": e.what.partition(": ")[2]}
        return Seen(document, _join_etag(meta), now)

    async def put(self, body: bytes, etag: str | None) -> str | None:
        """See :class:`~tailer.offsets.conditional.ConditionalObject`. A write whose answer was lost
        is not repeated by obstore; the second one is refused if the first was done, and the caller
        finds that its own document is there."""
        try:
            return await self._put_once(body, etag)
        except TransientError:
            return await self._put_once(body, etag)

    async def _put_once(self, body: bytes, etag: str | None) -> str | None:
        mode: Any = "create" if etag is None else _parse_condition(etag)

        async def write(container: Any) -> str:
            try:
                return _join_etag(
                    await obstore.put_async(container, self._place.key, body, mode=mode)
                )
            except GenericError as e:
                if _NO_ETAG not in str(e):
                    raise
                return ""

        answers = (AlreadyExistsError, PreconditionError)
        try:
            return await self._requests.send("put", self._name, self._place, write, answers=answers)
        except answers:
            return None


def _join_etag(meta: Any) -> str:
    """Return ETag and version as one quoted text; "" or a weak ETag if the server names no
    state."""
    etag, version = meta["e_tag"] or "", meta["version"] or ""
    if not etag.strip('"') or etag.startswith("W/"):
        return str(etag)
    return f'"{etag.strip(chr(34))}|{version}"'


def _parse_condition(etag: str) -> dict[str, str]:
    """Return obstore's condition for a joined ETag. No object is of generation 1."""
    plain, _, version = etag.strip('"').partition("|")
    return {"e_tag": f'"{plain}"', "version": version or "1"}
