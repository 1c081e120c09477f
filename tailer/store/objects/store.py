"""The store of tables on S3, Azure and Google storage.

Each answer says which state of the object it is of (its ETag). An open file is read on condition of
that state, so that a range of another one is an error and never becomes an event.
"""

from __future__ import annotations

import datetime as dt
import math
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import obstore
from msgspec import structs

from tailer.errors import TableError, TransientError
from tailer.network.http_answers import Rounds, check_listing_size
from tailer.store import WHOLE_BYTES, FileStatus, FolderEntries, Found, Store, make_outside_error
from tailer.store.budget import Budget
from tailer.store.objects.asking import Endless, asking
from tailer.store.objects.errors import FAILURES, status_of, translate_error
from tailer.store.objects.place import Place
from tailer.store.objects.requests import Client, Requests
from tailer.store.pieces import PIECE_BYTES_MAX
from tailer.store.side_by_side import side_by_side
from tailer.store.traffic import Traffic

if TYPE_CHECKING:
    import pyarrow as pa

#: Bytes of a large data file's end to fetch when it is opened: the footer of all but very wide
#: tables.
_TAIL_BYTES = 64 * 1024
#: Most bytes of a read without a length.
_AT_ONCE_BYTES_MAX = 1024 * 1024 * 1024
#: Most bytes in memory of an open data file, if nothing is fetched ahead.
_FILE_BYTES_MAX = 64 * 1024 * 1024
#: How often a folder without news is checked for gaps and another table, in seconds.
_CHECK_S = 120.0
#: S3 and Google accept no signature that is valid for longer: seven days.
_URL_TTL_S_MAX = 604_800
#: Objects in a page of a listing on S3 and Google; Azure's pages have five times as many.
_PAGE_OBJECTS = 1000
#: Pages in succession without a file of the folder: the files of those below it are listed, too.
_IDLE_PAGES_MAX = 10_000


