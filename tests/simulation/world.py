"""The world around the processes: time, chance, faults, requests, and the story of what happened.

All chance comes from one generator, so one seed gives one history. A fault happens where code asks
:meth:`World.fault` for it; adding a fault is such a call and a line in :data:`FAULTS`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any, NoReturn, TypeVar
from zlib import crc32

from tailer.errors import TransientError
from tests.simulation.loop import PROCESS, SimulatedLoop, turn

T = TypeVar("T")

#: What may go wrong at any moment, while the schedule is not calm. A history has some of them.
FAULTS: Mapping[str, str] = {
    "late": "an answer takes its time",
    "refused": "a request fails, and nothing was done",
    "lost answer": "a request is done, and its answer is lost",
    "twice": "a request arrives twice",
    "stale list": "a listing lacks the newest files",
    "short": "an answer has fewer bytes than the file",
    "thread late": "a worker thread takes its time",
    "busy": "a server has too much to do",
    "disk full": "a write to the local disk finds no room",
    "disk away": "the local disk does not answer",
    "sink refuses": "a sink refuses a batch for now",
    "sink slow": "a sink takes long",
}


class Violation(AssertionError):
    """A promise was broken."""


class ProcessKilled(BaseException):
    """The process that made a call is dead: nothing it does has an effect."""


class Process:
    """One life of a daemon."""

    def __init__(self, name: str, machine: str) -> None:
        self.name = name
        self.machine = machine
        self.alive = True
        self.started_at = 0.0
        self.tasks: list[asyncio.Task[Any]] = []
        self.supervisor: Any = None
        self.scope: Any = None

    def __repr__(self) -> str:
        return self.name

    def runner(self) -> Any:
        """Return the runner of its feed; None while it has none."""
        try:
            return None if self.supervisor is None else self.supervisor.find_runner("feed")
        except KeyError:  # a reload is on
            return None


class World:
    """One history's time, chance, faults and story.

    ``rates`` are the chances of the faults that this history has. ``only`` restricts the faults to
    those with these numbers, in the order of their happening; None: all happen.
    """

    def __init__(
        self,
        seed: int,
        rates: Mapping[str, float],
        *,
        only: Container[int] | None = None,
        shuffled: bool = False,
        callbacks_max: int = 200_000,
    ) -> None:
        self.rng = random.Random(f"world {seed}")
        self.rates = rates
        self.only = only
        self.calm = False
        #: Requests are answered before they return: a worker thread waits for them.
        self.at_once = False
        self.faults: list[str] = []
        self.story: list[tuple[float, str, str]] = []
        self.checksum = 0
        self.clock_offset_s = 1_767_225_600.0
        self.violation: Violation | None = None
        #: Nothing waits for the loop to stop.
        self.ended = False
        self.processes: list[Process] = []
        #: The tasks of no process.
        self.tasks: list[asyncio.Task[Any]] = []
        pick = self._pick if shuffled else None
        self.loop = SimulatedLoop(pick, self._register, callbacks_max)
        self.loop.set_exception_handler(self._unhandled)
        self.context: Context = copy_context()

    # Time and chance

    @property
    def now(self) -> float:
        """The simulated seconds since the history's beginning."""
        return self.loop.time()

    def clock(self) -> float:
        """Return the time of day in epoch seconds; it can be stepped."""
        return self.now + self.clock_offset_s

    def _pick(self, ready: int) -> int:
        rng = self.rng
        return rng.randrange(ready) if rng.random() < 0.3 else 0

    def chance(self, kind: str) -> bool:
        """Return whether the seed would have a fault happen here, which is not recorded."""
        rate = self.rates.get(kind)
        return rate is not None and not self.calm and self.rng.random() < rate

    def fault(self, kind: str, where: str) -> bool:
        """Return whether a fault happens here; it becomes a part of the story."""
        rate = self.rates.get(kind)
        if rate is None or self.calm or self.rng.random() >= rate:
            return False
        number = len(self.faults)
        self.faults.append(kind)
        if self.only is not None and number not in self.only:
            return False
        self.tell(f"fault {number}: {kind}, {where}")
        return True

    # The story

    def tell(self, what: str) -> None:
        """Add a line to the story."""
        process = PROCESS.get()
        who = "" if process is None else process.name
        now = self.loop.time()
        self.story.append((now, who, what))
        self.checksum = crc32(f"{now!r} {who} {what}".encode(), self.checksum)

    def broken(self, promise: str) -> NoReturn:
        """End the history: a promise was broken."""
        if self.violation is None:
            self.violation = Violation(promise)
            self.tell(f"BROKEN: {promise}")
            if not self.ended:
                self.loop.stop()
        raise self.violation

    def _unhandled(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, ProcessKilled | Violation | asyncio.CancelledError):
            return
        task = context.get("task") or context.get("future")
        if isinstance(task, asyncio.Task) and isinstance(error, TransientError | FileNotFoundError):
            return  # the result of a request ahead that nobody needs any more
        if self.violation is None and error is not None:
            self.violation = Violation(f"unhandled {type(error).__name__}: {error}")
            self.violation.__cause__ = error
            self.tell(f"BROKEN: {self.violation}")
            self.loop.stop()

    # Processes

    def _register(self, task: asyncio.Task[Any], process: Process | None) -> None:
        (self.tasks if process is None else process.tasks).append(task)

    def current(self) -> Process | None:
        """Return the process that the caller belongs to. Raises :class:`ProcessKilled` if it is
        dead."""
        process: Process | None = PROCESS.get()
        if process is not None and not process.alive:
            raise ProcessKilled(process.name)
        return process

    def start(self, process: Process, main: Callable[[], Any]) -> None:
        """Start a process."""
        self.processes.append(process)
        process.started_at = self.now
        context = self.context.copy()
        context.run(PROCESS.set, process)
        context.run(self.tell, "starts")
        self.loop.create_task(main(), context=context)

    async def power_cut(self, machine: str) -> None:
        """Kill all processes of a machine at one moment."""
        self.tell(f"power cut of {machine}")
        for process in self.processes:
            if process.machine == machine:
                process.alive = False
        for process in self.processes:
            if process.machine == machine:
                await self.kill(process)

    async def kill(self, process: Process) -> None:
        """End a process as kill -9 does. Its code unwinds, but has no effect any more."""
        self.tell(f"kill {process.name}")
        process.alive = False
        self.loop.continue_process(process)
        while left := [task for task in process.tasks if not task.done()]:
            for task in left:
                task.cancel()
            await asyncio.sleep(0)

    async def bury(self) -> None:
        """End all tasks, so that none is collected later while it waits."""
        self.ended = True
        for process in self.processes:
            process.alive = False
            self.loop.continue_process(process)
        this = asyncio.current_task()
        for _ in range(1000):
            every = [self.tasks, *(process.tasks for process in self.processes)]
            left = [task for tasks in every for task in tasks if not task.done()]
            if left == [this]:
                return
            for task in left:
                if task is not this:
                    task.cancel()
            await turn()

    def known_dead(self, name: str) -> bool:
        """Return whether a process is known to be dead to the one that asks: on its machine."""
        asking = PROCESS.get()
        return any(
            not process.alive and process.machine == getattr(asking, "machine", None)
            for process in self.processes
            if process.name == name
        )

    # Requests

    def call(self, what: str, effect: Callable[[], T]) -> T:
        """Have ``effect`` happen now, in the place of a worker thread that waits for it."""
        self.current()
        if self.fault("refused", what):
            raise TransientError(f"{what}: refused")
        return effect()

    async def request(
        self,
        what: str,
        effect: Callable[[], T],
        *,
        failure: Callable[[str], Exception] = TransientError,
        repeats: bool = False,
    ) -> T:
        """Have ``effect`` happen elsewhere, and return what it returns.

        It may happen late or not at all; after the caller was cancelled or killed; its answer may
        be lost; where it ``repeats``, it may happen twice. ``failure`` makes the error.
        """
        self.current()
        if self.at_once:
            return effect()
        if self.chance("late"):
            return await self._slow(what, effect, failure, repeats=repeats)
        await turn()
        self.current()
        if self.fault("refused", what):
            raise failure(f"{what}: refused")
        found = effect()
        if repeats and self.fault("twice", what):
            found = effect()
        if self.fault("lost answer", what):
            raise failure(f"{what}: the answer was lost")
        return found

    async def _slow(
        self, what: str, effect: Callable[[], T], failure: Callable[[str], Exception],
        *, repeats: bool,
    ) -> T:  # fmt: skip
        answer: asyncio.Future[T] = self.loop.create_future()
        there, back = self._travel(), self._travel()
        twice = repeats and self.fault("twice", what)
        refused = self.fault("refused", what)
        lost = not refused and self.fault("lost answer", what)

        def arrives() -> None:
            if refused:
                error: Exception | None = failure(f"{what}: refused")
            else:
                error = None
                try:
                    found = effect()
                except Violation:
                    return
                except Exception as e:  # noqa: BLE001  # the answer
                    error = e
                if twice:
                    self.loop.call_later(self._travel(), again, context=self.context)
                if lost:
                    error = failure(f"{what}: the answer was lost")

            def answers() -> None:
                if answer.done():
                    return
                if error is not None:
                    answer.set_exception(error)
                else:
                    answer.set_result(found)

            self.loop.call_later(back, answers, context=self.context)

        def again() -> None:
            with suppress(Exception):  # nobody waits for this answer
                effect()

        self.loop.call_later(there, arrives, context=self.context)
        found = await answer
        self.current()
        return found

    def _travel(self) -> float:
        """Return how long a request or an answer is on its way: mostly little, at times long."""
        rng = self.rng
        if rng.random() < 0.1:
            return rng.uniform(0.5, 8.0)
        return rng.expovariate(50.0)
