"""Asynchronous generators, from a thread that blocks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing
from typing import TypeVar

from anyio.from_thread import BlockingPortal

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
