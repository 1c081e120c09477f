"""Work in worker threads, so that the event loop stays free. Hops cost more than small work."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

import anyio.to_thread

__all__ = ["in_thread", "listed", "one_by_one", "stepwise"]

T = TypeVar("T")

_LIST = 4096
#: Parsing so many bytes takes about as long as the hop into a thread.
_INLINE_BYTES_MAX = 16 * 1024


async def in_thread(parse: Callable[[], T], size: int) -> T:
    """Parse ``size`` bytes, in a worker thread unless they are few."""
    return parse() if size <= _INLINE_BYTES_MAX else await anyio.to_thread.run_sync(parse)


async def stepwise(iterator: Iterator[T]) -> AsyncGenerator[T, None]:
    """Iterate in worker threads, one step for each item: each takes long to make."""
    try:
        while (item := await anyio.to_thread.run_sync(next, iterator, None)) is not None:
            yield item
    finally:
        close = getattr(iterator, "close", None)
        if close is not None:
            close()


async def listed(items: Iterator[T], size: int = _LIST) -> AsyncGenerator[list[T], None]:
    """Yield small items in lists of ``size``, each made in a worker thread.

    An error is raised after the items before it.
    """
    error = None
    while error is None:
        found, error = await anyio.to_thread.run_sync(_next, items, size)
        if found:
            yield found
        elif error is None:
            return
    raise error


def _next(items: Iterator[T], size: int) -> tuple[list[T], Exception | None]:
    """Take the next items, and the error that comes after them, if any."""
    found: list[T] = []
    try:
        found.extend(islice(items, size))
    except Exception as e:  # noqa: BLE001 - raised after what came before it
        return found, e
    return found, None


async def one_by_one(items: Iterable[T]) -> AsyncGenerator[T, None]:
    """Yield small items, made as :func:`listed` makes them; those of a list without a thread."""
    if isinstance(items, list):
        for item in items:
            yield item
        return
    async for found in listed(iter(items)):
        for item in found:
            yield item
