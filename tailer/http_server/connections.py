"""The connections of a server, with bounds on what an unknown client can hold.

The bounds apply before a request has a handler, and so before any client is authenticated: to
connections (TLS handshakes among them), the time until a request is whole, and the bytes that are
received before its answer. aiohttp itself bounds the lines of a head, the chunks of a body, the
headers after it, and the requests that wait after the one being answered.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import os
import resource
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import anyio
from aiohttp import web
from aiohttp.http import HttpProcessingError
from aiohttp.http_exceptions import LineTooLong
from anyio.abc import TaskGroup

#: Bytes that are received before an answer, beyond twice the largest body: the head, the lines of
#: chunks, and requests sent ahead.
_RECEIVED_BYTES_MAX = 96 * 1024
#: Bytes that the kernel holds of an answer beyond what is on its way: the rest stays here, where
#: it is counted.
_UNSENT_BYTES_MAX = 128 * 1024
#: How long a refused connection stays open for the client to read the reason.
_FAREWELL_S = 1.0
#: Between two attempts to accept a connection, and the longest time between two checks of all.
_PAUSE_S, _PAUSE_MAX_S = 0.1, 5.0
#: Disables aiohttp's own timer, which knows nothing of a client that still reads.
_NEVER_S = 30 * 86_400.0
#: The value of the header "Server".
SERVER_NAME = "delta-tailer"
#: The process has no descriptor left, or the system no memory for one.
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits on what clients may hold.

    ``stall_s`` is how long a connection may be without a whole request, and an answer without a
    byte taken by the client. ``connections`` limits the open connections, beside ``streams`` whose
    answers have no end; ``body_bytes`` limits the body of one request.
    """

    stall_s: float = 60.0
    connections: int = 256
    body_bytes: int = 64 * 1024
    streams: int = 32

    def connections_max(self) -> int:
        """Return the limit of connections, at most half of the process's descriptors."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return self.connections if soft < 0 else max(1, min(self.connections, soft // 2))


class ConnectionWatch:
    """One connection from its acceptance on: its clock, and the bytes it has sent."""

    def __init__(self, connections: Connections, network: str) -> None:
        self._connections = connections
        self.network = network
        #: The connection's beginning, the end of its last answer, or the first byte after that.
        self.since = connections.current_time()
        #: The scope of the TLS handshake, which is over when there is a transport.
        self.handshake = anyio.CancelScope()
        self.transport: asyncio.Transport | None = None
        self.refused = False
        #: Whether no request is being answered.
        self.waiting = True
        self._idle = False  # no byte has arrived since the last answer
        self._received = 0
        self._unsent = 0

    @property
    def due(self) -> float:
        """When the request must be whole, by the loop's clock."""
        return self.since + self._connections.bounds().stall_s

    def mark_endless(self) -> None:
        """Record that the answer has no end: it is counted apart, as a stream."""
        self._connections.make_stream(self)

    def begin_answer(self) -> None:
        """Record that a request has its handler."""
        self.waiting = self._idle = False
        self._unsent = 0

    def end_answer(self) -> None:
        """Record that the handler is done."""
        self.waiting = self._idle = True
        self.since = self._connections.current_time()
        self._received = 0

    def count_received(self, size: int) -> bool:
        """Count received bytes. If they are too many, refuse the connection and return False; who
        sends as many again, and so reads no answer, is cut off."""
        if self._idle:
            self._idle, self.since = False, self._connections.current_time()
        self._received += size
        most = _RECEIVED_BYTES_MAX + 2 * self._connections.bounds().body_bytes
        if self._received > 2 * most:
            self.drop_connection()
        elif self._received > most:
            self.refuse_head(431)
        return not self.refused

    def check_deadline(self, now: float) -> None:
        """Close the connection if it has been without a whole request for too long."""
        if self.transport is None or not self.waiting or now < self.due:
            return
        before, self._unsent = self._unsent, self.transport.get_write_buffer_size()
        if self._unsent and (not before or self._unsent < before):
            self.since = now  # the client is still reading the last answer
        elif self._received:
            self.refuse_head(408)
        else:
            self.drop_connection()

    def refuse_head(self, status: int) -> None:
        """Send a status for a bad head, unless an answer is being made or sent, and close."""
        transport = self.transport
        if transport is None or self.refused:
            return
        if not self.waiting or transport.get_write_buffer_size():
            self.drop_connection()
            return
        self.refused = True
        transport.write(
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nServer: {SERVER_NAME}\r\n"
            "Content-Length: 0\r\nConnection: close\r\n\r\n".encode()
        )
        # Closing at once, with bytes unread, would reset it, and the answer could be lost.
        asyncio.get_running_loop().call_later(_FAREWELL_S, transport.abort)

    def drop_connection(self) -> None:
        """Close the connection at once, or cancel its handshake."""
        self.refused = True
        if self.transport is None:
            self.handshake.cancel()
        else:
            self.transport.abort()


