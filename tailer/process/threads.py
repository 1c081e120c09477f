"""Blocking work: in worker threads, so that the event loop stays free; without a loop, in place.

Hops between threads cost more than small work.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from contextvars import ContextVar
from importlib import import_module
from itertools import islice
from typing import Any, TypeVar

__all__ = [
    "blocking",
    "in_thread",
    "listed",
    "loading",
    "one_by_one",
    "pause",
    "shielded",
    "stepwise",
    "stop_if_cancelled",
    "without_loop",
]

T = TypeVar("T")

_no_loop: ContextVar[bool] = ContextVar("no_loop", default=False)

_LIST = 2048
#: Parsing so many bytes takes about as long as the hop into a thread.
_INLINE_BYTES_MAX = 16 * 1024


def without_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run work that waits for nothing but local files. It needs no event loop, and to load one
    takes as long as to load all the rest."""
    token = _no_loop.set(True)
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # what the work returns
    finally:
        _no_loop.reset(token)
    raise AssertionError("the work waits for something that only an event loop has")


async def blocking(work: Callable[..., T], *arguments: Any) -> T:
    """Call a function that blocks, in a worker thread."""
    if _no_loop.get():
        return work(*arguments)
    from anyio.to_thread import run_sync  # on demand, for work without an event loop

    return await run_sync(work, *arguments)


def stop_if_cancelled() -> None:
    """End the work of a worker thread that nobody waits for any more, by the event loop's error of
    a cancellation: the thread would be waited for. To be called now and then by work that takes
    seconds; elsewhere than in a worker thread it does nothing."""
    if "anyio" not in sys.modules:
        return
    from anyio.from_thread import check_cancelled

    with suppress(RuntimeError):  # this is no worker thread
        check_cancelled()


async def pause(seconds: float) -> None:
    """Wait."""
    if _no_loop.get():
        time.sleep(seconds)  # noqa: ASYNC251  # nothing else could run meanwhile
        return
    from anyio import sleep

    await sleep(seconds)


def shielded() -> AbstractContextManager[object]:
    """Guard a block against cancellation."""
    if _no_loop.get():
        return nullcontext()
    from anyio import CancelScope

    return CancelScope(shield=True)


@asynccontextmanager
async def loading(module: str, *, aside: bool) -> AsyncIterator[None]:
    """Load a module during the block, ``aside`` in a worker thread: a block that waits for a server
    leaves the processor to it."""
    if not aside:
        import_module(module)
        yield
        return
    from asyncio import create_task

    loaded = create_task(blocking(import_module, module))
    try:
        yield
    finally:
        await loaded


async def in_thread(parse: Callable[[], T], size: int) -> T:
    """Parse ``size`` bytes, in a worker thread unless they are few."""
    return parse() if size <= _INLINE_BYTES_MAX else await blocking(parse)


async def stepwise(iterator: Iterator[T]) -> AsyncGenerator[T, None]:
    """Iterate in worker threads, one step for each item: each takes long to make."""
    try:
        while (item := await blocking(next, iterator, None)) is not None:
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
        found, error = await blocking(_next, items, size)
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
