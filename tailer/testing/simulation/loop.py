"""An event loop whose clock is the simulation's, and in which every run of a seed is the same.

Nothing waits: when no callback is ready, the clock jumps to the next timer. Callbacks that belong
to a process can be held back while the process is stopped (:meth:`SimulatedLoop.stop_process`),
and their order can be left to the seed.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from itertools import count
from typing import Any, Self

__all__ = ["PROCESS", "Endless", "SimulatedLoop", "Stalled"]

#: The simulated process that the current code belongs to; None: the world around the processes.
PROCESS: ContextVar[Any] = ContextVar("simulated process", default=None)


class Stalled(Exception):
    """Nothing is ready and no timer is set: everything waits for ever."""


class Endless(Exception):
    """More callbacks ran than any history needs: something spins."""


class _Task(asyncio.Task[Any]):
    """A task whose hash is its number, so that sets of tasks have one order on every machine."""

    _numbers = count()

    def __new__(cls, *_: Any, **__: Any) -> Self:
        task = super().__new__(cls)
        task.number = next(cls._numbers)
        return task

    number: int

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class SimulatedLoop(asyncio.BaseEventLoop):
    """The loop of one history.

    ``pick`` chooses one of that many ready callbacks (0: the oldest). ``on_task`` is called with
    every new task and the process it belongs to. After ``callbacks_max`` callbacks, running raises
    :class:`Endless`.
    """

    def __init__(
        self,
        pick: Callable[[int], int] | None,
        on_task: Callable[[asyncio.Task[Any], Any], None],
        callbacks_max: int,
    ) -> None:
        super().__init__()
        self._now = 0.0
        self._pick = pick
        self._on_task = on_task
        self._left = callbacks_max
        self._stopped: dict[Any, list[asyncio.Handle]] = {}
        self.set_task_factory(self._new_task)  # type: ignore[arg-type]  # 3.11 passes a context

    def time(self) -> float:
        """Return the simulated time in seconds."""
        return self._now

    def _new_task(
        self,
        _: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, Any],
        context: Context | None = None,
    ) -> asyncio.Task[Any]:
        task = _Task(coroutine, loop=self, context=context)
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is not None:
            self._on_task(task, process)
        return task

    def allow(self, callbacks: int) -> None:
        """Let this many more callbacks run."""
        self._left = callbacks

    # Stopped processes

    def stop_process(self, process: object) -> None:
        """Hold back all callbacks of a process, as SIGSTOP does."""
        self._stopped.setdefault(process, [])

    def continue_process(self, process: object) -> None:
        """Run what was held back, as SIGCONT does."""
        for handle in self._stopped.pop(process, ()):
            self._ready.append(handle)

    # What a real loop does with a selector

    def _write_to_self(self) -> None:
        """Do nothing: there is no selector to wake."""

    def _process_events(self, event_list: object) -> None:
        """Do nothing: there are no files to watch."""

    def _run_once(self) -> None:
        ready = self._ready
        self._move_due()
        for _ in range(len(ready)):
            handle = self._next()
            if handle._cancelled:
                continue
            if self._stopped:
                held = self._stopped.get(handle._context.get(PROCESS))  # type: ignore[attr-defined]
                if held is not None:
                    held.append(handle)
                    continue
            self._left -= 1
            if self._left < 0:
                raise Endless(f"at {self._now:.3f} s")
            handle._run()

    def _next(self) -> asyncio.Handle:
        """Return the next callback: of one process the oldest, as asyncio promises; between
        processes, which have loops of their own, the seed may pick."""
        ready: deque[asyncio.Handle] = self._ready
        if self._pick is None or len(ready) < 2 or not (number := self._pick(len(ready))):
            return ready.popleft()
        process = ready[number]._context.get(PROCESS)  # type: ignore[attr-defined]
        first = next(n for n, h in enumerate(ready) if h._context.get(PROCESS) is process)  # type: ignore[attr-defined]
        ready.rotate(-first)
        handle = ready.popleft()
        ready.rotate(first)
        return handle

    def _move_due(self) -> None:
        """Make due timers ready; if nothing is ready, jump to the next timer first."""
        scheduled: list[asyncio.TimerHandle] = self._scheduled
        while scheduled and scheduled[0]._cancelled:
            self._drop(scheduled)
        if not self._ready and not self._stopping:
            if not scheduled:
                raise Stalled(f"at {self._now:.3f} s")
            self._now = max(self._now, scheduled[0].when())
        while scheduled and scheduled[0].when() <= self._now:
            handle = self._drop(scheduled)
            if not handle._cancelled:
                self._ready.append(handle)

    def _drop(self, scheduled: list[asyncio.TimerHandle]) -> asyncio.TimerHandle:
        handle = heapq.heappop(scheduled)
        handle._scheduled = False  # type: ignore[attr-defined]
        return handle

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _stopping: bool
