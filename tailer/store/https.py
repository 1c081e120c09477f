"""Files behind pre-signed URLs, read by ranges; each range is checked to be of one unchanged file.

A URL grants the right to read one file for a while. Files are therefore known by their location,
and a :class:`LinkSource` gives the URL that is valid now. When a server rejects a URL as expired,
another one is requested once; if that is rejected too, it is an error.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

import pyarrow as pa
from yarl import URL

from tailer.errors import CorruptLog, TableError, TransientError
from tailer.network.http_answers import (
    find_packing,
    parse_content_range,
    parse_retry_after,
    parse_strong_etag,
    read_at_most,
)
from tailer.sharing.http import Whereabouts, may_heal_status, network_errors
from tailer.sharing.profile import check_url, leads_here
from tailer.store.budget import Budget
from tailer.store.ranged import RangedFile, RangedReader

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

#: A file up to this size is read whole by the request that opens it.
WHOLE_BYTES_MAX = 4 * 1024 * 1024
#: Of a larger file, opening it reads this much of the end, where Parquet keeps the footer.
_TAIL_BYTES = 1024 * 1024
#: Most bytes in memory of one open file; and once more, of one table, of what is fetched ahead.
_READ_AHEAD_BYTES_MAX = 64 * 1024 * 1024
#: Most bytes of a read without a length.
_AT_ONCE_BYTES_MAX = 1024 * 1024 * 1024
#: A URL that expires sooner than this is not used.
_MARGIN_MS = 30_000
#: How file servers reject an expired URL: S3 and Azure 403, Google 400, some 401 or 410.
_EXPIRED = (400, 401, 403, 410)


@dataclass(frozen=True, slots=True)
class Link:
    """The URL at which a file can be read now.

    ``expires_ms`` is in epoch ms, ``size`` in bytes; None: unknown. ``issued`` differs between two
    links for one file.
    """

    url: str
    expires_ms: int | None = None
    size: int | None = None
    issued: int = 0

    def __repr__(self) -> str:
        # The query of a pre-signed URL is a credential.
        return f"Link({urlsplit(self.url).hostname}{urlsplit(self.url).path})"


class LinkSource(typing.Protocol):
    """A source of URLs for files."""

    async def find_link(self, location: str) -> Link:
        """Return a file's URL. Raises FileNotFoundError for an unknown location."""

    async def renew_link(self, location: str, old: Link) -> Link:
        """Return another URL for a file whose ``old`` one is no longer valid.

        Raises FileNotFoundError if the file is no longer shared.
        """


@dataclass(frozen=True, slots=True)
class FileRange:
    """Bytes of a file, with the file's size and state as this answer gives them.

    ``state`` is the file's ETag. Without one that names a single state, its Last-Modified is there
    too, which changes when another file takes its place.
    """

    data: bytes
    total: int
    state: str


