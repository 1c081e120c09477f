"""Blocking work: in worker threads, so that the event loop stays free.

Hops between threads cost more than small work.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from importlib import import_module
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

import anyio
import anyio.from_thread
import anyio.to_thread

T = TypeVar("T")

_LIST = 2048
#: Parsing this number of bytes takes about as long as the hop into a thread.
INLINE_BYTES_MAX = 16 * 1024


async def run_blocking(work: Callable[..., T], *arguments: Any) -> T:
    """Call a function that blocks, in a worker thread."""
    return await anyio.to_thread.run_sync(work, *arguments)


def stop_if_cancelled() -> None:
    """End the work of a worker thread that nobody waits for any more, by the event loop's error of
    a cancellation: the thread would be waited for. To be called now and then by work that takes
    seconds; elsewhere than in a worker thread it does nothing."""
    with suppress(RuntimeError):  # this is no worker thread
        anyio.from_thread.check_cancelled()


@asynccontextmanager
async def load_module(module: str) -> AsyncIterator[None]:
    """Load a module in a worker thread during the block: a block that waits for a server leaves the
    processor to it."""
    loaded = asyncio.create_task(run_blocking(import_module, module))
    try:
        yield
    finally:
        await loaded


async def parse_in_thread(parse: Callable[[], T], size: int) -> T:
    """Parse ``size`` bytes, in a worker thread unless they are few."""
    return parse() if size <= INLINE_BYTES_MAX else await run_blocking(parse)


async def step_in_threads(iterator: Iterator[T]) -> AsyncGenerator[T, None]:
    """Iterate in worker threads, one step for each item: each takes long to make."""
    try:
        while (item := await run_blocking(next, iterator, None)) is not None:
            yield item
    finally:
        close = getattr(iterator, "close", None)
        if close is not None:
            close()


async def list_in_threads(items: Iterator[T], size: int = _LIST) -> AsyncGenerator[list[T], None]:
    """Yield small items in lists of ``size``, each made in a worker thread.

    An error is raised after the items before it.
    """
    error = None
    while error is None:
        found, error = await run_blocking(_take_items, items, size)
        if found:
            yield found
        if error is None and len(found) < size:
            return
    raise error


class _Taken(NamedTuple, Generic[T]):
    """The next items, and the error that comes after them, if any."""

    items: list[T]
    error: Exception | None


def _take_items(items: Iterator[T], size: int) -> _Taken[T]:
    found: list[T] = []
    try:
        found.extend(islice(items, size))
    except Exception as e:  # noqa: BLE001 - raised after what came before it
        return _Taken(found, e)
    return _Taken(found, None)


async def one_by_one(items: Iterable[T]) -> AsyncGenerator[T, None]:
    """Yield small items, made as by :func:`list_in_threads`; those of a list without a thread."""
    if isinstance(items, list):
        for item in items:
            yield item
        return
    async for found in list_in_threads(iter(items)):
        for item in found:
            yield item
