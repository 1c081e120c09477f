"""The network between a daemon and a server: a slow relay that cuts, holds back and loses answers,
or gives others in their place.

It works on bytes of TCP, so it cannot double or reorder what one connection carries. Requests come
twice where an answer is lost, and connections overtake each other where each has a delay of its
own.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress

from tests.support.components import free_port

#: What is sent in the place of the answer to some bytes. The connection is closed behind it.
Lie = Callable[[bytes], AsyncIterator[bytes]]

#: What it can do: pieces of a few bytes, each late by another time; every connection is cut; new
#: ones are refused; nothing passes, and nothing ends; requests pass, and their answers are lost.
TROUBLES = ("slow", "cut", "refuse", "hold", "lose answers")
_PIECE = 65_536


class Link:
    """A port that leads to another port of this machine.

    A broker of Kafka says where its clients are to go, so ``moved`` has it name this port.
    """

    def __init__(self, to: int, seed: int = 0, *, moved: bool = False) -> None:
        self.to = to
        self.port = free_port()
        self.trouble = ""
        self._lie: Lie | None = None
        self._only = b""
        self._moved = moved
        #: How many bytes, connections or answers had trouble.
        self.met = 0
        self._chance = random.Random(seed)
        self._writers: set[asyncio.StreamWriter] = set()
        #: Also those that were closed with bytes unsent, which wait for their reader. Their writers
        #: may be gone before them.
        self._all: weakref.WeakSet[asyncio.WriteTransport] = weakref.WeakSet()
        self._relays = set[asyncio.Task[None]]()
        self._passes: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def disturb(self, trouble: str) -> None:
        """Have one of :data:`TROUBLES` until :meth:`heal`."""
        self._soon(trouble)

    def answer_by(self, lie: Lie, only: bytes = b"") -> None:
        """Until :meth:`heal`, requests pass, and each answer to those that begin with ``only`` is
        this one."""
        self._only = only
        self._soon("lie", lie)

    def heal(self) -> None:
        """From now on, all passes. Connections in which there was a lie are cut."""
        self._soon("")

    def _soon(self, trouble: str, lie: Lie | None = None) -> None:
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(self._set(trouble, lie), self._loop).result(30)

    async def _set(self, trouble: str, lie: Lie | None) -> None:
        assert self._passes is not None
        if self._lie is not None:
            self._cut()
        self.trouble, self._lie = trouble, lie
        self._passes.set() if trouble != "hold" else self._passes.clear()
        if trouble in ("cut", "refuse"):
            self._cut()

    def _cut(self) -> None:
        self.met += len(self._writers)
        for writer in self._writers:
            _reset(writer.transport)

    async def serve(self, ready: threading.Event, ending: asyncio.Event) -> None:
        """Relay until ``ending``."""
        self._loop, self._passes = asyncio.get_running_loop(), asyncio.Event()
        self._passes.set()
        with socket.create_server(("127.0.0.1", self.port)) as listening:
            listening.setblocking(False)
            accepting = asyncio.create_task(self._accept(listening, ending))
            ready.set()
            await ending.wait()
            with socket.create_connection(("127.0.0.1", self.port)):  # it wakes who accepts
                await accepting
        for relay in self._relays:
            relay.cancel()
        await asyncio.gather(*self._relays, return_exceptions=True)
        for transport in self._all:
            _reset(transport)

    async def _accept(self, listening: socket.socket, ending: asyncio.Event) -> None:
        """Not by a server of asyncio's: one that closes leaves what it accepts meanwhile open."""
        while True:
            own, _ = await asyncio.get_running_loop().sock_accept(listening)
            if ending.is_set():
                own.close()
                break
            reader, writer = await asyncio.open_connection(sock=own)
            self._all.add(writer.transport)
            self._relays.add(relay := asyncio.create_task(self._relay(reader, writer)))
            relay.add_done_callback(self._relays.discard)
        await asyncio.sleep(0)  # so that each has begun, and closes its own when it is cancelled

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.trouble == "refuse":
            self.met += 1
            _reset(writer.transport)
            return
        both, ways = [writer], list[asyncio.Task[None]]()
        self._writers.add(writer)
        try:
            there, to = await asyncio.open_connection("127.0.0.1", self.to)
            both.append(to)
            self._writers.add(to)
            self._all.add(to.transport)
            delay, asked = self._chance.uniform(0.0, 0.05), bytearray()
            ways = [
                asyncio.create_task(self._pump(reader, to, delay, asked, answers=False)),
                asyncio.create_task(self._pump(there, writer, delay, asked, answers=True)),
            ]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)
        except OSError:
            _reset(writer.transport)
        finally:  # also where this is cancelled: the loop ends, and closes nothing
            for way in ways:
                way.cancel()
            for each in both:
                self._writers.discard(each)
                with suppress(OSError, RuntimeError):
                    each.close()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float,
        asked: bytearray, *, answers: bool,
    ) -> None:  # fmt: skip
        """Pass on what comes; ``asked`` is what was sent last for an answer."""
        assert self._passes is not None
        with suppress(OSError):
            while data := await reader.read(_PIECE):
                await self._passes.wait()
                if not answers:
                    asked[:] = data
                elif self._lie is not None and asked.startswith(self._only):
                    self.met += 1
                    await _tell(self._lie(bytes(asked)), writer)
                    return
                if answers and self._moved:
                    data = data.replace(_place(self.to), _place(self.port))
                if answers and self.trouble == "lose answers":
                    self.met += 1
                    _reset(writer.transport)
                    return
                if self.trouble == "slow":
                    self.met += len(data)
                    cut = self._chance.randrange(1, len(data) + 1)
                    writer.write(data[:cut])
                    await writer.drain()
                    await asyncio.sleep(delay)
                    data = data[cut:]
                writer.write(data)
                await writer.drain()


async def _tell(parts: AsyncIterator[bytes], writer: asyncio.StreamWriter) -> None:
    async for data in parts:
        writer.write(data)
        await writer.drain()


def _place(port: int) -> bytes:
    """A broker's address in Kafka's protocol."""
    return b"127.0.0.1" + port.to_bytes(4, "big")


def _reset(transport: asyncio.WriteTransport) -> None:
    """End a connection by a reset, as a firewall does."""
    with suppress(OSError):
        own = transport.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


@contextmanager
def running_link(to: int, seed: int = 0, *, moved: bool = False) -> Iterator[Link]:
    """A relay in a thread of its own; ended with the block."""
    link, ready, ending = Link(to, seed, moved=moved), threading.Event(), asyncio.Event()
    thread = threading.Thread(
        target=lambda: asyncio.run(link.serve(ready, ending)), name="link", daemon=True
    )
    thread.start()
    assert ready.wait(30)
    try:
        yield link
    finally:
        assert link._loop is not None
        link._loop.call_soon_threadsafe(ending.set)
        thread.join(30)
