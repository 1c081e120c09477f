"""The daemon's HTTP side: metrics for Prometheus, health for process supervisors, control.

Control (everything under ``/api/v1`` that changes something) needs the bearer token. Without a
configured token there is no control, and status can be read from this machine only.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from tailer.daemon.supervisor import Supervisor
from tailer.delta.actions import LONG_MAX
from tailer.errors import ConfigError, TailerError, TransientError, printable
from tailer.http_server.serving import ConnectionLimits, read_body, serve_application

#: Seconds for open requests when the process ends: an open console's request never ends by itself.
_SHUTDOWN_S = 1.0
#: How much longer an answer that is the same for all is given than it took to make.
_MAKING_SHARE = 9
#: The most of an order that the log repeats.
_ORDER_CHARACTERS = 500
#: The most unread versions that an answer lists.
_UNREAD_MAX = 50

_ORDERS = (
    "pause", "resume", "stop", "start", "skip", "unskip", "resnapshot", "stop-resnapshot", "rewind",
    "set-offset", "reset-offset", "replay-parked", "drop-parked",
)  # fmt: skip

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def share_result(make: Callable[[], bytes]) -> Callable[[], bytes]:
    """Return a function that gives what ``make`` returns, and makes it anew only so often that it
    takes a tenth of the time: those who ask more often share one."""
    text, until = b"", 0.0

    def share() -> bytes:
        nonlocal text, until
        begun = time.monotonic()
        if begun >= until:
            text = make()
            done = time.monotonic()
            until = done + _MAKING_SHARE * (done - begun)
        return text

    return share


def make_health_routes(registry: Any, unready: Callable[[], dict[str, str]]) -> list[web.RouteDef]:
    """Return the routes ``/metrics``, ``/healthz`` (the process runs) and ``/readyz`` (all its
    feeds do).

    ``unready`` returns the feeds that are not ready, and why.
    """
    text = share_result(lambda: generate_latest(registry))

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def healthz(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def readyz(_: web.Request) -> web.Response:
        waiting = unready()
        return web.json_response(
            {"status": "waiting" if waiting else "ready", "feeds": waiting},
            status=503 if waiting else 200,
        )

    return [
        web.get("/metrics", metrics),
        web.get("/healthz", healthz),
        web.get("/readyz", readyz),
    ]


def may_read(request: web.Request, token: str) -> bool:
    """Return whether a request may see the feeds: with the token; without one, from this machine.

    Without a token, the request must also name this machine as its host. Otherwise a page in a
    browser could point its own host name here (DNS rebinding).
    """
    if token:
        # A header may hold any bytes; invalid UTF-8 must not raise an error.
        scheme, _, shown = request.headers.get("Authorization", "").partition(" ")
        shown_token = shown.encode("utf-8", "surrogateescape")
        return hmac.compare_digest(shown_token, token.encode()) and scheme.lower() == "bearer"
    return _is_loopback(request.remote) and _is_loopback(request.url.host)


def _is_loopback(host: str | None) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


def _make_error(status: int, text: str) -> web.Response:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return web.json_response({"error": text}, status=status, headers=headers)


def _guard_handler(handler: Handler, token: str, *, changes: bool) -> Handler:
    """Return the handler with the token checked, and its errors as JSON."""

    async def handle_guarded(request: web.Request) -> web.StreamResponse:
        if not may_read(request, token):
            return _make_error(401, "a bearer token is needed, as in daemon.token")
        if changes and not token:
            return _make_error(403, "control is off: no daemon.token is configured")
        try:
            return await handler(request)
        except web.HTTPException as e:  # such as a body that is too large
            return _make_error(e.status, e.reason)
        except KeyError as e:
            return _make_error(404, f"there is no feed {e.args[0]!r}")
        except ConfigError as e:
            return _make_error(400, str(e))
        except TailerError as e:
            return _make_error(409, str(e))

    return handle_guarded


async def _read_body(request: web.Request) -> dict[str, Any]:
    """Return the request's JSON object; an empty one if there is no body."""
    body = await read_body(request)
    try:
        document = json.loads(body) if body.strip() else {}
    except (ValueError, RecursionError):
        raise ConfigError("the body is not JSON") from None
    if not isinstance(document, dict):
        raise ConfigError("the body must be a JSON object")
    return document


