"""One history: processes, a writer and faults on one loop, until all is delivered."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import anyio

from tailer.changes import Offset
from tailer.daemon.runner import Runner
from tailer.feed.fanout import Branch, FanOut
from tailer.feed.options import FeedOptions, RetryOptions
from tailer.feed.progress import FeedProgress
from tailer.feed.run import Feed
from tailer.log.follow import FollowOptions
from tailer.log.history import start_to_keep
from tailer.log.table import TableLog
from tailer.offsets import OffsetStore
from tailer.offsets.document import document_name
from tailer.offsets.s3 import S3OffsetStore
from tailer.sink import Sink
from tailer.store import Store
from tailer.store.s3.store import S3Store
from tailer.testing.simulation.bucket import Bucket, MemoryStore, ReadAheadStore
from tailer.testing.simulation.judge import Judge
from tailer.testing.simulation.loop import PROCESS, Endless, Stalled
from tailer.testing.simulation.patches import simulated
from tailer.testing.simulation.plan import Plan, Recipe
from tailer.testing.simulation.s3 import options_of
from tailer.testing.simulation.sinks import PlainSink, Target, TransactionalSink
from tailer.testing.simulation.world import Process, Violation, World
from tailer.testing.simulation.writer import OPERATIONS, SimulatedTable

__all__ = ["History", "Outcome", "run_history"]

#: Once the faults have stopped, all must be delivered within this many simulated seconds.
_PATIENCE_S = 900.0
#: How often a process may end with an error once the faults have stopped.
_FAILURES_MAX = 5


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a history ended: the broken promise, or None; its story, and a checksum of it."""

    recipe: Recipe
    plan: Plan
    broken: BaseException | None
    story: list[tuple[float, str, str]]
    checksum: int
    faults: int
    events: int
    seconds: float


class _StoryLogger(logging.Logger):
    """A logger whose lines become a part of the story."""

    def __init__(self, world: World) -> None:
        super().__init__("simulation")
        self._world = world

    def log(self, level: int, msg: object, *args: object, **_: Any) -> None:
        if level >= logging.WARNING:
            self._world.tell(str(msg) % args)


