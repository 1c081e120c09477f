"""Clients that mean harm, with a token of their own and without one, at a sharing server of little
memory and few descriptors: an honest client is answered meanwhile."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pyarrow as pa
import pytest

from tailer.testing.table import TableBuilder
from tests.share_server.serving import Reply, Served, configuration, place, token
from tests.support.components import free_port, require
from tests.support.extent import rest_slow
from tests.support.programs import started
from tests.support.waiting import PATIENCE_S

SCHEMA = pa.schema([("id", pa.int64())])
#: Some times what the server takes at rest, and less than what one attack asks for.
ADDRESS_BYTES_MAX, RESIDENT_MIB_MAX = 2 * 2**30, 320
DESCRIPTORS = 200
CLIENTS = 20
FILES = 1000
QUERY = place("m.x.t") + "/query"
NEARLY_A_MEBIBYTE = 1_000_000
TEN_MEGABYTES = json.dumps({"predicateHints": ["id = 1"] * 1_000_000}).encode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("clients")
    table = TableBuilder(folder / "t", SCHEMA, cdf=True)
    table.create()
    table.insert([{"id": 1}])
    add = table.add([{"id": 1}])["add"]
    table.commit(*({"add": {**add, "path": f"f{number}.parquet"}} for number in range(FILES)))
    require("prlimit", shutil.which("prlimit") is not None)
    names = {f"{share}.x.t": table.folder for share in ("s", "m")}
    more = {f"m.x.t{number}": table.folder for number in range(20)}
    port, config, profile = free_port(), folder / "share.toml", folder / "alice.share"
    url = f"http://127.0.0.1:{port}/delta-sharing"
    settings = f'address = "127.0.0.1:{port}"\npublic_url = "{url}"\nstall_s = 2.0\n'
    settings += "requests_per_s = 1e6"
    granted = {"alice": ["s"], "mallory": ["m"]}
    config.write_text(configuration({**names, **more}, settings, granted))
    profile.write_text(token(config, "alice"))
    limits = ("prlimit", f"--as={ADDRESS_BYTES_MAX}", f"--nofile={DESCRIPTORS}")
    with started("share", config, dev=False, within=limits) as program:
        program.wait_until(lambda: any("sharing " in line for line in program.errors))
        yield Served(config, url, profile, program)
        status = Path(f"/proc/{program.process.pid}/status").read_text()
        peak_kib = int(status.partition("VmHWM:")[2].split()[0])
        assert peak_kib < RESIDENT_MIB_MAX * 1024, f"{peak_kib // 1024} MiB"
        assert program.stop() == 0, str(program)
    assert not any("Traceback" in line for line in program.errors), str(program)


@pytest.fixture(scope="module")
def bearer(server: Served) -> str:
    """The token of one who may read one share, and means harm to the other's reader."""
    return str(json.loads(token(server.config, "mallory"))["bearerToken"])


def post(bearer: str, more: bytes) -> bytes:
    line = f"POST /delta-sharing{QUERY} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {bearer}\r\n"
    return line.encode() + more


def body(bearer: str, document: bytes) -> bytes:
    return post(bearer, b"Content-Length: %d\r\n\r\n" % len(document) + document)


def asking(bearer: str, **fields: Any) -> bytes:
    return body(bearer, json.dumps(fields).encode())


