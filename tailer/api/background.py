"""An event loop in a thread of its own, for callers without one, or inside of theirs."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakSet, finalize

from tailer.errors import TailerError

T = TypeVar("T")

_CHECK_S = 0.5


class Background:
    """A thread that runs coroutines until :meth:`close`, and then ``ending``.

    It can be used from every thread but its own. A process that was forked has no copy of the
    thread, and gets a :class:`TailerError`. It is closed at the latest when the interpreter ends.
    """

    def __init__(self, ending: Callable[[], Awaitable[None]] | None = None) -> None:
        self._ending = ending
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._ended: Future[None] = Future()
        self._tasks: set[asyncio.Task[Any]] = set()
        # A daemon: an iterator that was never closed must not keep its program alive.
        self._thread = threading.Thread(target=self._run_loop, name="tailer", daemon=True)
        _running.add(self)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, and return its value. A signal's error cancels it."""
        future = self._submit_work(work)
        try:
            # A signal between two instructions wakes nobody who waits without an end.
            while not wait((future,), _CHECK_S).done:
                pass
            return future.result()
        except CancelledError:
            raise TailerError("this was ended before it was done") from None
        except BaseException:
            future.cancel()
            raise

    async def run_from_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine as :meth:`run` does, from asyncio's event loop."""
        return await asyncio.wrap_future(self._submit_work(work))

    def close(self) -> None:
        """End the thread, after its ending. Does nothing the second time."""
        self._begin_end()
        # The garbage collector closes in any thread; a forked process has none to wait for.
        if threading.current_thread() is not self._thread and self._process == os.getpid():
            self._thread.join()

    async def close_from_loop(self) -> None:
        """Do the same, from asyncio's event loop."""
        self._begin_end()
        await asyncio.shield(asyncio.wrap_future(self._ended))
        self._thread.join()

    def _begin_end(self) -> None:
        if self._process != os.getpid() or self not in _running:
            return
        _running.discard(self)
        self._loop.call_soon_threadsafe(self._closing.set)

    def _submit_work(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if self._process != os.getpid():
            work.close()
            raise TailerError(
                "this was begun by the process that this one was forked from; begin it here"
            )
        return asyncio.run_coroutine_threadsafe(self._track_task(work), self._loop)

    async def _track_task(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            return await work
        finally:
            self._tasks.discard(task)

    def _run_loop(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve_until_end())
        finally:
            self._ended.set_result(None)

    async def _serve_until_end(self) -> None:
        """Stay until the end: anyio keeps worker threads as long as this task."""
        await self._closing.wait()
        # What was cancelled may still be in a worker thread: the ending comes after it.
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._ending is not None:
            with suppress(Exception):  # nobody is there to be told
                await self._ending()


_running: WeakSet[Background] = WeakSet()
# What is registered last is called first: before the finalizers of other libraries, which would
# close what still runs here. The first finalizer registers all of them.
finalize(_running, bool)


@atexit.register
def _close_all() -> None:
    for background in list(_running):
        background.close()
