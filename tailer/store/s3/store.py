"""The store of tables on S3 and on servers with its API.

Every range that is read is checked against the answer's headers: which bytes of how many, and of
which state of the object (its ETag). A range that is short or of another state is fetched again,
and is an error after that; it never becomes an event.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections.abc import (
    AsyncGenerator,
    Callable,
    Mapping,
    Sequence,
)
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tailer.errors import ConfigError, TableError, TransientError
from tailer.network.clients import SharedClients as ClientsOf
from tailer.network.http_answers import strong_etag
from tailer.store import WHOLE_BYTES, Entries, FileStatus, Found, Store, outside
from tailer.store.budget import Budget
from tailer.store.pieces import PIECE_BYTES_MAX
from tailer.store.s3.client import Call, S3Client
from tailer.store.s3.errors import S3Answer, refusal
from tailer.store.s3.listing import list_pages
from tailer.store.s3.options import S3Options, parse_s3_address
from tailer.store.s3.ranges import (
    check_status,
    cut_range,
    etag_of,
    range_check,
    status_of,
    tag_of,
)
from tailer.store.side_by_side import side_by_side
from tailer.store.traffic import Traffic

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["S3Store", "SharedClients"]

#: Bytes of a large data file's end to fetch when it is opened: the footer of all but very wide
#: tables.
_TAIL_BYTES = 64 * 1024
#: Largest object that is accepted from a server that ignores the range.
_WHOLE_BYTES_MAX = 32 * 1024 * 1024
#: Most bytes of a read without a length.
_AT_ONCE_BYTES_MAX = 1024 * 1024 * 1024
#: Concurrent requests of one table.
_REQUESTS_MAX = 8
#: Most bytes in memory of an open data file, if nothing is fetched ahead.
_FILE_BYTES_MAX = 64 * 1024 * 1024
#: How often a folder without news is checked for gaps and another table, in seconds.
_CHECK_S = 120.0


def _made(options: S3Options) -> S3Client:
    return S3Client(options)


#: The clients of the process.
SharedClients = ClientsOf(_made)


def _folder(address: str) -> tuple[str, str]:
    """Return (bucket, key) of an address."""
    parsed = parse_s3_address(address)
    if parsed is None:
        raise ConfigError(f"{address!r} is not an S3 address like s3://bucket/key")
    return parsed


class S3Store(Store):
    """A table under a key of a bucket. ``table`` is ``s3://bucket/key``, or s3a or s3n.

    ``also`` are addresses of folders outside of the table's in which its files may be. ``traffic``
    counts the requests.
    """

    atomic = True
    check_s = _CHECK_S

    def __init__(
        self,
        table: str,
        options: Mapping[str, Any] | S3Options,
        traffic: Traffic | None = None,
        *,
        also: Sequence[str] = (),
    ) -> None:
        self._folders = [_folder(address) for address in (table, *also)]
        self._bucket, self._key = self._folders[0]
        chosen = options if isinstance(options, S3Options) else S3Options.from_options(options)
        self._options = chosen
        self._traffic = traffic or Traffic()
        self._client: S3Client | None = None
        self._ahead: Budget | None = None
        self._gate = asyncio.Semaphore(_REQUESTS_MAX)

    @property
    def root(self) -> str:
        """The table's address."""
        return f"s3://{self._bucket}/{self._key}"

    def _place(self, location: str) -> tuple[str, str]:
        """Return (bucket, key) of a location.

        Raises :class:`TableError` for one of another store, or outside of the table's folders.
        """
        address = parse_s3_address(location)
        if address is not None:
            bucket, key = address
            if ".." not in key.split("/") and any(
                bucket == one and (not folder or key.startswith(f"{folder}/"))
                for one, folder in self._folders
            ):
                return address
            raise outside(self.root, location)
        if "://" in location or location.startswith("/"):
            raise TableError(
                "the log refers to a file in a different store than the table's",
                table=self.root,
                path=location,
                hint="only files in S3 are read",
            )
        return self._bucket, f"{self._key}/{location}" if self._key else location

    def _connected(self) -> S3Client:
        if self._client is None:
            self._client = SharedClients.take(self._options)
            self._ahead = Budget(self._options.memory_bytes_max // 4, self._client.ahead)
        return self._client

    async def _request(self, call: Call) -> S3Answer:
        client = self._connected()
        async with self._gate:
            return await client.request(call, self._traffic)

    def ahead(self) -> Budget:
        """See :class:`tailer.store.Store`."""
        self._connected()
        assert self._ahead is not None
        return self._ahead

    async def list(self, folder: str, start_after: str = "") -> AsyncGenerator[FileStatus, None]:
        """See :class:`tailer.store.Store`; "" is the table's own folder."""
        bucket, key = self._place(folder) if folder else (self._bucket, self._key)
        prefix = f"{key}/" if key else ""
        after = prefix + start_after if start_after else ""
        pages = list_pages(self._connected(), self._request, bucket, prefix, after)
        async with contextlib.aclosing(pages):
            async for page in pages:
                for entry in page.objects:
                    name = entry.key.removeprefix(prefix)
                    # Not every server supports start-after; and some list the folder itself.
                    if name > start_after and entry.key.startswith(prefix):
                        tag = tag_of(entry.etag, entry.mtime_ms)
                        yield FileStatus(name, entry.size, entry.mtime_ms, tag)

    async def entries(self, address: str) -> Entries | None:
        """See :class:`tailer.store.Store`; of a first page alone."""
        place = parse_s3_address(address)
        if place is None:
            return None
        bucket, key = place
        prefix = f"{key}/" if key else ""
        pages = list_pages(self._connected(), self._request, bucket, prefix)
        async with contextlib.aclosing(pages):
            async for page in pages:
                names = [o.key.removeprefix(prefix) for o in page.objects if o.key != prefix]
                folders = [p.removeprefix(prefix).rstrip("/") for p in page.prefixes]
                if names or folders or page.following is None:
                    return Entries(names, folders) if names or folders else None
        return None

    async def stat(self, location: str) -> FileStatus:
        """See :class:`tailer.store.Store`."""
        bucket, key = self._place(location)
        answer = await self._request(Call("head", "HEAD", bucket, key, check=check_status))
        return self._status(answer, location, "head", bucket, key)

    def _status(
        self, answer: S3Answer, location: str, operation: str, bucket: str, key: str
    ) -> FileStatus:
        if answer.status == 404:
            raise FileNotFoundError(location)
        if answer.status not in (200, 206):
            raise refusal(answer, operation, bucket, key)
        return status_of(answer, location)

    async def read(
        self, location: str, offset: int = 0, length: int | None = None
    ) -> tuple[bytes, FileStatus]:
        """See :class:`tailer.store.Store`."""
        if length == 0:
            return b"", await self.stat(location)
        upto = None if length is None else offset + length
        data, status = await self._get(location, offset, upto)
        if data is None:  # nothing lies at this offset, and the refusal lacks the status
            return b"", await self.stat(location)
        return data, status

    async def read_many(self, reads: Sequence[tuple[str, int]]) -> Sequence[Found | None]:
        """See :class:`tailer.store.Store`: a few at once."""
        return await side_by_side(self._beginning(location, length) for location, length in reads)

    async def _get(
        self, location: str, start: int, end: int | None
    ) -> tuple[bytes | None, FileStatus]:
        """Return the bytes of [start, end), fewer at the file's end; None if there are none at all.

        A negative ``start`` counts from the file's end.
        """
        answer, status = await self._answer(location, start, end, None)
        return None if answer is None else cut_range(answer, start, end), status

    async def _answer(
        self,
        location: str,
        start: int,
        end: int | None,
        opened: FileStatus | None,
        *,
        in_parts: bool = False,
    ) -> tuple[S3Answer | None, FileStatus]:
        """Return the answer with a range, of the state of ``opened`` if that is given."""
        bucket, key = self._place(location)
        headers = {"Range": f"bytes={start}" if start < 0 else f"bytes={start}-"}
        if end is not None:
            headers["Range"] += str(end - 1)
        if opened is not None and (etag := strong_etag(etag_of(opened))) is not None:
            headers["If-Match"] = etag
        open_end = start + _AT_ONCE_BYTES_MAX if start >= 0 else 0
        bytes_max = max((open_end if end is None else end) - start, _WHOLE_BYTES_MAX)
        check = range_check(start, end, opened)
        call = Call(
            "get", "GET", bucket, key, {}, headers,
            bytes_max=bytes_max, in_parts=in_parts, check=check,
        )  # fmt: skip
        answer = await self._request(call)
        if answer.status == 416:
            return None, FileStatus("", 0, 0, "")
        if answer.status == 412:
            raise TransientError(f"s3://{bucket}/{key} was replaced while it was read")
        return answer, self._status(answer, location, "get", bucket, key)

    async def open(self, location: str, size: int | None) -> pa.NativeFile:
        """See :class:`tailer.store.Store`. A small file is fetched whole, by one request."""
        end = size if size is not None and size <= WHOLE_BYTES else _TAIL_BYTES
        tail, status = await self._get(location, -max(1, end), None)
        if tail is None:
            status = await self.stat(location)
            if status.size:
                raise TransientError(f"{self.root}, {location}: no end of {status.size} bytes")
            tail = b""
        # on demand: a log is read without it, and it takes long to load
        import pyarrow as pa

        from tailer.store.ranged import RangedFile, RangedReader  # on demand: it loads pyarrow

        if len(tail) == status.size:
            return pa.BufferReader(tail)

        async def fetch(start: int, end: int) -> Sequence[bytes]:
            return await self._parts(location, start, end, status)

        kept_max = self._options.memory_bytes_max // 4 or _FILE_BYTES_MAX
        return RangedFile(RangedReader(fetch, status.size, tail, kept_max, self._ahead), mode="r")

    async def _parts(
        self, location: str, start: int, end: int, opened: FileStatus
    ) -> Sequence[bytes]:
        """Fetch a range of an open file, side by side where it is long."""
        bounds = [*range(start, end, PIECE_BYTES_MAX), end]

        async def part(first: int, last: int) -> Sequence[bytes]:
            answer, _ = await self._answer(location, first, last, opened, in_parts=True)
            parts = (
                () if answer is None else answer.parts or [cut_range(answer, first, last) or b""]
            )
            if sum(map(len, parts)) != last - first:
                raise TransientError(f"{self.root}, {location} is shorter than it was when opened")
            return parts

        if len(bounds) == 2:
            return await part(start, end)
        pieces = await side_by_side(part(first, last) for first, last in pairwise(bounds))
        return [one for parts in pieces for one in parts]

    async def presigner(self, at: dt.datetime, ttl_s: int) -> Callable[[str], str | None] | None:
        """See :class:`tailer.store.Store`; None for anonymous access, and for another bucket."""
        with contextlib.suppress(FileNotFoundError):
            # The answer to a request says which region the bucket is in.
            await self.stat("_delta_log/_last_checkpoint")
        assert self._client is not None
        signer = await self._client.presigner(self._bucket, at, ttl_s)
        if signer is None:
            return None

        def url(location: str) -> str | None:
            bucket, key = self._place(location)
            return signer.url(key) if bucket == self._bucket else None

        return url

    async def aclose(self) -> None:
        """Give the connections back."""
        client, self._client = self._client, None
        if client is not None:
            await SharedClients.give_back(client)
