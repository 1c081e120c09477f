"""The HTTP server beneath the daemon and the sharing server.

What an unknown client can hold is limited: see :mod:`tailer.http_server.connections`. Request
bodies are never decompressed.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
from aiohttp import web

from tailer.errors import first_error
from tailer.http_server.connections import (
    SERVER_NAME,
    ConnectionLimits,
    Connections,
    WatchedConnection,
)

__all__ = ["ConnectionLimits", "answer_without_end", "read_body", "send_chunk", "serve_application"]

#: How long requests under way may take to end when the server stops.
_SHUTDOWN_S = 5.0

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serve_application(
    app: web.Application,
    address: tuple[str, int],
    bounds: Callable[[], ConnectionLimits],
    *,
    tls: ssl.SSLContext | None = None,
    cancels: bool = False,
    shutdown_s: float = _SHUTDOWN_S,
) -> AsyncIterator[int]:
    """Serve an application while the block runs, and give it the port, which the system chooses for
    port 0. Raises OSError if the address can't be bound.

    ``bounds`` is called repeatedly, and its result may change. ``cancels``: a handler is cancelled
    when its client disconnects. ``shutdown_s``: how long requests under way may continue at the
    end.
    """
    app.middlewares.append(_make_admission(bounds))
    app.on_response_prepare.append(_set_server_header)
    runner = web.AppRunner(
        app, access_log=None, handler_cancellation=cancels, shutdown_timeout=shutdown_s
    )
    await runner.setup()
    try:
        host, port = address
        listeners = await _open_listeners(host, port)
        connections = Connections(runner.server, bounds, tls)
        try:
            async with anyio.create_task_group() as tasks:
                for listener in listeners:
                    tasks.start_soon(connections.accept_connections, listener, tasks)
                tasks.start_soon(connections.sweep_connections)
                yield listeners[0].getsockname()[1]
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise first_error(group) from None
        finally:
            connections.spend_reserve()
            for listener in listeners:
                listener.close()
    finally:
        with anyio.CancelScope(shield=True):
            await runner.cleanup()


async def _open_listeners(host: str, port: int) -> list[socket.socket]:
    """Return a listening socket for each address of a host."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    listeners: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((entry[0], entry[4]) for entry in found):
            # With port 0, all have the one that was chosen for the first.
            chosen = listeners[0].getsockname()[1] if listeners else port
            where = address[0], chosen
            listeners.append(socket.create_server(where, family=family, backlog=128))
            listeners[-1].setblocking(False)
    except BaseException:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def _make_admission(bounds: Callable[[], ConnectionLimits]) -> Any:
    """Return the middleware that checks each request's head before its handler runs."""

    @web.middleware
    async def admitted(request: web.Request, handler: _Handler) -> web.StreamResponse:
        connection = _connection_of(request)
        await connection.wait_until_taken()
        await asyncio.sleep(0)  # requests sent ahead don't keep others' from their turn
        watch = connection.watch
        watch.begin_answer()
        try:
            packed = request.headers.get("Content-Encoding", "").strip().lower()
            if packed not in ("", "identity"):
                raise web.HTTPUnsupportedMediaType(reason="request bodies must not be compressed")
            most = bounds().body_bytes
            if (request.content_length or 0) > most:
                raise web.HTTPRequestEntityTooLarge(most, request.content_length or 0)
            response = await handler(request)
            await asyncio.sleep(0)  # requests sent ahead don't keep others from their turn
            return response
        finally:
            watch.end_answer()

    return admitted


def _connection_of(request: web.Request) -> WatchedConnection:
    connection = request.protocol
    assert isinstance(connection, WatchedConnection)
    return connection


async def _set_server_header(_: web.Request, response: web.StreamResponse) -> None:
    """Set the header that names the program, and not its components."""
    response.headers["Server"] = SERVER_NAME


async def read_body(request: web.Request) -> bytes:
    """Read a request's body.

    Raises :class:`aiohttp.web.HTTPException` for a body that is too long, does not arrive in time,
    or contradicts its headers.
    """
    try:
        async with asyncio.timeout_at(_connection_of(request).watch.due):
            return await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout from None
    except web.RequestPayloadError:
        raise web.HTTPBadRequest(reason="the body does not match its headers") from None


def answer_without_end(request: web.Request) -> None:
    """Note that the answer to a request is a stream of events, before it begins.

    Its connection is counted apart from those of other requests.
    """
    _connection_of(request).watch.mark_endless()


async def send_chunk(response: web.StreamResponse, chunk: bytes, stall_s: float) -> None:
    """Send some bytes.

    A client that takes none of them for ``stall_s`` seconds is disconnected: it holds a file, a
    connection and a place among the requests under way.
    """
    try:
        async with asyncio.timeout(stall_s):
            await response.write(chunk)
    except TimeoutError:
        raise ConnectionResetError("the client takes no bytes") from None