def again(part: bytes) -> Iterator[bytes]:
    return itertools.repeat(part * (65_536 // len(part)))


#: What is sent: parts of what never comes to its end, or all of it.
ATTACKS: dict[str, Callable[[str], Iterator[bytes]]] = {
    "headers without end": lambda b: itertools.chain([post(b, b"")], again(b"X-Header: abc\r\n")),
    "a header without end": lambda b: itertools.chain([post(b, b"X: ")], again(b"a")),
    "a body without end": lambda b: itertools.chain(
        [post(b, b"Transfer-Encoding: chunked\r\n\r\n")], again(b"800\r\n" + b" " * 2048 + b"\r\n")
    ),
    "a length of 2^62": lambda b: itertools.chain(
        [post(b, b"Content-Length: %d\r\n\r\n" % 2**62)], again(b" ")
    ),
    "requests ahead of answers": lambda b: itertools.repeat(asking(b) * 100),
    "JSON nested 100,000 deep": lambda b: iter([body(b, b"[" * 100_000 + b"]" * 100_000)]),
    "a number of a million digits": lambda b: iter(
        [body(b, b'{"version": ' + b"9" * NEARLY_A_MEBIBYTE + b"}")]
    ),
    "predicates of 10 MB": lambda b: iter([body(b, TEN_MEGABYTES)]),
    "predicates in JSON, nested 20,000 deep": lambda b: iter(
        [asking(b, jsonPredicateHints='{"op":"not","children":[' * 20_000)]
    ),
    "a wide predicate in JSON": lambda b: iter(
        [asking(b, jsonPredicateHints=json.dumps({"op": "and", "children": [{}] * 200_000}))]
    ),
    "forged tokens": lambda b: iter(
        [asking(b, includeRefreshToken=True, refreshToken="A" * NEARLY_A_MEBIBYTE)]
    ),
    "answers that nobody takes": lambda b: iter([asking(b)]),
    "half a request": lambda b: iter([post(b, b"X")]),
}

#: One of each kind: much of what has no end, a large request, an answer that is not read, silence.
KINDS = {
    "a body without end",
    "predicates of 10 MB",
    "answers that nobody takes",
    "half a request",
}


@asynccontextmanager
async def attacking(
    server: Served, attack: Callable[[], Iterator[bytes]], count: int, *, reads: bool
) -> AsyncIterator[None]:
    """Clients that send, each again as soon as its connection is closed, while the block runs."""
    parts = urlsplit(server.url)

    async def client() -> None:
        while True:
            with suppress(OSError):
                reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
                try:
                    for part in attack():
                        writer.write(part)
                        await writer.drain()
                    await (reader.read() if reads else asyncio.Event().wait())
                finally:
                    writer.transport.abort()
            await asyncio.sleep(0.01)

    clients = [asyncio.create_task(client()) for _ in range(count)]
    try:
        yield
    finally:
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)


async def honest(server: Served) -> Reply:
    """An answer to who means well; who is not answered at once asks again."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            # An answer may be cut short too: this server gives a client two seconds to take a byte,
            # which a busy machine may not give it.
            with suppress(OSError, HTTPException):
                reply = await asyncio.to_thread(server.query, "s.x.t")
                if reply.status == 200:
                    return reply
            await asyncio.sleep(0.05)


def ids(reply: Reply) -> list[str]:
    return sorted(line["file"]["id"] for line in reply.lines[2:])


@pytest.mark.parametrize("name", rest_slow(ATTACKS, *KINDS))
@pytest.mark.anyio
async def test_an_honest_client_is_answered_beside_others(
    server: Served, bearer: str, name: str
) -> None:
    before = ids(await honest(server))
    assert len(before) == FILES + 1
    process = psutil.Process(server.program.process.pid)
    reads = name not in ("answers that nobody takes", "half a request")
    many = 500 if name == "half a request" else CLIENTS
    async with attacking(server, lambda: ATTACKS[name](bearer), many, reads=reads):
        for _ in range(3):
            assert ids(await honest(server)) == before
            assert process.num_fds() <= DESCRIPTORS


def test_a_page_of_anothers_list_is_refused(server: Served, bearer: str) -> None:
    listed = "/shares/m/schemas/x/tables?maxResults=3"
    page = server.get(listed, bearer=bearer).json["nextPageToken"]
    assert server.get(f"{listed}&pageToken={page}", bearer=bearer).status == 200
    own = "/shares/s/schemas/x/tables?maxResults=3"
    middle = len(page) // 2
    flipped = page[:middle] + ("B" if page[middle] == "A" else "A") + page[middle + 1 :]
    for where, who, forged in (
        (own, None, page), ("/shares?maxResults=1", None, page), (listed, None, page),
        (listed, bearer, flipped), (listed, bearer, page[:-4]), (listed, bearer, page * 20),
        (listed, bearer, "A" * 2000), (listed, bearer, "%00.%ff"),
    ):  # fmt: skip
        reply = server.get(f"{where}&pageToken={forged}", **({"bearer": who} if who else {}))
        assert reply.status in (400, 404)
        assert set(reply.json) == {"errorCode", "message"}