class HttpsFiles:
    """Reads files through a session without credentials that checks where each connection leads.

    ``allow_http`` lets URLs be plain HTTP. ``whereabouts`` are the sharing server's: if the server
    is on this machine, its URLs may lead here, by plain HTTP too; those of other servers may not.
    ``clock`` gives epoch seconds; ``root`` is the table's address for messages.
    """

    def __init__(
        self,
        session: Callable[[], ClientSession],
        links: LinkSource,
        clock: Callable[[], float],
        *,
        root: str,
        whereabouts: Whereabouts,
        allow_http: bool = False,
    ) -> None:
        self._session = session
        self._links = links
        self._clock = clock
        self._root = root
        self._allow_http = allow_http
        self._whereabouts = whereabouts
        self._ahead = Budget(_READ_AHEAD_BYTES_MAX)

    async def read(self, location: str, offset: int, length: int | None) -> FileRange:
        """Return some bytes of a file; fewer than ``length`` only at the file's end."""
        return await self._read_range(location, offset, length, None, None)

    async def open(self, location: str, size: int | None) -> pa.NativeFile:
        """Open a file for random access from worker threads. ``size`` is the size in the log.

        Raises :class:`CorruptLog` if the file has another size.
        """
        whole = min(size or WHOLE_BYTES_MAX, WHOLE_BYTES_MAX)
        if size and size > WHOLE_BYTES_MAX:
            first = await self._read_range(location, size - _TAIL_BYTES, _TAIL_BYTES, size, None)
            start = size - len(first.data)
        else:
            first, start = await self._read_range(location, 0, whole, size, None), 0
        if len(first.data) == first.total:
            return pa.BufferReader(first.data)

        async def fetch(at: int, end: int) -> Sequence[bytes]:
            piece = await self._read_range(location, at, end - at, first.total, first.state)
            return (piece.data,)

        tail = first.data if start else b""
        reader = RangedReader(fetch, first.total, tail, _READ_AHEAD_BYTES_MAX, self._ahead)
        return RangedFile(reader, mode="r")

    async def _read_range(
        self, location: str, offset: int, length: int | None, size: int | None, state: str | None
    ) -> FileRange:
        link = await self._links.find_link(location)
        if link.expires_ms is not None and link.expires_ms - _MARGIN_MS <= self._clock() * 1000:
            link = await self._links.renew_link(location, link)
        answer = await self._request_range(link, location, offset, length)
        if answer is None:
            link = await self._links.renew_link(location, link)
            answer = await self._request_range(link, location, offset, length, new=True)
        if answer is None:
            raise self._make_error(
                "the file's server refuses a URL that the sharing server has just issued",
                location,
                hint="compare the clocks of the two, or ask the provider",
            )
        if size and answer.total != size:
            raise CorruptLog(
                f"the data file has {answer.total} bytes, and the log says {size}: it was cut, or "
                "another one took its place",
                table=self._root,
                path=location,
            )
        if state is not None and answer.state != state:
            raise CorruptLog("the file changed while it was read", table=self._root, path=location)
        return answer

    async def _request_range(
        self, link: Link, location: str, offset: int, length: int | None, *, new: bool = False
    ) -> FileRange | None:
        """Return the range; None if the URL has expired. A file's server may say that in a page,
        but not of a ``new`` one.

        Raises FileNotFoundError if the file does not exist.
        """
        end = "" if length is None else str(offset + max(1, length) - 1)
        headers = {"Range": f"bytes={offset}-{end}", "Accept-Encoding": "identity"}
        url = self._check_url(link.url)
        with network_errors(f"{self._root}, {location}"):
            for _ in range(3):
                async with self._session().get(
                    URL(url, encoded=True), headers=headers, allow_redirects=False
                ) as response:
                    if response.status in (301, 302, 303, 307, 308):
                        url = self._check_url(
                            _join_redirect(url, response.headers.get("Location", ""))
                        )
                        continue
                    if new or response.status not in _EXPIRED:
                        self._check_no_page(response, location)
                    return await self._read_answer(response, location, offset, length)
        raise self._make_error("the file's URL leads from redirect to redirect", location)

    def _make_error(self, what: str, location: str, hint: str | None = None) -> TableError:
        return TableError(what, table=self._root, path=location, hint=hint)

    def _check_url(self, url: str) -> str:
        what = f"a file of {self._root}"
        if not self._whereabouts.here and leads_here(url):
            raise TableError(
                f"{what} has a URL that leads to this machine or its link, which is not followed"
            )
        return check_url(url, what, allow_http=self._allow_http)

    def _check_no_page(self, response: ClientResponse, location: str) -> None:
        """Raise :class:`TransientError` if a proxy has answered, and not the file's server. A part
        of a file is no page, whatever its server calls it."""
        if response.status in (200, *_EXPIRED) and response.content_type == "text/html":
            raise TransientError(
                f"{self._root}, {location}: a page came in the file's place; check any proxy "
                "between this machine and the file's server"
            )

    async def _read_answer(
        self, response: ClientResponse, location: str, offset: int, length: int | None
    ) -> FileRange | None:
        status = response.status
        if status in _EXPIRED:
            return None
        if status == 404:
            raise FileNotFoundError(location)
        if may_heal_status(status):
            raise TransientError(
                f"{self._root}, {location}: the file's server answered {status}",
                parse_retry_after(response.headers.get("Retry-After"), self._clock()),
            )
        if (packed := find_packing(response.headers.get("Content-Encoding"))) is not None:
            # Ranges count the bytes of the file itself, and the request accepted no other encoding.
            raise self._make_error(f"the file's server sends it packed by {packed!r}", location)
        state = _parse_state(response)
        span = parse_content_range(response.headers.get("Content-Range", ""))
        if status == 416:  # the range is beyond the end; the header has the file's size
            return FileRange(b"", (span.total if span else None) or offset, state)
        if status not in (200, 206):
            raise self._make_error(f"the file's server answered {status}", location)
        if status == 200:
            return await self._cut_whole_answer(response, location, offset, length, state)
        if span is None or span.total is None:
            raise self._make_error(
                "the file's server gave a range without saying of how much", location
            )
        total = span.total
        if length is None and total - offset > _AT_ONCE_BYTES_MAX:
            raise self._make_error(
                f"the file has {total} bytes, too many to be read at once", location
            )
        expected = max(0, total - offset) if length is None else max(0, min(length, total - offset))
        if expected and span.start != offset:
            raise TransientError(
                f"{self._root}, {location}: the bytes from {span.start} on came instead of "
                f"those from {offset} on"
            )
        data = await read_at_most(response, expected)
        if len(data) != expected:
            raise TransientError(f"{self._root}, {location}: {len(data)} of {expected} bytes came")
        return FileRange(data, total, state)

    async def _cut_whole_answer(
        self, response: ClientResponse, location: str, offset: int, length: int | None, state: str
    ) -> FileRange:
        """Cut a range out of an answer with the whole file, from a server without ranges."""
        total = response.content_length
        if total is None:
            raise TransientError(
                f"{self._root}, {location}: the file's server answers without a range or a length"
            )
        if total > WHOLE_BYTES_MAX:
            raise self._make_error(
                "the file's server does not serve ranges, and the file is too large without",
                location,
            )
        data = await read_at_most(response, total)
        if len(data) != total:
            raise TransientError(f"{self._root}, {location}: {len(data)} of {total} bytes came")
        return FileRange(data[offset:][: total if length is None else length], total, state)


def _join_redirect(url: str, location: str) -> str:
    """Return where a redirect leads; a text that is no URL as it is, for the check to refuse."""
    try:
        return urljoin(url, location)
    except ValueError:
        return location


def _parse_state(response: ClientResponse) -> str:
    """Return what tells one state of a file from another; empty if the server gives nothing."""
    etag = response.headers.get("ETag", "").strip()
    if parse_strong_etag(etag) is not None:
        return etag
    return f"{etag} {response.headers.get('Last-Modified', '').strip()}".strip()
