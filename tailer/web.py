"""The daemon's HTTP side: metrics for Prometheus, and health for whoever restarts it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

__all__ = ["serve"]


@asynccontextmanager
async def serve(
    address: tuple[str, int], registry: Any, unready: Callable[[], dict[str, str]]
) -> AsyncIterator[None]:
    """Serve while the block runs. ``unready`` gives the feeds that are not ready, and why.

    Raises OSError if the address can't be bound.
    """

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    async def healthz(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def readyz(_: web.Request) -> web.Response:
        waiting = unready()
        return web.json_response(
            {"status": "waiting" if waiting else "ready", "feeds": waiting},
            status=503 if waiting else 200,
        )

    app = web.Application()
    app.add_routes(
        [
            web.get("/metrics", metrics),
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
        ]
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, *address).start()
        yield
    finally:
        await runner.cleanup()
