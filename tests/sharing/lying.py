"""Servers that answer what they are told to, and clients of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from tailer.sharing.client import ClientOptions, SharingClient
from tailer.sharing.profile import parse_profile
from tailer.store.https import HttpsFiles, Link

Reply = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def lying(
    reply: Reply, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that answers each request as `reply` has it: its URL and the requests' heads."""
    seen: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            seen.append(await reader.readuntil(b"\r\n\r\n"))
            await reply(seen[-1], writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, host, port)
    try:
        host, port = server.sockets[0].getsockname()[:2]
        yield f"http://{host}:{port}", seen
    finally:
        server.close()
        await server.wait_closed()


def saying(body: bytes, *headers: str, status: str = "200 OK", length: int | None = None) -> Reply:
    """The same answer to every request."""
    size = len(body) if length is None else length
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {size}", "Connection: close", *headers]

    async def reply(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)

    return reply


@asynccontextmanager
async def asking(url: str, **options: Any) -> AsyncIterator[SharingClient]:
    text = {"shareCredentialsVersion": 1, "endpoint": url, "bearerToken": "s3cret"}
    client = SharingClient(parse_profile(json.dumps(text)), lambda: 0.0, ClientOptions(**options))
    try:
        yield client
    finally:
        await client.aclose()


class OneLink:
    def __init__(self, url: str) -> None:
        self.url = url

    async def find_link(self, _: str) -> Link:
        return Link(self.url)

    async def renew_link(self, _: str, old: Link) -> Link:
        return Link(self.url, issued=old.issued + 1)


@asynccontextmanager
async def files_at(
    url: str, *, local: bool = True, http: bool = False, endpoint: str = "https://h"
) -> AsyncIterator[HttpsFiles]:
    async with asking("http://127.0.0.1:1" if local else endpoint) as client:
        yield HttpsFiles(
            client.sessions.open_files_session, OneLink(url), lambda: 0.0, root="t",
            allow_http=http, whereabouts=client.sessions.whereabouts,
        )  # fmt: skip
