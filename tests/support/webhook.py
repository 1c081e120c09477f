"""A webhook for tests, which keeps what it is sent and answers as it is asked to."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from tailer.testing.conformance.sink import Event


@dataclass
class Webhook:
    """What it has taken: headers and bodies. ``answers`` come first, in their order: a status, and
    headers; then 204. ``refuses`` is a text that no body may have. ``said`` is the answers'
    text; ``then`` is called for each request that is taken, before its answer. Where it is
    ``silent``, it never answers."""

    answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    refuses: str = "\0"
    said: str = "as asked"
    silent: bool = False
    taken: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    #: The path and the query of each request that was taken.
    targets: list[str] = field(default_factory=list)
    asked: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    url: str = ""
    then: Callable[[], None] = lambda: None

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        if self.silent:
            await asyncio.Event().wait()
        if request.method == "OPTIONS":
            return web.Response(status=405)
        came = {name.lower(): value for name, value in request.headers.items()}, body
        self.asked.append(came)
        if self.answers:
            status, headers = self.answers.pop(0)
            return web.Response(status=status, headers=headers, text=self.said)
        if self.refuses in body.decode():
            return web.Response(status=422, text=f"no {self.refuses}")
        self.taken.append(came)
        self.targets.append(request.raw_path)
        self.then()
        return web.Response(status=204)

    def events(self) -> Sequence[Event]:
        """All that came, in order."""
        return [cloud_event(event) for _, body in self.taken for event in json.loads(body)]


def cloud_event(event: dict[str, Any]) -> Event:
    """An event of CloudEvents."""
    kind = event["type"].removeprefix("delta.change.").replace("delta.snapshot.row", "insert")
    return Event(event["id"], kind, int(event["deltaversion"]), event["data"])


@asynccontextmanager
async def webhook(
    context: ssl.SSLContext | None = None, hook: Webhook | None = None
) -> AsyncIterator[Webhook]:
    """A webhook on a free port."""
    hook = hook or Webhook()
    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{path:.*}", hook.take)
    server = TestServer(app, host="127.0.0.1", scheme="https" if context else "http")
    await server.start_server(ssl=context)
    try:
        hook.url = str(server.make_url("/hook"))
        yield hook
    finally:
        await server.close()
