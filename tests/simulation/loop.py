"""An event loop whose clock is the simulation's, and in which every run of a seed is the same.

Nothing waits: when no callback is ready, the clock jumps to the next timer. Callbacks that belong
to a process can be held back while the process is stopped (:meth:`SimulatedLoop.stop_process`),
and their order can be left to the seed.
"""

from __future__ import annotations

import asyncio
import heapq
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from itertools import count
from typing import Any, Self

#: The simulated process that the current code belongs to; None: the world around the processes.
PROCESS: ContextVar[Any] = ContextVar("simulated process", default=None)


@types.coroutine
def turn() -> Generator[None, None, None]:
    """Let other callbacks run: ``asyncio.sleep(0)``, at less processor time."""
    yield


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


class _Callback:
    """A callback: what asyncio and anyio use of :class:`asyncio.TimerHandle`, at a third of its
    processor time."""

    __slots__ = ("_cancelled", "args", "callback", "context", "time")

    def __init__(
        self, callback: Callable[..., Any], args: tuple[Any, ...], context: Context, time: float
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self.time = time
        self._cancelled = False

    def when(self) -> float:
        return self.time

    def cancel(self) -> None:
        self._cancelled = True

    def cancelled(self) -> bool:
        return self._cancelled


class SimulatedLoop(asyncio.BaseEventLoop):
    """The loop of one history.

    ``pick`` chooses one of that many ready callbacks (0: the oldest). ``on_task`` is called with
    every new task and the process that it belongs to, if any. After ``callbacks_max`` callbacks,
    running raises :class:`Endless`.
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
        self._callbacks: deque[_Callback] = deque()
        self._timers: list[tuple[float, int, _Callback]] = []
        self._numbers = count()
        self._stopped: dict[Any, list[_Callback]] = {}
        self.set_task_factory(self._new_task)  # type: ignore[arg-type]  # 3.11 passes a context

    #: Asked at each task and future; a type without arguments answers soonest: False.
    get_debug: Any = bool

    def time(self) -> float:
        """Return the simulated time in seconds."""
        return self._now

    def _new_task(
        self,
        _: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, Any],
        context: Context | None = None,
        **options: Any,  # the name, since Python 3.14
    ) -> asyncio.Task[Any]:
        task = _Task(coroutine, loop=self, context=context, **options)
        self._on_task(task, PROCESS.get() if context is None else context.get(PROCESS))
        return task

    def allow(self, callbacks: int) -> None:
        """Let this many more callbacks run."""
        self._left = callbacks

    # Callbacks

    def call_soon(  # type: ignore[override]  # as much of a handle as is used
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> _Callback:
        """See :class:`asyncio.AbstractEventLoop`."""
        context = copy_context() if context is None else context
        found = _Callback(callback, args, context, self._now)
        self._callbacks.append(found)
        return found

    def call_later(  # type: ignore[override]  # as above
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> _Callback:
        """See :class:`asyncio.AbstractEventLoop`."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]  # as above
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> _Callback:
        """See :class:`asyncio.AbstractEventLoop`."""
        context = copy_context() if context is None else context
        found = _Callback(callback, args, context, when)
        heapq.heappush(self._timers, (when, next(self._numbers), found))
        return found

    # Stopped processes

    def stop_process(self, process: object) -> None:
        """Hold back all callbacks of a process, as SIGSTOP does."""
        self._stopped.setdefault(process, [])

    def continue_process(self, process: object) -> None:
        """Run what was held back, as SIGCONT does."""
        self._callbacks.extend(self._stopped.pop(process, ()))

    # What a real loop does with a selector

    def _write_to_self(self) -> None:
        """Do nothing: there is no selector to wake."""

    def _process_events(self, event_list: object) -> None:
        """Do nothing: there are no files to watch."""

    def _run_once(self) -> None:
        callbacks, timers, pick, stopped = self._callbacks, self._timers, self._pick, self._stopped
        if not callbacks:
            self._jump()
        while timers and timers[0][0] <= self._now:
            callbacks.append(heapq.heappop(timers)[2])
        for _ in range(len(callbacks)):
            found = callbacks.popleft() if pick is None else self._picked(pick)
            if found._cancelled or (stopped and self._is_held(found)):
                continue
            self._left -= 1
            if self._left < 0:
                raise Endless(f"at {self._now:.3f} s")
            try:
                found.context.run(found.callback, *found.args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as e:  # noqa: BLE001  # as asyncio does
                self.call_exception_handler({"message": "in a callback", "exception": e})

    def _is_held(self, callback: _Callback) -> bool:
        """Return whether the process of a callback is stopped; keep the callback for later."""
        held = self._stopped.get(callback.context.get(PROCESS))
        if held is None:
            return False
        held.append(callback)
        return True

    def _picked(self, pick: Callable[[int], int]) -> _Callback:
        """Return the next callback: of one process the oldest, as asyncio promises; between
        processes, which have loops of their own, the seed may pick."""
        ready = self._callbacks
        if len(ready) < 2 or not (number := pick(len(ready))):
            return ready.popleft()
        process = ready[number].context.get(PROCESS)
        first = next(n for n, one in enumerate(ready) if one.context.get(PROCESS) is process)
        ready.rotate(-first)
        found = ready.popleft()
        ready.rotate(first)
        return found

    def _jump(self) -> None:
        """Let the time pass until the next timer is due."""
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if self._stopping:
            return
        if not timers:
            raise Stalled(f"at {self._now:.3f} s")
        self._now = max(self._now, timers[0][0])

    _stopping: bool
