"""Ending on request: SIGINT and SIGTERM."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable

import anyio

from tailer.errors import first_error

__all__ = ["until_stopped"]


async def until_stopped(work: Callable[[], Awaitable[None]]) -> bool:
    """Run some work to its end, or until SIGINT or SIGTERM; the work is then cancelled.

    Returns whether a signal ended it.
    """
    stopped = False
    try:
        async with anyio.create_task_group() as tasks:

            async def wait_for_signal() -> None:
                nonlocal stopped
                with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                    async for _ in signals:
                        stopped = True
                        tasks.cancel_scope.cancel()
                        return

            async def work_to_its_end() -> None:
                await work()
                tasks.cancel_scope.cancel()

            tasks.start_soon(wait_for_signal)
            tasks.start_soon(work_to_its_end)
    except BaseExceptionGroup as group:
        raise first_error(group) from None
    return stopped
