"""Work in worker threads: in lists of thousands of items, and not where a hop costs more."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from itertools import islice
from typing import TypeVar

import anyio.to_thread

__all__ = ["chunks", "in_thread"]

T = TypeVar("T")

_CHUNK = 4096
#: Parsing so many bytes takes about as long as the hop into a thread.
_INLINE_BYTES_MAX = 16 * 1024


async def chunks(items: Iterator[T], size: int = _CHUNK) -> AsyncGenerator[list[T], None]:
    """Yield the items in lists, each made in a worker thread."""
    while chunk := await anyio.to_thread.run_sync(lambda: list(islice(items, size))):
        yield chunk


async def in_thread(parse: Callable[[], T], size: int) -> T:
    """Parse a file of ``size`` bytes, in a worker thread unless it is small."""
    return parse() if size <= _INLINE_BYTES_MAX else await anyio.to_thread.run_sync(parse)
