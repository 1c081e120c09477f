"""The console: one small page on the daemon's address, live over server-sent events.

The page itself contains no data, so anyone may load it; what it shows and does goes through
``/api/v1``, which requires the token.
"""

from __future__ import annotations

import json
from importlib.resources import files

import anyio
from aiohttp import web

from tailer.daemon.http_api import may_read, share_result
from tailer.daemon.supervisor import Supervisor
from tailer.http_server.serving import answer_without_end, send_chunk

#: Seconds between two updates of the feeds.
_PERIOD_S = 1.0
#: A page that accepts no events for this many seconds is disconnected.
_STALL_S = 60.0
_TYPES = {
    "index.html": "text/html",
    "console.css": "text/css",
    **dict.fromkeys(("console.js", "detail.js", "orders.js", "words.js"), "text/javascript"),
}
_HEADERS = {
    # The page loads nothing from elsewhere, and no other page may embed it.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def make_console_routes(supervisor: Supervisor, token: str) -> list[web.RouteDef]:
    """Return the routes ``/`` with its scripts and style, and ``/api/v1/events``: the feeds' status
    as a stream.

    An event's data is ``{"control": bool, "token_wanted": bool, "feeds": [...]}``, with the feeds
    in the form of ``/api/v1/feeds``.
    """
    folder = files("tailer.daemon.console")
    pages = {name: folder.joinpath(name).read_text(encoding="utf-8") for name in _TYPES}

    def make_event() -> bytes:
        status = {
            "control": bool(token),
            "token_wanted": bool(token),
            "feeds": [feed.to_json() for feed in supervisor.list_statuses()],
        }
        return f"data: {json.dumps(status)}\n\n".encode()

    event = share_result(make_event)

    async def page(request: web.Request) -> web.Response:
        name = request.path.lstrip("/") or "index.html"
        return web.Response(
            text=pages[name], content_type=_TYPES[name], charset="utf-8", headers=_HEADERS
        )

    async def events(request: web.Request) -> web.StreamResponse:
        if not may_read(request, token):
            return web.json_response({"error": "a bearer token is needed"}, status=401)
        answer_without_end(request)
        stream = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        )
        await stream.prepare(request)
        try:
            while True:
                await send_chunk(stream, event(), _STALL_S)
                await anyio.sleep(_PERIOD_S)
        except ConnectionError:  # the page was closed
            return stream

    paths = ("/", *(f"/{name}" for name in _TYPES if name != "index.html"))
    return [*(web.get(path, page) for path in paths), web.get("/api/v1/events", events)]
