"""Work that blocks in a worker thread and asks the event loop for what it needs, step by step.

A real thread does the work, but it and the loop hand each other a baton: at any moment one of them
runs, so that a history stays the same in every run, and simulated time passes while the loop does
what it is asked for.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar, copy_context
from typing import Any, Self, TypeVar

T = TypeVar("T")

#: The portal of the work that this thread does.
_PORTAL: ContextVar[WaitingPortal] = ContextVar("portal")


class WaitingPortal:
    """In the place of anyio's BlockingPortal."""

    def __init__(self) -> None:
        self._worker, self._loop = threading.Semaphore(0), threading.Semaphore(0)
        self._asked: Awaitable[Any] | None = None
        self._answer: Any = None
        self._error: BaseException | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def stop(self, *, cancel_remaining: bool = False) -> None:
        """Do nothing: what is cancelled raises in the thread."""

    def call(self, func: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Have the loop run an async function to its end."""
        self._asked = func(*args)
        self._loop.release()
        self._worker.acquire()
        error, self._error = self._error, None
        if error is not None:
            raise error
        answer: T = self._answer
        return answer

    async def run_work(self, work: Callable[..., T], *args: Any) -> T:
        """Do blocking work, which uses this portal, in a thread."""
        ended: list[T] = []
        failed: list[BaseException] = []

        def do() -> None:
            self._worker.acquire()
            _PORTAL.set(self)
            try:
                ended.append(work(*args))
            except BaseException as e:  # noqa: BLE001  # raised in the loop
                failed.append(e)
            self._loop.release()

        context = copy_context()
        thread = threading.Thread(target=context.run, args=(do,), daemon=True)
        thread.start()
        while True:
            self._worker.release()
            self._loop.acquire()
            asked, self._asked = self._asked, None
            if asked is None:
                thread.join()
                if failed:
                    raise failed[0]
                return ended[0]
            try:
                self._answer = await asked
            except BaseException as e:  # noqa: BLE001  # the work's, which may go on
                self._error = e


def wait_for(func: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Have the loop run an async function, from work that blocks."""
    return _PORTAL.get().call(func, *args)