class WatchedConnection(web.RequestHandler):
    """aiohttp's request handler for a connection, under watch."""

    def __init__(self, watch: ConnectionWatch, connections: Connections, **more: Any) -> None:
        super().__init__(connections.server, **more)
        self.watch = watch
        self.connections = connections
        self._taken = asyncio.Event()

    async def wait_until_taken(self) -> None:
        """Wait until the client has taken the last answer, as far as it is held here.

        A client that sends requests ahead and reads nothing would have answer upon answer made for
        it. Raises :class:`ConnectionError` if the connection ends meanwhile.
        """
        transport = self.watch.transport
        assert transport is not None
        if transport.get_write_buffer_size():
            low, high = transport.get_write_buffer_limits()
            self._taken.clear()
            transport.set_write_buffer_limits(high=0)  # pauses writing until nothing is left
            try:
                await self._taken.wait()
            finally:
                transport.set_write_buffer_limits(high, low)
        if transport.is_closing():
            raise ConnectionResetError("the client has gone")

    def resume_writing(self) -> None:
        self._taken.set()
        super().resume_writing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.watch.transport = transport
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.connections.remove_watch(self.watch)
        self._taken.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        # aiohttp calls it with nothing, to parse what waits.
        if self.watch.count_received(len(data)) if data else not self.watch.refused:
            super().data_received(data)

    def handle_error(
        self, request: Any, status: int = 500, exc: Any = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answer data that is not HTTP with a status and nothing else."""
        response: web.StreamResponse
        status = 431 if isinstance(exc, LineTooLong) else status
        if status >= 500:
            response = super().handle_error(request, status, exc, message)
        else:
            response = web.Response(status=status, text=f"{status} {HTTPStatus(status).phrase}\n")
            response.force_close()
        response.headers["Server"] = SERVER_NAME
        return response

    def log_exception(self, *args: Any, **more: Any) -> None:
        """Log errors of this program, but not those of clients, which any client can cause."""
        known = (web.RequestPayloadError, HttpProcessingError, ConnectionError)
        if not isinstance(more.get("exc_info"), known):
            super().log_exception(*args, **more)


class Connections:
    """All connections of one server."""

    def __init__(
        self, server: Any, bounds: Callable[[], ConnectionLimits], tls: ssl.SSLContext | None
    ) -> None:
        self.server = server
        self.bounds = bounds
        self._tls = tls
        self._open: dict[ConnectionWatch, None] = {}
        self._streams: dict[ConnectionWatch, None] = {}
        self._loop = asyncio.get_running_loop()
        self._reserve: int | None = None
        self._open_reserve()

    def current_time(self) -> float:
        """Return the time of the loop's clock."""
        return self._loop.time()

    def remove_watch(self, watch: ConnectionWatch) -> None:
        """Remove a connection that has ended; its descriptor is free soon after."""
        self._open.pop(watch, None)
        self._streams.pop(watch, None)
        if self._reserve is None:
            self._loop.call_soon(self._open_reserve)

    def _open_reserve(self) -> None:
        if self._reserve is None:
            with suppress(OSError):
                self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def spend_reserve(self) -> bool:
        """Close the reserve descriptor, which is kept for the time when there is no other."""
        if self._reserve is None:
            return False
        os.close(self._reserve)
        self._reserve = None
        return True

    def _make_room(self, after_s: float = 0.0) -> bool:
        """Close the connection that has waited longest, of the network with the most connections.

        Returns False if all have requests under way, or have waited for less than ``after_s``.
        """
        latest = self.current_time() - after_s
        waiting = [watch for watch in self._open if watch.waiting and watch.since <= latest]
        if not waiting:
            return False
        _drop_one(self._open, waiting)
        return True

    def make_stream(self, watch: ConnectionWatch) -> None:
        """Count a connection apart from the others. One stream too many closes the one that has
        been open longest, of the network with the most streams."""
        if self._open.pop(watch, watch) is None:
            if len(self._streams) >= self.bounds().streams:
                _drop_one(self._streams, list(self._streams))
            self._streams[watch] = None

    async def accept_connections(self, listener: socket.socket, tasks: TaskGroup) -> None:
        """Accept connections, for ever."""
        while True:
            await self._wait_until_readable(listener)
            try:
                client, address = listener.accept()
            except BlockingIOError:
                continue
            except OSError as e:
                # Without a descriptor, the reserve accepts one connection, so that health can be
                # checked; then waiting connections are closed to make room.
                exhausted = e.errno in _EXHAUSTED
                if not exhausted or not (self.spend_reserve() or self._make_room(_FAREWELL_S)):
                    await asyncio.sleep(_PAUSE_S)
                continue
            client.setblocking(False)
            with suppress(OSError, AttributeError):  # of TCP, where the system has it
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES_MAX)
            if len(self._open) >= self.bounds().connections_max() and not self._make_room():
                client.close()
                continue
            watch = ConnectionWatch(self, network_of(address[0]))
            self._open[watch] = None
            tasks.start_soon(self._start_connection, client, watch)

    async def _wait_until_readable(self, listener: socket.socket) -> None:
        """Wait for a connection without accepting it, which would need a descriptor already."""
        there: asyncio.Future[None] = self._loop.create_future()

        def readable() -> None:
            if not there.done():
                there.set_result(None)

        self._loop.add_reader(listener, readable)
        try:
            await there
        finally:
            self._loop.remove_reader(listener)

    async def _start_connection(self, client: socket.socket, watch: ConnectionWatch) -> None:
        stall_s = self.bounds().stall_s

        def connection() -> WatchedConnection:
            return WatchedConnection(
                watch, self, loop=self._loop, access_log=None, auto_decompress=False,
                keepalive_timeout=_NEVER_S, logger=logging.getLogger("tailer.http"),
            )  # fmt: skip

        try:
            with watch.handshake, suppress(OSError):  # TLS errors are OSErrors, too
                await self._loop.connect_accepted_socket(
                    connection, client, ssl=self._tls,
                    ssl_handshake_timeout=stall_s if self._tls else None,
                )  # fmt: skip
        finally:
            if watch.transport is None:
                client.close()
                self.remove_watch(watch)

    async def sweep_connections(self) -> None:
        """Check the connections regularly, for ever."""
        while True:
            await asyncio.sleep(min(_PAUSE_MAX_S, self.bounds().stall_s / 8))
            now = self.current_time()
            for watch in [*self._open, *self._streams]:
                watch.check_deadline(now)


def _drop_one(open_: dict[ConnectionWatch, None], among: list[ConnectionWatch]) -> None:
    """Close the oldest of some connections, of the network with the most open ones."""
    crowd = Counter(watch.network for watch in open_)
    last = min(among, key=lambda watch: (-crowd[watch.network], watch.since))
    del open_[last]
    last.drop_connection()


def network_of(address: str | None) -> str:
    """Return the network that identifies a client: of IPv6 the /64, which one subscriber has."""
    try:
        found = ipaddress.ip_address((address or "").partition("%")[0])
    except ValueError:
        return address or ""
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)
