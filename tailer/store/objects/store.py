"""The store of tables on Azure and Google storage.

Each answer says which state of the object it is of (its ETag). An open file is read on condition of
that state, so that a range of another one is an error and never becomes an event.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import obstore
from msgspec import structs

from tailer.errors import TableError, TailerError, TransientError
from tailer.network.http_answers import Rounds, not_too_many
from tailer.store import WHOLE_BYTES, Entries, FileStatus, Found, Store, outside
from tailer.store.budget import Budget
from tailer.store.objects.asking import Endless, asking
from tailer.store.objects.errors import FAILURES, is_refusal, is_without_credentials, translated
from tailer.store.objects.options import CloudOptions, Credentials
from tailer.store.objects.place import Place
from tailer.store.pieces import PIECE_BYTES_MAX
from tailer.store.ranged import RangedFile, RangedReader
from tailer.store.side_by_side import side_by_side
from tailer.store.traffic import Traffic

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Client", "ObjectStore"]

T = TypeVar("T")

#: Bytes of a large data file's end to fetch when it is opened: the footer of all but very wide
#: tables.
_TAIL_BYTES = 64 * 1024
#: Most bytes of a read without a length.
_AT_ONCE_BYTES_MAX = 1024 * 1024 * 1024
#: Concurrent requests of one table.
_REQUESTS_MAX = 8
#: Bytes of one table's open file and of what is fetched ahead of it, a half each: most writers' row
#: groups, of a million rows, fit into 48 MiB, and then come in few requests.
_AHEAD_BYTES_MAX = 96 * 1024 * 1024
#: Bytes that all tables together may fetch ahead.
_TOTAL_AHEAD = Budget(256 * 1024 * 1024)
#: How often a folder without news is checked for gaps and another table, in seconds.
_CHECK_S = 120.0
#: Google accepts no signature that is valid for longer: seven days.
_URL_TTL_S_MAX = 604_800
#: Objects of a listing's page: Google's has so many, Azure's five times as many.
_PAGE_OBJECTS = 1000
#: Pages in succession without a file of the folder: the files of those below it are listed, too.
_IDLE_PAGES_MAX = 10_000
#: For an answer and its repetitions, or for a thousand objects of a listing: a server may say for
#: ever that there is another page.
_REQUEST_S = 300.0


@dataclass(frozen=True, slots=True)
class Client:
    """How the addresses of one cloud are read, and its containers reached."""

    options: CloudOptions
    parse: Callable[[str], Place | None]
    credentials: Credentials | None = None

    def container(self, place: Place) -> Any:
        """Return obstore's container of a place."""
        return self.options.container(place, self.credentials)


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
        place = client.parse(address)
        assert place is not None
        self._address, self._place, self._client = address.rstrip("/"), place, client
        self._container = client.container(place)
        self._folders = [place, *also]
        self._traffic = traffic or Traffic()
        self._ahead = Budget(_AHEAD_BYTES_MAX, _TOTAL_AHEAD)
        self._gate = asyncio.Semaphore(_REQUESTS_MAX)

    @property
    def root(self) -> str:
        """The table's address."""
        return self._address

    def _at(self, location: str) -> tuple[Any, str]:
        """Return (container, key) of a location.

        Raises :class:`TableError` for one of another store, or outside of the table's folders.
        """
        if "://" not in location and not location.startswith("/"):
            key = f"{self._place.key}/{location}" if self._place.key else location
            return self._container, key
        # Locations are plain text, and the key of a URL is not.
        plain = quote(location, safe="/:") if location.startswith("https:") else location
        place = self._client.parse(plain)
        if place is None:
            raise TableError(
                "the log refers to a file in a different store than the table's",
                table=self.root,
                path=location,
            )
        if not any(folder.holds(place) for folder in self._folders):
            raise outside(self.root, location)
        return self._reach(place), place.key

    def _reach(self, place: Place) -> Any:
        """Return the container of a place; without an account, it is of the table's."""
        home = self._place
        if place.account is None:
            place = structs.replace(place, account=home.account, domain=home.domain)
        same = (place.container, place.account) == (home.container, home.account)
        return self._container if same else self._client.container(place)

    async def _request(
        self,
        operation: str,
        location: str,
        request: Callable[[], Awaitable[T]],
        room_bytes: float = 0,
    ) -> T:
        """Send one request for so many bytes, and count it; raise its failure as this project's
        error.

        What a catalog vends may end before it says so: if refused, it is asked for anew, once.
        """
        async with self._gate:
            for last in (self._client.credentials is None, True):
                client = self._client
                what = f"{self.root}: {operation}" + f" of {location}" * bool(location)
                try:
                    async with asyncio.timeout(_REQUEST_S), asking(what, room_bytes):
                        return await request()
                except TimeoutError:
                    self._traffic.request(operation, "failed", 0)
                    raise TransientError(f"{what} took longer than {_REQUEST_S:g} s") from None
                except FAILURES as e:
                    self._traffic.request(operation, _outcome(e), 0)
                    if not last and is_refusal(e):
                        self._renew(client)
                        self._traffic.retry(operation)
                        continue
                    error = self._refusal(e) or translated(e, operation, self.root, location)
                    # Without its cause, whose text may have a signed URL in it.
                    raise error from None
                except (TailerError, asyncio.CancelledError):
                    self._traffic.request(operation, "failed", 0)
                    raise
        raise AssertionError

    def _renew(self, refused: Client) -> None:
        """Go on with other credentials than a client's, unless another request has seen to it."""
        if self._client is refused and refused.credentials is not None:
            self._client = replace(refused, credentials=refused.credentials.anew())
            self._container = self._client.container(self._place)

    def _refusal(self, error: Exception) -> Exception | None:
        """Return why there were no credentials for a request that failed; None if there were."""
        credentials = self._client.credentials
        return credentials.refusal if credentials and is_without_credentials(error) else None

    def ahead(self) -> Budget:
        """See :class:`tailer.store.Store`."""
        return self._ahead

    async def list(self, folder: str, start_after: str = "") -> AsyncGenerator[FileStatus, None]:
        """See :class:`tailer.store.Store`; "" is the table's own folder."""
        key = self._at(folder)[1] if folder else self._place.key
        prefix = f"{key}/" if key else ""
        last, pages = prefix + start_after if start_after else None, None
        rounds, listed = Rounds(_IDLE_PAGES_MAX), 0

        async def next_page() -> Any | None:
            nonlocal pages
            if pages is None:
                container = self._at(folder)[0] if folder else self._container
                pages = obstore.list(
                    container, prefix or None, offset=last, chunk_size=_PAGE_OBJECTS
                )
            try:
                return await anext(pages)
            except StopAsyncIteration:
                return None
            except FAILURES:
                pages = None  # it can't go on; a further attempt begins after the last object
                raise

        while True:
            page = await self._request("list", folder, next_page)
            self._traffic.request("list", "200", 0)
            if not page:
                return
            names = 0
            for meta in page:
                name = meta["path"].removeprefix(prefix)
                if name > start_after and "/" not in name:
                    names += 1
                    yield _status(meta, name)
            if len(page) < _PAGE_OBJECTS:
                return
            last = page[-1]["path"]
            if rounds.closed_by(last, empty=not names):
                raise TransientError(
                    f"{self.root}: the pages of the server's listing form a loop; check the "
                    "server, and any proxy between it and this machine"
                )
            listed += names
            not_too_many(listed, f"{self.root}: the listing of {folder or key}")

    async def entries(self, address: str) -> Entries | None:
        """See :class:`tailer.store.Store`."""
        place = self._client.parse(address)
        if place is None:
            return None
        prefix = f"{place.key}/" if place.key else ""
        found = await self._request(
            "list",
            address,
            lambda: obstore.list_with_delimiter_async(self._reach(place), prefix or None),
        )
        self._traffic.request("list", "200", 0)
        files = [meta["path"].removeprefix(prefix) for meta in found["objects"]]
        folders = [path.removeprefix(prefix).rstrip("/") for path in found["common_prefixes"]]
        return Entries(files, folders) if files or folders else None

    async def stat(self, location: str) -> FileStatus:
        """See :class:`tailer.store.Store`."""

        def head() -> Awaitable[Any]:
            container, key = self._at(location)
            return obstore.head_async(container, key)

        meta = await self._request("head", location, head)
        self._traffic.request("head", "200", 0)
        return _status(meta, location.rpartition("/")[2])

    async def read(
        self, location: str, offset: int = 0, length: int | None = None
    ) -> tuple[bytes, FileStatus]:
        """See :class:`tailer.store.Store`."""
        if length == 0:
            return b"", await self.stat(location)
        if not offset and length is None:
            data, status = await self._get(location, {})
            return bytes(data), status
        end = offset + (_AT_ONCE_BYTES_MAX if length is None else length)
        try:
            data, status = await self._get(location, {"range": (offset, end)})
        except TransientError:
            status = await self.stat(location)
            if offset < status.size:
                raise
            return b"", status  # nothing lies at this offset, which is refused
        return bytes(data), status

    async def read_many(self, reads: Sequence[tuple[str, int]]) -> Sequence[Found | None]:
        """See :class:`tailer.store.Store`: several at once."""
        return await side_by_side(self._beginning(place, length) for place, length in reads)

    async def _get(self, location: str, options: Any) -> tuple[Any, FileStatus]:
        """Return bytes of an object, as they lie in obstore's memory, and its status.

        If the process grew too far meanwhile, perhaps by another feed's work on a slow day, they
        are asked for again, and counted as they come, which takes a copy of them.
        """
        first, end = options.get("range", (0, _AT_ONCE_BYTES_MAX))
        try:
            return await self._request(
                "get", location, lambda: self._answer(location, options), end - first
            )
        except Endless:
            self._traffic.retry("get")
            counted = partial(self._answer, location, options, counts=True)
            return await self._request("get", location, counted, math.inf)

    async def _answer(
        self, location: str, options: Any, *, counts: bool = False
    ) -> tuple[Any, FileStatus]:
        """Send one request, and return its whole answer."""
        container, key = self._at(location)
        async with asking(f"{self.root}: get of {location}", 0 if counts else math.inf):
            answer = await obstore.get_async(container, key, options=options)
        status, (first, end) = _status(answer.meta, location.rpartition("/")[2]), answer.range
        if end - first > _AT_ONCE_BYTES_MAX:
            raise TableError(
                f"the file has {status.size} bytes, too many to be read at once",
                table=self.root,
                path=location,
            )
        data = await (_counted(answer, end - first) if counts else answer.bytes_async())
        if len(data) != end - first:
            raise TransientError(f"{self.root}, {location}: {len(data)} bytes of {end - first}")
        self._traffic.request("get", "206" if "range" in options else "200", len(data))
        return data, status

    async def open(self, location: str, size: int | None) -> pa.NativeFile:
        """See :class:`tailer.store.Store`. A small file is fetched whole, by one request."""
        import pyarrow as pa  # on demand: a log is read without it, and it takes long to load

        if size is not None and size <= WHOLE_BYTES:
            data, status = await self._get(location, {})
            if len(data) != size:  # of the object, or of this answer alone
                status = await self.stat(location)
                if status.size != len(data):
                    said = f"an answer of {len(data)} of its {status.size} bytes"
                    raise TransientError(f"{self.root}, {location}: {said}")
            return pa.BufferReader(pa.py_buffer(data))
        tail, status = await self._tail(location, size)

        async def fetch(start: int, end: int) -> Sequence[bytes]:
            bounds = [*range(start, end, PIECE_BYTES_MAX), end]
            return await side_by_side(
                self._piece(location, status, first, last) for first, last in pairwise(bounds)
            )

        reader = RangedReader(fetch, status.size, tail, _AHEAD_BYTES_MAX, self._ahead)
        return RangedFile(reader, mode="r")

    async def _tail(self, location: str, size: int | None) -> tuple[bytes, FileStatus]:
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

    async def _piece(self, location: str, opened: FileStatus, first: int, last: int) -> bytes:
        """Return a range of an open file."""
        condition = {"if_match": f'"{opened.tag}"'} if opened.tag else {}
        data, status = await self._get(location, {**condition, "range": (first, last)})
        if (status.tag, status.size) != (opened.tag, opened.size):
            raise TransientError(f"{self.root}, {location} was replaced while it was read")
        return data  # type: ignore[no-any-return]  # it has bytes' buffer

    async def access(self) -> str:
        """See :class:`tailer.store.Store`."""
        return self._client.options.account(self._place)

    async def presigner(self, at: dt.datetime, ttl_s: int) -> Callable[[str], str | None] | None:  # noqa: ARG002 - obstore signs from now on
        """See :class:`tailer.store.Store`; None where the account's own key is not here."""
        if self._client.credentials is not None or not self._client.options.has_key():
            return None
        lasts = dt.timedelta(seconds=min(ttl_s, _URL_TTL_S_MAX))

        def url(location: str) -> str | None:
            container, key = self._at(location)
            try:
                return str(obstore.sign(container, "GET", key, lasts))
            except FAILURES as e:
                raise translated(e, "sign", self.root, location) from None

        return url


async def _counted(answer: Any, size: int) -> bytes:
    """Return the bytes of an answer; about twice its size at most, though it may have no end."""
    pieces = aiter(answer.stream(min_chunk_size=max(size, 1)))
    data: bytes = await anext(pieces, b"")
    return data + await anext(pieces, b"")


def _outcome(error: Exception) -> str:
    return "404" if isinstance(error, FileNotFoundError) else "failed"


def _status(meta: Any, name: str) -> FileStatus:
    # Only Google's listings have parts of a second.
    mtime_ms = int(meta["last_modified"].timestamp()) * 1000
    # A listing has the ETag without its quotes.
    return FileStatus(name, meta["size"], mtime_ms, (meta["e_tag"] or "").strip('"'))
