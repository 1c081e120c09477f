"""A front of a web server, in an event loop of its own: what it makes of a request is for its kind
to say."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from aiohttp import ClientSession, web
from anyio.from_thread import start_blocking_portal


class WebFront(ABC):
    """Listens on ``port``, and leads requests to the server at ``upstream`` by ``session``."""

    upstream: str
    port: int
    session: ClientSession

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    @abstractmethod
    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a request."""

    async def start(self) -> None:
        """Listen."""
        self.session = ClientSession(auto_decompress=False)
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self.answer)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()

    async def stop(self) -> None:
        """Close all connections."""
        await self._runner.cleanup()
        await self.session.close()


F = TypeVar("F", bound=WebFront)


@contextmanager
def running_front(front: F) -> Iterator[F]:
    """A front, as long as the block runs."""
    with start_blocking_portal() as portal:
        portal.call(front.start)
        try:
            yield front
        finally:
            portal.call(front.stop)