class ObjectStore(Store):
    """A table under a key of a container. ``address`` is the table's, for messages.

    ``also`` are folders outside of the table's in which its files may be.
    """

    atomic = True
    check_s = _CHECK_S

    def __init__(
        self,
        address: str,
        client: Client,
        traffic: Traffic | None = None,
        *,
        also: Sequence[Place] = (),
    ) -> None:
        self._requests = Requests(address, client, traffic)
        self._place = self._requests.place
        self._folders = [self._place, *also]
        self._traffic = self._requests.traffic
        self._ahead = client.options.make_budget()
        self._starts_after = True

    @property
    def root(self) -> str:
        return self._requests.address

    def _find_place(self, location: str) -> Place:
        """Return the place of a location.

        Raises :class:`TableError` for one of another store, or outside of the table's folders.
        """
        if "://" not in location and not location.startswith("/"):
            key = f"{self._place.key}/{location}" if self._place.key else location
            return structs.replace(self._place, key=key)
        # Locations are plain text, and the key of a URL is not.
        plain = quote(location, safe="/:") if location.startswith("https:") else location
        place = self._requests.client.parse(plain)
        if place is None:
            raise TableError(
                "the log refers to a file in a different store than the table's",
                table=self.root,
                path=location,
            )
        if not any(folder.contains_place(place) for folder in self._folders):
            raise make_outside_error(self.root, location)
        return place

    def ahead(self) -> Budget:
        return self._ahead

    async def list(self, folder: str, start_after: str = "") -> AsyncGenerator[FileStatus, None]:
        """See :class:`tailer.store.Store`; "" is the table's own folder."""
        place = self._find_place(folder) if folder else self._place
        prefix = f"{place.key}/" if place.key else ""
        last, pages = prefix + start_after if start_after else None, None
        rounds, listed = Rounds(_IDLE_PAGES_MAX), 0

        async def next_page(container: Any) -> Any | None:
            nonlocal pages
            if pages is None:
                pages = obstore.list(
                    container,
                    prefix or None,
                    offset=last if self._starts_after else None,
                    chunk_size=_PAGE_OBJECTS,
                )
            try:
                return await anext(pages)
            except StopAsyncIteration:
                return None
            except FAILURES as e:
                pages = None  # it can't go on; a further attempt begins after the last object
                if last is None or not self._starts_after or status_of(e) != "501":
                    raise
                self._starts_after = False
                return await next_page(container)

        while True:
            page = await self._requests.send("list", folder, place, next_page)
            self._traffic.request("list", "200", 0)
            if not page:
                if last is None:
                    await self._check_server(place)
                return
            names = 0
            for meta in page:
                name = meta["path"].removeprefix(prefix)
                if name > start_after and "/" not in name:
                    names += 1
                    yield _make_status(meta, name)
            if len(page) < _PAGE_OBJECTS:
                return
            last = page[-1]["path"]
            if rounds.add_token(last, empty=not names):
                raise TransientError(
                    f"{self.root}: the pages of the server's listing form a loop; check the "
                    "server, and any proxy between it and this machine"
                )
            listed += names
            check_listing_size(listed, f"{self.root}: the listing of {folder or place.key}")

    async def _check_server(self, place: Place) -> None:
        """Raise :class:`TransientError` if what has listed nothing is no object storage: obstore
        reads any page of XML or HTML as a listing without objects. A server of such pages has one
        for a name that nobody has chosen, too."""
        key = f"{place.key}/{uuid.uuid4().hex}".lstrip("/")
        try:
            await self._requests.send(
                "head", key, place, lambda container: obstore.head_async(container, key)
            )
        except (FileNotFoundError, TableError):
            return
        raise TransientError(
            f"{self.root}: the listing is empty, but the server has an object of any name; check "
            "the endpoint, and any proxy between it and this machine"
        )

    async def entries(self, address: str) -> FolderEntries | None:
        place = self._requests.client.parse(address)
        if place is None:
            return None
        prefix = f"{place.key}/" if place.key else ""
        found = await self._requests.send(
            "list",
            address,
            place,
            lambda container: obstore.list_with_delimiter_async(container, prefix or None),
        )
        self._traffic.request("list", "200", 0)
        files = [meta["path"].removeprefix(prefix) for meta in found["objects"]]
        folders = [path.removeprefix(prefix).rstrip("/") for path in found["common_prefixes"]]
        if files or folders:
            return FolderEntries(files, folders)
        await self._check_server(place)
        return None

    async def stat(self, location: str) -> FileStatus:
        place = self._find_place(location)
        meta = await self._requests.send(
            "head", location, place, lambda container: obstore.head_async(container, place.key)
        )
        self._traffic.request("head", "200", 0)
        return _make_status(meta, location.rpartition("/")[2])

    async def read(self, location: str, offset: int = 0, length: int | None = None) -> Found:
        if length == 0:
            return b"", await self.stat(location)
        if not offset and length is None:
            data, status = await self._read_object(location, {})
            return bytes(data), status
        end = offset + (_AT_ONCE_BYTES_MAX if length is None else length)
        try:
            data, status = await self._read_object(location, {"range": (offset, end)})
        except TransientError as e:
            try:
                status = await self.stat(location)
            except TableError:  # HEAD's answer has no reason, and the other has one
                raise e from None
            if offset < status.size:
                raise
            return b"", status  # nothing lies at this offset, which is refused
        return bytes(data), status

    async def read_many(self, reads: Sequence[tuple[str, int]]) -> Sequence[Found | None]:
        """See :class:`tailer.store.Store`: several at once."""
        return await side_by_side(self._read_beginning(place, length) for place, length in reads)

    async def _read_object(self, location: str, options: Any) -> Found:
        """Return bytes of an object, as they lie in obstore's memory, and its status.

        If the process grew too far meanwhile, perhaps by another feed's work on a slow day, they
        are asked for again, and counted as they come, which takes a copy of them.
        """
        first, end = options.get("range", (0, _AT_ONCE_BYTES_MAX))
        place = self._find_place(location)
        answer = partial(self._request_object, location, place.key, options)
        try:
            return await self._requests.send("get", location, place, answer, room_bytes=end - first)
        except Endless:
            self._traffic.retry("get")
            counted = partial(answer, counts=True)
            return await self._requests.send("get", location, place, counted, room_bytes=math.inf)

    async def _request_object(
        self, location: str, key: str, options: Any, container: Any, *, counts: bool = False
    ) -> Found:
        """Send one request, and return its whole answer."""
        async with asking(f"{self.root}: get of {location}", 0 if counts else math.inf):
            answer = await obstore.get_async(container, key, options=options)
        status, (first, end) = _make_status(answer.meta, location.rpartition("/")[2]), answer.range
        if end - first > _AT_ONCE_BYTES_MAX:
            raise TableError(
                f"the file has {status.size} bytes, too many to be read at once",
                table=self.root,
                path=location,
            )
        data: Any = await (_read_counted(answer, end - first) if counts else answer.bytes_async())
        if len(data) != end - first:
            raise TransientError(f"{self.root}, {location}: {len(data)} bytes of {end - first}")
        self._traffic.request("get", "206" if "range" in options else "200", len(data))
        return data, status

    async def open(self, location: str, size: int | None) -> pa.NativeFile:
        """See :class:`tailer.store.Store`. A small file is fetched whole, by one request."""
        import pyarrow as pa  # on demand: a log is read without it, and it takes long to load

        if size is not None and size <= WHOLE_BYTES:
            data, status = await self._read_object(location, {})
            if len(data) != size:  # of the object, or of this answer alone
                status = await self.stat(location)
                if status.size != len(data):
                    said = f"an answer of {len(data)} of its {status.size} bytes"
                    raise TransientError(f"{self.root}, {location}: {said}")
            return pa.BufferReader(pa.py_buffer(data))
        tail, status = await self._read_tail(location, size)

        async def fetch(start: int, end: int) -> Sequence[bytes]:
            bounds = [*range(start, end, PIECE_BYTES_MAX), end]
            return await side_by_side(
                self._read_piece(location, status, first, last) for first, last in pairwise(bounds)
            )

        from tailer.store.ranged import RangedFile, RangedReader  # on demand: it loads pyarrow

        kept_max = self._ahead.bytes_max or _FILE_BYTES_MAX
        reader = RangedReader(fetch, status.size, tail, kept_max, self._ahead)
        return RangedFile(reader, mode="r")

    async def _read_tail(self, location: str, size: int | None) -> Found:
        """Return the end of an object. Azure has no range that counts from there, so that its size
        has to be known: the log's, or else the object's own."""
        status = None
        if size is not None:
            tail, status = await self.read(location, size - _TAIL_BYTES)
        if status is None or status.size != size:
            size = (status or await self.stat(location)).size
            tail, status = await self.read(location, max(0, size - _TAIL_BYTES))
            if status.size != size:
                raise TransientError(f"{self.root}, {location} was replaced while it was opened")
        return tail, status

    async def _read_piece(self, location: str, opened: FileStatus, first: int, last: int) -> bytes:
        """Return a range of an open file."""
        etag = opened.tag.rpartition(" ")[0]
        # A weak one would never match; it counts below, and the time.
        strong = etag and not etag.startswith("W/")
        condition = {"if_match": f'"{etag}"'} if strong else {}
        data, status = await self._read_object(location, {**condition, "range": (first, last)})
        if (status.tag, status.size) != (opened.tag, opened.size):
            raise TransientError(f"{self.root}, {location} was replaced while it was read")
        return data

    async def access(self) -> str:
        return self._requests.client.options.describe_account(self._place)

    async def presigner(self, at: dt.datetime, ttl_s: int) -> Callable[[str], str | None] | None:  # noqa: ARG002 - obstore signs from now on
        """See :class:`tailer.store.Store`; None where no key is here to sign with."""
        client, home = self._requests.client, self._place
        if home.cloud == "s3":
            with suppress(FileNotFoundError):
                await self.stat("_delta_log/_last_checkpoint")  # it says which region is asked
        signer = await client.options.open_signer(home, client.credentials)
        if signer is None:
            return None
        lasts = dt.timedelta(seconds=min(ttl_s, _URL_TTL_S_MAX))

        def url(location: str) -> str | None:
            place = self._find_place(location)
            if place.container != home.container:
                return None
            try:
                return str(obstore.sign(signer, "GET", place.key, lasts))
            except FAILURES as e:
                raise translate_error(e, "sign", self.root, location) from None

        return url


async def _read_counted(answer: Any, size: int) -> bytes:
    """Return the bytes of an answer; about twice its size at most, though it may have no end."""
    pieces = aiter(answer.stream(min_chunk_size=max(size, 1)))
    data: bytes = await anext(pieces, b"")
    return data + await anext(pieces, b"")


def _make_status(meta: Any, name: str) -> FileStatus:
    # Only Google's listings have parts of a second.
    mtime_ms = int(meta["last_modified"].timestamp()) * 1000
    # A listing may have the ETag without its quotes. S3's is that of the bytes, and the same ones
    # may be written again.
    etag = (meta["e_tag"] or "").strip('"')
    return FileStatus(name, meta["size"], mtime_ms, f"{etag} {mtime_ms}")
