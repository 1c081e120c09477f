"""What is asynchronous, from a thread that blocks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from contextlib import aclosing, contextmanager
from typing import TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

T = TypeVar("T")


def pull_batches(
    portal: BlockingPortal, batches: AsyncGenerator[T, None]
) -> Generator[T, None, None]:
    """Run an asynchronous generator, none of whose values is None, in the portal's loop."""

    async def following() -> T | None:
        return await anext(batches, None)

    async def close() -> None:
        async with aclosing(batches):
            pass

    try:
        while (batch := portal.call(following)) is not None:
            yield batch
    finally:
        portal.call(close)


@contextmanager
def open_portal(
    disconnect: Callable[[], Awaitable[None]],
    connect: Callable[[], Awaitable[object]] | None = None,
) -> Iterator[BlockingPortal]:
    """Provide the portal of a loop in which something is connected meanwhile."""
    with start_blocking_portal() as portal:
        try:
            if connect is not None:
                portal.call(connect)
            yield portal
        finally:
            portal.call(disconnect)