def _read_version(body: dict[str, Any]) -> int:
    version = body.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 0:
        raise ConfigError('the body must name the version, as in {"version": 12}')
    return version


def _read_ids(body: dict[str, Any]) -> list[str]:
    ids = body.get("ids")
    if ids is None:
        return []  # all
    if not isinstance(ids, list) or not ids or not all(isinstance(one, str) for one in ids):
        raise ConfigError("ids must be a list of event ids; without it, all rows are meant")
    return ids


def _make_orders(
    supervisor: Supervisor,
) -> dict[str, Callable[[str, dict[str, Any]], Awaitable[str | None]]]:
    """Return the actions on a feed, by the last part of the address: ``_ORDERS``. They return what
    came of them, if there is more to say than that they are done. The supervisor has those that
    need more than the feed's runner."""
    find = supervisor.find_runner

    async def stop(feed: str, _: dict[str, Any]) -> None:
        find(feed).stop()

    async def skip(feed: str, body: dict[str, Any]) -> None:
        await find(feed).skip_version(_read_version(body))

    async def unskip(feed: str, body: dict[str, Any]) -> None:
        await find(feed).unskip_version(_read_version(body))

    async def resnapshot(feed: str, body: dict[str, Any]) -> None:
        where = body.get("where")
        if where is not None and not isinstance(where, str):
            raise ConfigError('where must be a string, as in {"where": "country = \'DE\'"}')
        await supervisor.resnapshot(feed, where)

    async def rewind(feed: str, body: dict[str, Any]) -> None:
        to = body.get("to")
        if isinstance(to, bool) or not isinstance(to, str | int):
            raise ConfigError('to must be a version or a time, as in {"to": 120}')
        await supervisor.rewind(feed, str(to))

    async def set_offset(feed: str, body: dict[str, Any]) -> None:
        start, index = body.get("from"), body.get("index", 0)
        if isinstance(start, bool) or not isinstance(start, str | int):
            raise ConfigError('from must be a version, a time or a place, as in {"from": 120}')
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index <= LONG_MAX:
            raise ConfigError('index must be a number of changes, as in {"from": 120, "index": 7}')
        await supervisor.set_offset(feed, str(start), index)

    return {
        "pause": lambda feed, _: find(feed).pause(),
        "resume": lambda feed, _: find(feed).resume(),
        "stop": stop,
        "start": lambda feed, _: find(feed).start(),
        "skip": skip,
        "unskip": unskip,
        "resnapshot": resnapshot,
        "stop-resnapshot": lambda feed, _: find(feed).stop_resnapshots(),
        "rewind": rewind,
        "set-offset": set_offset,
        "reset-offset": lambda feed, _: supervisor.set_offset(feed, None),
        "replay-parked": lambda feed, body: supervisor.replay_parked(feed, _read_ids(body)),
        "drop-parked": lambda feed, body: supervisor.drop_parked(feed, _read_ids(body)),
    }


def _format_order(order: str, body: dict[str, Any], remote: str | None) -> str:
    """Return an order with who gave it, for the log: ``by`` is what they call themselves."""
    fields = {key: value for key, value in body.items() if key != "by"}
    what = f"{order} {json.dumps(fields)}" if fields else order
    by = body.get("by")
    who = f"{by} at {remote}" if isinstance(by, str) and by else str(remote)
    return printable(f"{what} by {who}", _ORDER_CHARACTERS)