class History:
    """The state of one history while it runs."""

    def __init__(self, recipe: Recipe) -> None:
        self.plan = plan = Plan.of(recipe)
        self.world = world = World(
            recipe.seed, plan.rates, only=recipe.faults, shuffled=plan.shuffled
        )
        self.bucket = Bucket(world)
        self.table = SimulatedTable(world, self.bucket)
        self.judges = [Judge(world, self.table, f"sink{n}") for n in range(len(plan.sinks))]
        self.targets = [Target(world, judge.name, judge) for judge in self.judges]
        several = len(plan.sinks) > 1
        self.names = [f"feed/{j.name}" if several else "feed" for j in self.judges]
        self._judge_of = {
            f"state/{document_name(name)}.offset.json": judge
            for name, judge in zip(self.names, self.judges, strict=True)
        }
        self.bucket.on_put = self._judge_put
        self._lives = 0
        self._failures = 0
        self.logger = _StoryLogger(world)

    def _judge_put(self, location: str, data: bytes) -> None:
        judge = self._judge_of.get(location)
        if judge is None:
            return
        document = json.loads(data)
        if document.get("offset") is not None:
            offset = Offset.from_json(document["offset"])
            if judge.saved.get("file") != offset:
                self.world.tell(f"{judge.name} saved {offset.position}")
                judge.offset_saved(offset, "file")

    # Processes

    def _store(self, process: Process) -> Store:
        match self.plan.store:
            case "memory":
                return MemoryStore(self.bucket)
            case "ahead":
                return ReadAheadStore(self.bucket)
        return S3Store("s3://simulated/table", options_of(process.name))

    def _offsets(self, process: Process, name: str) -> OffsetStore:
        options = options_of(process.name)
        return S3OffsetStore(
            "s3://simulated/state", name, options, standby=True, lease_s=self.plan.lease_s
        )

    def _sink(self, number: int) -> Sink:
        kind = PlainSink if self.plan.sinks[number] == "plain" else TransactionalSink
        return kind(self.targets[number])

    def feed(self, process: Process) -> Feed:
        """Return the feed of one process, as the daemon assembles it."""

        async def start(log: TableLog) -> Offset:
            offset = await start_to_keep(log, self.plan.start)
            for judge in self.judges:
                judge.began(offset)
            return offset

        log = TableLog(self._store(process))
        sink: Sink
        offsets: OffsetStore
        if len(self.names) == 1:
            sink, offsets = self._sink(0), self._offsets(process, self.names[0])
        else:
            sink = offsets = FanOut(
                [
                    Branch(self.judges[n].name, self._sink(n), self._offsets(process, name))
                    for n, name in enumerate(self.names)
                ],
                lambda: start(log),
            )
        return Feed(
            name="feed",
            log=log,
            sink=sink,
            offsets=offsets,
            start=start,
            progress=FeedProgress("feed", self.world.clock),
            jitter=self.world.rng.random,
            options=FeedOptions(
                follow=FollowOptions(poll_min_s=0.1, poll_max_s=2.0),
                retry=RetryOptions(0.2, 5.0),
            ),
        )

    def start_process(self, slot: int) -> Process:
        """Start a daemon in a slot; it runs one feed, and ends when that has failed."""
        self._lives += 1
        process = Process(f"daemon{slot}.{self._lives}", f"machine{slot}")

        async def main() -> None:
            failed = anyio.Event()
            runner = Runner(
                self.feed(process), ["simulated"], paused=False, logger=self.logger,
                on_failure=failed.set,
            )  # fmt: skip
            process.runners.append(runner)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(runner.run)
                await failed.wait()
                await runner.end()
            process.alive = False
            if self.world.calm:
                self._failures += 1
                if self._failures > _FAILURES_MAX:
                    self.world.broken(f"P9: it needs a human: {runner.last_error}")

        self.world.start(process, main)
        return process

    # The world's steps

    async def run(self) -> None:
        """Run the steps, then let everything come to its end."""
        world = self.world
        slots: list[Process | None] = [None] * self.plan.daemons
        async with asyncio.TaskGroup() as tasks:
            keeper = tasks.create_task(self._keep(slots))
            for number, step in enumerate(self.plan.steps):
                await asyncio.sleep(max(0.0, step.at - world.now))
                world.tell(f"step {number}: {step.what}")
                await self._step(step.what, slots, tasks)
            await asyncio.sleep(world.rng.uniform(0.0, 10.0))
            world.calm = True
            world.tell("calm: no more faults")
            await self._all_delivered()
            keeper.cancel()
        for judge in self.judges:
            judge.check_end()
        for process in slots:
            if process is not None:
                await world.kill(process)

    async def _keep(self, slots: list[Process | None]) -> None:
        """Start daemons that are not there, as a service manager does."""
        rng = self.world.rng
        while True:
            for slot, process in enumerate(slots):
                if process is None or not process.alive:
                    slots[slot] = self.start_process(slot)
            await asyncio.sleep(rng.uniform(0.2, 3.0))

    async def _step(self, what: str, slots: list[Process | None], tasks: asyncio.TaskGroup) -> None:
        if what in OPERATIONS:
            OPERATIONS[what][1](self.table)
            return
        running = [process for process in slots if process is not None and process.alive]
        if not running:
            return
        process = self.world.rng.choice(running)
        actions: dict[str, Callable[[], Awaitable[None]]] = {
            "kill": lambda: self.world.kill(process),
            "freeze": lambda: self._freeze(process),
            "restart": lambda: self._restart(process),
        }
        tasks.create_task(actions[what]())  # type: ignore[arg-type]  # they are coroutines

    async def _freeze(self, process: Process) -> None:
        world = self.world
        seconds = world.rng.uniform(1.0, 3 * self.plan.lease_s)
        world.tell(f"{process} is stopped for {seconds:.1f} s")
        world.loop.stop_process(process)
        await asyncio.sleep(seconds)
        world.tell(f"{process} continues")
        world.loop.continue_process(process)

    async def _restart(self, process: Process) -> None:
        context = self.world.context.copy()
        context.run(PROCESS.set, process)
        for runner in process.runners:
            ending = self.world.loop.create_task(runner.end(), context=context)
            await asyncio.wait([ending])
        process.alive = False

    async def _all_delivered(self) -> None:
        world = self.world
        until = world.now + _PATIENCE_S
        while not all(judge.finished() for judge in self.judges):
            if world.now > until:
                at = {judge.name: str(judge.saved) for judge in self.judges}
                world.broken(f"P9: not all is delivered after {_PATIENCE_S:.0f} s without faults: "
                             f"{at} of {self.table.newest.number + 1}")  # fmt: skip
            await asyncio.sleep(0.5)


def run_history(recipe: Recipe) -> Outcome:
    """Run one history to its end."""
    logging.disable(logging.CRITICAL)
    history = History(recipe)
    world, loop = history.world, history.world.loop
    broken: BaseException | None = None
    try:
        with simulated(world, history.bucket, recipe.seed):
            try:
                loop.run_until_complete(history.run())
            except (Stalled, Endless) as e:
                broken = Violation(f"P9: {type(e).__name__}: {e}")
            except RuntimeError:  # the loop was stopped by a broken promise
                if world.violation is None:
                    raise
            except BaseExceptionGroup as e:
                if world.violation is None:
                    raise e.exceptions[0] from None
            broken = world.violation or broken
            _bury(world)
    finally:
        logging.disable(logging.NOTSET)
        loop.close()
    events = sum(judge.events for judge in history.judges)
    return Outcome(
        recipe, history.plan, broken, world.story, world.checksum, len(world.faults), events,
        world.now,
    )  # fmt: skip


def _bury(world: World) -> None:
    """End all tasks, so that none is collected later while it waits."""
    loop = world.loop
    for process in world.processes:
        process.alive = False
        loop.continue_process(process)

    async def end() -> None:
        for _ in range(1000):
            left = [t for t in asyncio.all_tasks(loop) if t is not asyncio.current_task()]
            if not left:
                return
            for task in left:
                task.cancel()
            await asyncio.sleep(0)

    loop.set_exception_handler(lambda *_: None)
    loop.run_until_complete(end())
    loop.run_until_complete(loop.shutdown_asyncgens())
