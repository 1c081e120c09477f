"""Iterating in worker threads, so that the event loop stays free."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator
from itertools import islice
from typing import TypeVar

import anyio.to_thread

__all__ = ["in_blocks", "in_thread"]

T = TypeVar("T")

#: How many small items are taken in one step.
_BLOCK = 256


async def in_thread(iterator: Iterator[T]) -> AsyncGenerator[T, None]:
    """Iterate in worker threads, one step at a time."""
    try:
        while (item := await anyio.to_thread.run_sync(next, iterator, None)) is not None:
            yield item
    finally:
        close = getattr(iterator, "close", None)
        if close is not None:
            close()


async def in_blocks(items: Iterable[T]) -> AsyncGenerator[T, None]:
    """Iterate in worker threads, many items in each step; over a list without a thread."""
    if isinstance(items, list):
        for item in items:
            yield item
        return
    iterator, error = iter(items), None
    while error is None:
        block, error = await anyio.to_thread.run_sync(_block, iterator)
        for item in block:
            yield item
        if error is None and len(block) < _BLOCK:
            return
    raise error


def _block(iterator: Iterator[T]) -> tuple[list[T], Exception | None]:
    """Take the next items, and the error that comes after them, if any."""
    found: list[T] = []
    try:
        found.extend(islice(iterator, _BLOCK))
    except Exception as e:  # noqa: BLE001 - raised after what came before it
        return found, e
    return found, None
