"""What strangers can hold of a server: connections, time, bytes and lines, all of them bounded."""

from __future__ import annotations

import asyncio
import gzip
import resource
import socket
import sys
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from aiohttp import web

from tailer.daemon.http_api import serve_routes, share_result
from tailer.http_server.connections import network_of
from tailer.http_server.serving import ConnectionLimits, answer_without_end, read_body, send_chunk
from tailer.testing.table import TableBuilder
from tests.share_server.serving import configuration
from tests.support.components import free_port
from tests.support.ordered import TOKEN
from tests.support.programs import started
from tests.support.waiting import PATIENCE_S, eventually_async

pytestmark = pytest.mark.anyio
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def echo(request: web.Request) -> web.Response:
    return web.Response(body=await read_body(request))


async def healthz(_: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


async def endless(request: web.Request) -> web.StreamResponse:
    answer_without_end(request)
    stream = web.StreamResponse()
    await stream.prepare(request)
    with suppress(ConnectionError):
        while True:
            await send_chunk(stream, b"event\n", PATIENCE_S)
            await asyncio.sleep(0.05)
    return stream


LARGE = 48 * 1024
ROUTES = [
    web.post("/echo", echo),
    web.get("/healthz", healthz),
    web.get("/endless", endless),
]


class Client:
    """Connections to a server that are closed with it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.made: list[Any] = []  # the large answers
        self._made: list[asyncio.StreamWriter] = []

    async def connect(self, data: bytes = b"", over: socket.socket | None = None) -> Streams:
        where: Any = {"sock": over} if over else {"host": "127.0.0.1", "port": self.port}
        reader, writer = await asyncio.open_connection(**where)
        self._made.append(writer)
        writer.write(data)
        with suppress(ConnectionError):
            await writer.drain()
        return reader, writer

    async def ask(self, data: bytes) -> bytes:
        """All that the server says to some bytes until it closes the connection."""
        reader, _ = await self.connect(data)
        return await rest(reader)

    async def aclose(self) -> None:
        for writer in self._made:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()


@asynccontextmanager
async def calling(port: int) -> AsyncIterator[Client]:
    client = Client(port)
    try:
        yield client
    finally:
        await client.aclose()


async def rest(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        with suppress(ConnectionError):
            return await reader.read()
        return b""


@asynccontextmanager
async def serving(**bounds: float) -> AsyncIterator[Client]:
    port = free_port()
    held = ConnectionLimits(**bounds)  # type: ignore[arg-type]
    made: list[Any] = []

    async def large(request: web.Request) -> web.Response:
        made.append(request.remote)
        return web.Response(body=bytes(LARGE))

    routes = [*ROUTES, web.get("/large", large)]
    async with serve_routes(("127.0.0.1", port), routes, held), calling(port) as client:
        client.made = made
        yield client


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ")[1])


async def slowly(writer: asyncio.StreamWriter, data: bytes) -> None:
    with suppress(ConnectionError):
        for byte in data:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.02)


async def test_a_connection_without_a_whole_request_is_closed_whatever_it_sends() -> None:
    async with serving(stall_s=1.5) as client:
        idle, _ = await client.connect()
        half, _ = await client.connect(HEALTH)
        dribbling, out = await client.connect()
        sending = asyncio.create_task(slowly(out, HEALTH + b"X: " + b"a" * 3000))
        assert await rest(idle) == b""
        assert status_of(await rest(half)) == 408
        # It is cut off; whether it hears why is TCP's, for it was still sending.
        assert (await rest(dribbling))[:12] in (b"", b"HTTP/1.1 408")
        sending.cancel()
        # Between two requests, too.
        kept, out = await client.connect(HEALTH + b"\r\n")
        assert status_of(await kept.readuntil(b"}")) == 200
        out.write(HEALTH)
        assert status_of(await rest(kept)) == 408
        body = (
            b"POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 9\r\n\r\nabc"
        )
        assert status_of(await client.ask(body)) == 408
        # Nobody else is touched by it.
        assert status_of(await client.ask(HEALTH + b"Connection: close\r\n\r\n")) == 200


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (HEALTH + b"X: " + b"a" * 100_000 + b"\r\n\r\n", 431),
        (HEALTH + b"X: a\r\n" * 1000 + b"\r\n", 400),
        (HEALTH + b"X: a\r\n" * 100_000, 431),
        (b"\r\n" * 5000 + HEALTH + b"X: a\r\n" * 100_000, 431),
        (HEALTH.replace(b"HTTP/1.1", b"HTTP/x"), 400),
        (b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\n", 413),
        (b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 40\r\n\r\n"
         + gzip.compress(b"", mtime=0)[:20], 415),
        (b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
    ],
)  # fmt: skip
async def test_what_is_too_much_is_refused_and_nothing_is_told_of_what_we_are_made_of(
    request_: bytes, status: int
) -> None:
    async with serving(stall_s=1.0) as client:
        answer = await client.ask(request_)
        if not answer and len(request_) > LARGE:
            return  # it was still being sent when the connection was closed
        assert status_of(answer) == status
        assert b"\r\nServer: delta-tailer\r\n" in answer
        assert b"aiohttp" not in answer
        assert b"Python" not in answer


@pytest.mark.parametrize("line", [b"X: a\r\n", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"])
async def test_headers_behind_a_body_and_requests_ahead_of_answers_are_bounded(line: bytes) -> None:
    head = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    async with serving() as client:
        reader, writer = await client.connect(head + b"X: a\r\n")
        with suppress(ConnectionError):
            for _ in range(1000):
                writer.write(line * 100)
                await writer.drain()
        await rest(reader)  # it ends: the connection is closed
        assert status_of(await client.ask(HEALTH + b"Connection: close\r\n\r\n")) == 200


async def test_who_sends_on_behind_a_refusal_is_cut_off() -> None:
    head = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk, sent = b"10000\r\n" + b" " * 65_536 + b"\r\n", 0
    async with serving() as client:
        _, writer = await client.connect(head)
        with suppress(ConnectionError):
            while sent < 2**30:
                writer.write(chunk)
                await writer.drain()
                sent += len(chunk)
    assert sent < 32 * 1024 * 1024  # most of it is in the kernel's buffers


async def test_a_body_that_is_taken_comes_as_it_was_sent() -> None:
    async with serving(stall_s=5.0) as client:
        for size in (0, 1, 40_000, 65_535):
            body = b"\n\r\n" + b"x" * (size - 3) if size > 3 else b"x" * size
            head = f"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n".encode()
            answer = await client.ask(head + b"Connection: close\r\n\r\n" + body)
            assert status_of(answer) == 200
            assert answer.endswith(b"\r\n\r\n" + body)


async def test_those_that_wait_longest_make_room_for_others() -> None:
    async with serving(connections=8) as client:
        waiting = [await client.connect(HEALTH) for _ in range(30)]
        for _ in range(5):
            assert status_of(await client.ask(HEALTH + b"Connection: close\r\n\r\n")) == 200
        for reader, _ in waiting[:20]:
            assert await rest(reader) == b""
        # One that came late has its place still.
        reader, writer = waiting[-1]
        writer.write(b"Connection: close\r\n\r\n")
        assert status_of(await rest(reader)) == 200


async def test_no_answer_is_made_before_the_last_one_is_taken() -> None:
    """But for those that the kernel takes. Meanwhile others are answered, and then each of them."""
    count, ahead = 10, 60
    request = b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n"
    async with serving() as client:
        readers = []
        for _ in range(count):
            narrow = socket.socket()
            narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            narrow.setblocking(False)
            await asyncio.get_running_loop().sock_connect(narrow, ("127.0.0.1", client.port))
            reader, _ = await client.connect(request * ahead, over=narrow)
            readers.append(reader)
        await eventually_async(lambda: len(client.made) >= 3 * count)
        for _ in range(5):
            assert status_of(await client.ask(HEALTH + b"Connection: close\r\n\r\n")) == 200
        assert len(client.made) < 10 * count, "some for each"
        for reader in readers:
            for _ in range(ahead):
                await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(LARGE)
        assert len(client.made) == ahead * count


async def test_streams_are_counted_apart_and_the_oldest_makes_room() -> None:
    request = b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n"
    async with serving(connections=4, streams=3) as client:
        streams = []
        for _ in range(9):
            reader, _ = await client.connect(request)
            assert status_of(await reader.readuntil(b"event")) == 200
            streams.append(reader)
        for _ in range(5):
            assert status_of(await client.ask(HEALTH + b"Connection: close\r\n\r\n")) == 200
        for reader in streams[:6]:
            await rest(reader)  # it ends: the connection is closed
        for reader in streams[6:]:
            await reader.readuntil(b"event")


def test_what_is_made_for_all_is_shared_by_those_who_ask_too_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, made = 0.0, 0

    def make() -> bytes:
        nonlocal now, made
        now, made = now + 0.5, made + 1
        return b"%d" % made

    monkeypatch.setattr("tailer.daemon.http_api.time.monotonic", lambda: now)
    given = share_result(make)
    assert (given(), given()) == (b"1", b"1")
    now = 4.9
    assert given() == b"1"
    now = 5.1
    assert given() == b"2"


NO_DESCRIPTORS = """
import asyncio, os, resource, sys
from aiohttp import web
from tailer.http_server.serving import ConnectionLimits
from tailer.daemon.http_api import serve_routes

async def healthz(_):
    return web.json_response({"status": "ok"})

async def main():
    async with serve_routes(("127.0.0.1", int(sys.argv[1])), [web.get("/healthz", healthz)]):
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        taken = []
        try:
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            print("taken", flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_without_a_descriptor_health_is_still_told() -> None:
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", NO_DESCRIPTORS, str(port), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"taken\n"
        async with calling(port) as client:
            for _ in range(5):
                assert status_of(await client.ask(HEALTH + b"Connection: close\r\n\r\n")) == 200
    finally:
        process.kill()
        await process.communicate()


def test_half_of_the_descriptors_are_for_other_things() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert ConnectionLimits(connections=10**9).connections_max() == soft // 2
    assert ConnectionLimits(connections=3).connections_max() == 3


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [("2001:db8::1", "2001:db8::2:1", True), ("10.0.0.1", "10.0.0.2", False), (None, "", True)],
)
def test_networks(one: str | None, other: str, *, same: bool) -> None:
    assert (network_of(one) == network_of(other)) == same


# Real servers


def bomb() -> bytes:
    """31 KB that unpack to 31 MiB, and never end."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return packer.compress(bytes(31 * 1024 * 1024)) + packer.flush(zlib.Z_SYNC_FLUSH)


def share_of(folder: Path, address: str) -> str:
    return configuration({"s.x.t": folder / "t"}, f'address = "{address}"', {"alice": ["s"]})


def daemon_of(folder: Path, address: str) -> str:
    return (
        f'[daemon]\nhttp = "{address}"\ntoken = "{TOKEN}"\n[feeds.t]\ntable = "{folder / "t"}"\n'
        '[feeds.t.sink]\ntype = "jsonl"\npath = "out.jsonl"\n'
    )


async def flood(client: Client, target: str) -> None:
    """Connections that send what needs much memory to be held, and no token."""
    packed = bomb()
    post = f"POST {target} HTTP/1.1\r\nHost: x\r\n".encode()
    sent = [
        post + f"Content-Encoding: gzip\r\nContent-Length: {len(packed) + 9}\r\n\r\n".encode()
        + packed,
        post + b"X: a\r\n" * 60_000,
        post + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: a\r\n" * 60_000,
        HEALTH + b"\r\n" + (HEALTH + b"\r\n") * 10_000,
    ]  # fmt: skip
    for number in range(60):
        await client.connect(sent[number % len(sent)])


@pytest.mark.parametrize(
    ("command", "made", "target"),
    [
        ("share", share_of, "/shares/s/schemas/x/tables/t/query"),
        ("run", daemon_of, "/api/v1/feeds/t/skip"),
    ],
)
async def test_strangers_make_neither_server_grow(
    tmp_path: Path, command: str, made: Callable[[Path, str], str], target: str
) -> None:
    table = TableBuilder(tmp_path / "t", pa.schema([("id", pa.int64())]), cdf=True)
    table.create()
    port = free_port()
    config = tmp_path / "config.toml"
    config.write_text(made(tmp_path, f"127.0.0.1:{port}"))
    with started(command, config, dev=False) as program:
        await until_answered(port)
        process = psutil.Process(program.process.pid)
        before = process.memory_info().rss
        async with calling(port) as client:
            await flood(client, target)
            for _ in range(3):
                assert status_of(await client.ask(HEALTH + b"Connection: close\r\n\r\n")) == 200
            assert process.memory_info().rss - before < 64 * 1024 * 1024
        assert program.stop() == 0
    assert not any("Traceback" in line for line in program.errors), str(program)


async def until_answered(port: int) -> None:
    async with asyncio.timeout(PATIENCE_S), calling(port) as client:
        while True:
            with suppress(OSError):
                if status_of(await client.ask(HEALTH + b"Connection: close\r\n\r\n")) == 200:
                    return
            await asyncio.sleep(0.05)
