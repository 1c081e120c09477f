"""What a server of another's may answer, read with bounds: bodies, headers and pages.

Every HTTP client of the project reads through this module. A body has a limit before its first byte
is read, and ends if it comes too slowly. A header is parsed to a value of its kind, or to None; no
text of a server's raises. Pages that lead on without end are left.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import re
import time
from email.utils import parsedate_tz
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple, Self

from aiohttp import ServerTimeoutError

from tailer.errors import TransientError, printable

if TYPE_CHECKING:
    from aiohttp import ClientHandlerType, ClientMiddlewareType, ClientRequest, ClientResponse

_BYTE_RANGE = re.compile(r"bytes\s+(?:([0-9]{1,19})-([0-9]{1,19})|\*)/(?:([0-9]{1,19})|\*)")
#: Weak ones begin with W/. Some servers leave the quotes away.
_STRONG_ETAG = re.compile(r'"[\x21\x23-\x7e]+"|(?!W/)[\x21\x23-\x7e]+')
#: The last second of the year 9999, which is the last one of Python's dates.
_LATEST_S = 253_402_300_799
_NUMBER_MAX = 2**63 - 1
#: The longest wait in seconds that a server's wish can cause.
_RETRY_AFTER_MAX_S = 3600.0
#: A body that was waited for as long as this must have come at this rate, in bytes a second: a
#: server that sends a byte before each time-out of its socket would hold its reader for days.
_PATIENCE_S = 300.0
_BYTES_S_MIN = 1024


#: Files of one folder. Two for each commit of 30 days with a commit each 1.2 s are as many.
_LISTED_FILES_MAX = 4 * 1024 * 1024


class Oversize(Exception):
    """A body has more bytes than the reader takes."""


def make_answer_timeout(seconds: float) -> ClientMiddlewareType:
    """Return a middleware of aiohttp by which an answer's status and headers come in time. A server
    can send 100 Continue before each time-out of its socket, for ever.

    The time is longer for a request with a body, which a slow line takes minutes to send. Raises
    ServerTimeoutError, which heals as others do.
    """

    async def bounded(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        sent_bytes = request.body.size or 0 if request.body else 0
        try:
            async with asyncio.timeout(seconds + sent_bytes / _BYTES_S_MIN):
                return await handler(request)
        except ServerTimeoutError:
            raise
        except TimeoutError:
            raise ServerTimeoutError(f"no answer in {seconds:g} s") from None

    return bounded


class BodyParts:
    """The parts of a body as they arrive, for ``async for``. Who has enough just leaves.

    Raises aiohttp's ServerTimeoutError, which heals as others do, for a body that comes too slowly.
    The reader's own time between two parts does not count.
    """

    def __init__(self, response: ClientResponse) -> None:
        self._parts = response.content.iter_any()
        self._waited_s = 0.0
        self._size = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        asked = time.monotonic()
        part: bytes = await anext(self._parts)
        self._waited_s += time.monotonic() - asked
        self._size += len(part)
        if self._waited_s > _PATIENCE_S and self._size < self._waited_s * _BYTES_S_MIN:
            raise ServerTimeoutError(
                f"{self._size} bytes of an answer in {self._waited_s:.0f} s are too few"
            )
        return part


async def read_whole_body(response: ClientResponse, bytes_max: int) -> list[bytes]:
    """Read a whole body, in the parts in which it came.

    Raises :class:`Oversize`, before anything is read if the headers promise too much.
    """
    length = response.content_length
    if length is not None and length > bytes_max:
        raise Oversize(f"{length} bytes, of {bytes_max} at most")
    parts, total = [], 0
    async for part in BodyParts(response):
        parts.append(part)
        total += len(part)
        if total > bytes_max:
            raise Oversize(f"more than {bytes_max} bytes")
    return parts


async def read_at_most(response: ClientResponse, length: int) -> bytes:
    """Read the first ``length`` bytes of a body; fewer if it is shorter."""
    parts, size = [], 0
    async for chunk in BodyParts(response):
        parts.append(chunk[: length - size])
        size += len(parts[-1])
        if size >= length:
            break
    return b"".join(parts)


def parse_natural(text: str) -> int | None:
    """Parse a number from 0 to 2^63 - 1; None if the text is not one."""
    if not (text.isascii() and text.isdigit()) or len(text) > 19:
        return None
    return number if (number := int(text)) <= _NUMBER_MAX else None


class ContentRange(NamedTuple):
    """A Content-Range: the bytes [start, end) of ``total``; None: unknown. 416 has no bytes."""

    start: int
    end: int
    total: int | None


def parse_content_range(text: str) -> ContentRange | None:
    """Parse a Content-Range, ``bytes 0-9/200`` or ``bytes */200``; None if it is not one."""
    found = _BYTE_RANGE.fullmatch(text.strip())
    if found is None:
        return None
    if any(digits is not None and parse_natural(digits) is None for digits in found.groups()):
        return None  # beyond 2^63
    first, last, total = (None if digits is None else int(digits) for digits in found.groups())
    if first is None or last is None:
        return ContentRange(0, 0, total)
    if last < first or (total is not None and last >= total):
        return None
    return ContentRange(first, last + 1, total)


def parse_http_date(text: str) -> int | None:
    """Parse a date to epoch seconds; None if it is not one, or before 1970 or after 9999."""
    try:
        found = parsedate_tz(text)
        if found is None:
            return None
        year, month, day, hour, minute, second = found[:6]
        zone = found[9] or 0  # HTTP's dates are in UTC
        if not (1969 <= year <= 9999 and abs(zone) < 86_400):
            return None
        moment = dt.datetime(year, month, day, hour, minute, min(second, 59), tzinfo=dt.UTC)
        seconds = int(moment.timestamp()) - zone
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return seconds if 0 <= seconds <= _LATEST_S else None


def parse_retry_after(
    text: str | None, now: float, most_s: float = _RETRY_AFTER_MAX_S
) -> float | None:
    """Parse a Retry-After, a number or a date, to seconds from ``now``, at most ``most_s``.

    None without a header, or for a text that is neither.
    """
    text = (text or "").strip()
    if text.isascii() and text.isdigit():  # of any length: 31 years and more are ``most_s``
        return most_s if len(text) > 9 else min(float(text), most_s)
    then = parse_http_date(text)
    return None if then is None else min(max(0.0, then - now), most_s)


def parse_strong_etag(text: str | None) -> str | None:
    """Return an ETag that names one state of an object, byte by byte, and may be sent back.

    None for a weak one, an empty one, or a text that is no ETag.
    """
    text = (text or "").strip()
    return text if _STRONG_ETAG.fullmatch(text) else None


def find_packing(text: str | None) -> str | None:
    """Return the Content-Encoding of a body, fit for a message; None if it comes as it is."""
    said = (text or "").strip().lower()
    return None if said in ("", "identity", "aws-chunked") else printable(said, 100)


def check_listing_size(listed: int, what: str) -> None:
    """Raise :class:`TransientError` for a listing of more files than a log has, and than memory
    has room for."""
    if listed > _LISTED_FILES_MAX:
        raise TransientError(
            f"{what} has more than {_LISTED_FILES_MAX:,} files; check the server, and any proxy "
            "between it and this machine; or let the table's log be cleaned up"
        )


class Rounds:
    """Detects pages that do not end: a repeated token, or too many pages without news."""

    def __init__(self, idle_max: int = 100) -> None:
        self._seen: set[bytes] = set()
        self._idle_max = idle_max
        self._idle = 0

    def add_token(self, token: str, *, empty: bool) -> bool:
        """Return whether the pages loop: the token repeats, or too many pages were empty."""
        mark = blake2b(token.encode(errors="surrogatepass"), digest_size=16).digest()
        again = mark in self._seen
        self._seen.add(mark)
        self._idle = self._idle + 1 if empty else 0
        return again or self._idle > self._idle_max
