"""Blocking work: in worker threads, so that the event loop stays free; without a loop, in place.

Hops between threads cost more than small work.
"""

from __future__ import annotations

import sys
import time
import types
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
)
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from contextvars import ContextVar
from importlib import import_module
from itertools import islice
from typing import Any, Generic, TypeVar

from tailer.process.loop_library import anyio, asyncio

__all__ = [
    "BegunWork",
    "blocking",
    "event_loop",
    "has_event_loop",
    "in_thread",
    "listed",
    "loading",
    "now",
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


class BegunWork(Generic[T]):
    """Work that may begin without an event loop, and goes on in one from where it calls
    :func:`event_loop`. To load a loop takes as long as to read a small table.

    ``result`` is None until the work is done.
    """

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self.result: T | None = None
        self._begin = work
        self._work: Coroutine[Any, Any, T] | None = None

    def begin(self) -> bool:
        """Do the work, in the calling thread; return whether it is done, or else wants a loop."""
        self._work = self._begin()
        token = _no_loop.set(True)
        try:
            self._work.send(None)
        except StopIteration as done:
            self.result = done.value
            return True
        finally:
            _no_loop.reset(token)
        return False

    async def go_on(self) -> None:
        """Do the work, or the rest of it, in an event loop."""
        if self._work is None:
            self.result = await self._begin()
        else:
            self.result = await _rest(self._work)

    async def give_up(self) -> None:
        """Let what was begun clean up after itself, in an event loop, before that has gone on."""
        if self._work is not None:
            with anyio.CancelScope() as scope:
                scope.cancel()
                await self.go_on()


@types.coroutine
def _rest(work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    result: T = yield from work  # a coroutine that has begun can't be awaited
    return result


def without_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run work that waits for nothing but local files, and needs no event loop."""
    begun = BegunWork(lambda: work)
    if not begun.begin():
        raise AssertionError("the work waits for something that only an event loop has")
    return begun.result  # type: ignore[return-value]  # it is done


def has_event_loop() -> bool:
    """Return whether the calling coroutine runs in an event loop."""
    return not _no_loop.get()


@types.coroutine
def event_loop() -> Generator[None, None, None]:
    """Go on in an event loop, if the work was begun without one."""
    if _no_loop.get():
        yield


def now() -> float:
    """Return the event loop's clock, in seconds; without a loop, a steady one."""
    if _no_loop.get():
        return time.monotonic()
    return anyio.current_time()


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
    await anyio.sleep(seconds)


def shielded() -> AbstractContextManager[object]:
    """Guard a block against cancellation."""
    if _no_loop.get():
        return nullcontext()
    return anyio.CancelScope(shield=True)


@asynccontextmanager
async def loading(module: str, *, aside: bool) -> AsyncIterator[None]:
    """Load a module during the block, ``aside`` in a worker thread: a block that waits for a server
    leaves the processor to it."""
    if not aside:
        import_module(module)
        yield
        return
    loaded = asyncio.create_task(blocking(import_module, module))
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