def make_api_routes(supervisor: Supervisor, token: str) -> list[web.RouteDef]:
    """Return the routes of ``/api/v1``: the feeds, one feed, what it did in
    the last hour, and its actions
    (docs/operations.md)."""
    orders = _make_orders(supervisor)

    async def feeds(_: web.Request) -> web.Response:
        await supervisor.wait_for_discovery()
        return web.json_response({"feeds": [s.to_json() for s in supervisor.list_statuses()]})

    async def feed(request: web.Request) -> web.Response:
        await supervisor.wait_for_discovery()
        name = request.match_info["feed"]
        supervisor.find_runner(name)
        status = next(s for s in supervisor.list_statuses() if s.name == name)
        return web.json_response(status.to_json())

    async def recent(request: web.Request) -> web.Response:
        runner = supervisor.find_runner(request.match_info["feed"])
        rows = runner.last_rows.to_json() if token else []
        unread = (
            runner.outlook.list_unread(_UNREAD_MAX) if runner.feed.progress.lag_versions() else []
        )
        return web.json_response({**runner.past.to_json(), "unread": unread, "rows": rows})

    async def parked(request: web.Request) -> web.Response:
        rows = await supervisor.list_parked(request.match_info["feed"]) if token else []
        return web.json_response({"rows": rows})

    async def order(request: web.Request) -> web.Response:
        name, what = request.match_info["feed"], request.match_info["order"]
        body = await _read_body(request)
        runner = supervisor.find_runner(name)
        order_text = _format_order(what, body, request.remote)
        try:
            outcome = await orders[what](name, body)
        except TransientError as e:
            outcome = f"done, but not kept for a restart: {e}"
            runner.note_order(logging.WARNING, order_text, outcome)
            return _make_error(503, f"{outcome}; give the order again")
        except TailerError as e:
            runner.note_order(logging.WARNING, order_text, f"refused: {e}")
            raise
        runner.note_order(logging.INFO, order_text, outcome or "done")
        said = {"outcome": outcome} if outcome else {}
        return web.json_response({"feed": name, "order": what, **said}, status=202)

    async def reload(_: web.Request) -> web.Response:
        return web.json_response(await supervisor.reload_config())

    one = "/api/v1/feeds/{feed:.+}"
    names = "|".join(orders)
    return [
        web.get("/api/v1/feeds", _guard_handler(feeds, token, changes=False)),
        web.get("/api/v1/recent/{feed:.+}", _guard_handler(recent, token, changes=False)),
        web.get("/api/v1/parked/{feed:.+}", _guard_handler(parked, token, changes=False)),
        web.get(one, _guard_handler(feed, token, changes=False)),
        web.post(f"{one}/{{order:{names}}}", _guard_handler(order, token, changes=True)),
        web.post("/api/v1/reload", _guard_handler(reload, token, changes=True)),
    ]


@web.middleware
async def _format_refusals(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Return an error as JSON also for what is refused before a handler sees it."""
    try:
        return await handler(request)
    except (web.HTTPRequestEntityTooLarge, web.HTTPUnsupportedMediaType) as e:
        return _make_error(e.status, e.reason)
    except (web.HTTPNotFound, web.HTTPMethodNotAllowed) as e:
        if not request.path.startswith("/api/"):
            raise
        order = request.path.rpartition("/")[2]
        names = ", ".join(_ORDERS)
        return _make_error(
            e.status, f"there is no {request.method} of {order!r}; orders are {names}"
        )


@asynccontextmanager
async def serve_routes(
    address: tuple[str, int], routes: list[web.RouteDef], bounds: ConnectionLimits | None = None
) -> AsyncIterator[int]:
    """Serve these routes while the block runs; the value is the port, also where 0 was asked for.
    Raises OSError if the address can't be bound."""
    held = bounds or ConnectionLimits()
    app = web.Application(client_max_size=held.body_bytes, middlewares=[_format_refusals])
    app.add_routes(routes)
    async with serve_application(app, address, lambda: held, shutdown_s=_SHUTDOWN_S) as port:
        yield port
