"""A relay of TCP connections in which every answer is late by the same time.

It changes no byte and has no limit of bytes per second: only the way back takes longer, as it does
to a server far away. It counts requests by their method.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tests.support.components import free_port

_HEAD = re.compile(rb"(GET|HEAD|PUT|POST|DELETE) \S*? HTTP/1\.1\r\n")
#: Most bytes that wait in one connection: what a network between the two would hold.
_HELD_MAX = 32 * 1024 * 1024


@dataclass
class Late:
    """A relay at ``url``. ``requests`` counts what came, by method."""

    url: str
    delay_s: float
    requests: Counter[str] = field(default_factory=Counter)


class _Client(asyncio.Protocol):
    """The end towards a client. Requests are passed on at once."""

    def __init__(self, late: Late, host: str, port: int) -> None:
        self._late, self._server = late, (host, port)
        self._waiting: list[bytes] = []
        self._behind: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(transport, asyncio.Transport)
        made = loop.create_connection(lambda: _Server(self._late, transport), *self._server)
        self._connecting = loop.create_task(made)
        self._connecting.add_done_callback(self._connected)

    def _connected(self, task: asyncio.Task[tuple[asyncio.Transport, asyncio.Protocol]]) -> None:
        self._behind = task.result()[0]
        self._behind.writelines(self._waiting)

    def data_received(self, data: bytes) -> None:
        for method in _HEAD.findall(data):
            self._late.requests[method.decode()] += 1
        if self._behind is None:
            self._waiting.append(data)
        else:
            self._behind.write(data)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        self._connecting.cancel()
        if self._behind is not None:
            self._behind.close()


class _Server(asyncio.Protocol):
    """The end towards the server. What it sends is passed on after the delay, in its order."""

    def __init__(self, late: Late, client: asyncio.Transport) -> None:
        self._late, self._client = late, client
        self._held: deque[bytes] = deque()
        self._bytes = 0
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._held.append(data)
        self._bytes += len(data)
        if self._bytes > _HELD_MAX:
            self._transport.pause_reading()
        self._loop.call_later(self._late.delay_s, self._pass_on)

    def _pass_on(self) -> None:
        data = self._held.popleft()
        self._bytes -= len(data)
        self._client.write(data)
        if self._bytes <= _HELD_MAX and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        self._loop.call_later(self._late.delay_s, self._client.close)


@contextmanager
def run_late(url: str, delay_s: float) -> Iterator[Late]:
    """Relay to the server at ``url``, in a thread, as long as the block runs."""
    behind, port = urlsplit(url), free_port()
    late = Late(f"http://127.0.0.1:{port}", delay_s)
    started, loop = threading.Event(), asyncio.new_event_loop()
    ending = asyncio.Event()
    host, port_behind = str(behind.hostname), int(behind.port or 80)

    async def serve() -> None:
        server = await loop.create_server(
            lambda: _Client(late, host, port_behind), "127.0.0.1", port
        )
        async with server:
            started.set()
            await ending.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert started.wait(60)
        yield late
    finally:
        loop.call_soon_threadsafe(ending.set)
        thread.join()
        loop.close()
