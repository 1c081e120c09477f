"""Files under signed URLs: ranges, streamed at the client's pace."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import anyio.to_thread
from aiohttp import web

from tailer.errors import TableError
from tailer.http_server.serving import send_chunk
from tailer.share_server.query import may_be_read
from tailer.share_server.refusals import Refusal, not_found
from tailer.share_server.request import Request
from tailer.share_server.tables import SharedTable

if TYPE_CHECKING:
    import pyarrow as pa

_CHUNK_BYTES = 1024 * 1024
_RANGE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})", re.ASCII)


def parse_byte_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Parse a Range header to (first, last) byte, both inclusive; None for the whole file.

    A header that is not a single range is ignored, as HTTP requires. Raises a :class:`Refusal`
    (416) for a range that begins at the file's end or later.
    """
    match = _RANGE.fullmatch((header or "").strip())
    if match is None or not (match[1] or match[2]):
        return None
    if not match[1]:
        first, last = max(0, size - int(match[2])), size - 1
        satisfiable = size > 0 and int(match[2]) > 0
    else:
        first = int(match[1])
        last = min(int(match[2]), size - 1) if match[2] else size - 1
        if match[2] and int(match[2]) < first:
            return None
        satisfiable = first < size
    if not satisfiable:
        raise Refusal(416, "INVALID_PARAMETER_VALUE", f"the file has {size} bytes")
    return first, last


def _check_inside(table: SharedTable, where: str) -> None:
    """Refuse a file outside of the shared folders, which the log may name.

    A symbolic link on the way may lead outside as well.
    """
    climbs = ".." in where.split("/") or "\x00" in where
    if climbs or not may_be_read(table, where):
        raise not_found("the file")
    path = table.store.path(where)
    if path is None:
        return
    real = path.resolve()
    roots = [Path(root).resolve() for root in (table.store.root, *table.config.also)]
    if not any(real.is_relative_to(root) for root in roots):
        raise not_found("the file")


async def send_file(
    request: Request, table: SharedTable, where: str, stall_s: float
) -> web.StreamResponse:
    """Answer with a file or a range of it, and count its bytes in ``request.sent``.

    Raises a :class:`Refusal` for a file that does not exist.
    """
    http = request.http
    try:
        await anyio.to_thread.run_sync(_check_inside, table, where)
        source = await table.store.open(where, None)
    except (FileNotFoundError, TableError):
        raise not_found("the file") from None
    with source:
        size = source.size()
        try:
            wanted = parse_byte_range(http.headers.get("Range"), size)
        except Refusal as refusal:
            body = refusal.body.to_json()
            headers = {"Content-Range": f"bytes */{size}"}
            return web.json_response(body, status=416, headers=headers)
        first, last = wanted or (0, size - 1)
        response = web.StreamResponse(status=206 if wanted else 200)
        response.content_type = "application/octet-stream"
        response.content_length = last - first + 1
        response.headers["Accept-Ranges"] = "bytes"
        if wanted:
            response.headers["Content-Range"] = f"bytes {first}-{last}/{size}"
        await response.prepare(http)
        if http.method != "HEAD":
            request.sent = await _send_range(response, source, first, last + 1, stall_s)
        await response.write_eof()
        return response


async def _send_range(
    response: web.StreamResponse, source: pa.NativeFile, start: int, end: int, stall_s: float
) -> int:
    at = start
    while at < end:
        chunk = await anyio.to_thread.run_sync(source.read_at, min(_CHUNK_BYTES, end - at), at)
        if not chunk:
            raise ConnectionResetError("the file became shorter while it was sent")
        await send_chunk(response, chunk, stall_s)
        at += len(chunk)
    return at - start
