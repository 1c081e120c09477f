"""One history: processes, a writer and faults on one loop, until all is delivered."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

import msgspec

import tailer.offsets.local
from tailer.changes import Offset
from tailer.errors import TailerError
from tailer.offsets.document import make_document_name
from tests.simulation.bucket import Bucket
from tests.simulation.catalog import SimulatedCatalog
from tests.simulation.daemons import Daemons, Surroundings
from tests.simulation.disk import Disk
from tests.simulation.judge import Judge
from tests.simulation.loop import Endless, Stalled
from tests.simulation.orders import Operator
from tests.simulation.patches import simulated
from tests.simulation.plan import LAST_ACTIONS, Plan, Recipe
from tests.simulation.sinks import Target
from tests.simulation.world import Violation, World
from tests.simulation.writer import OPERATIONS, SimulatedTable

#: Once the faults have stopped, all must be delivered within this many simulated seconds.
_PATIENCE_S = 900.0


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


class History:
    """The state of one history while it runs."""

    def __init__(self, recipe: Recipe) -> None:
        self.plan = plan = Plan.of(recipe)
        self.world = world = World(
            recipe.seed, plan.rates, only=recipe.faults, shuffled=plan.shuffled
        )
        self.bucket = Bucket(world)
        self.disk = Disk(world)
        catalog = SimulatedCatalog(self.bucket, "table", recipe.seed) if plan.catalog else None
        self.table = SimulatedTable(world, self.bucket, catalog=catalog)
        self.actions: list[asyncio.Task[None]] = []
        self.operator = Operator(world, lambda: self.table.newest.number)
        derived = plan.change_source == "derived"
        self.judge = Judge(
            world, self.table, "sink0",
            derived=derived, even=plan.even, by_row=plan.sink == "in_flight",
        )  # fmt: skip
        self.operator.judge = self.judge
        self.target = Target(world, self.judge.name, self.judge, self.operator.judge_write)
        self.bucket.on_put = self.disk.on_rename = self._judge_state
        around = Surroundings(
            world, plan, self.bucket, self.disk, self.operator, self.target, catalog
        )
        self.daemons = Daemons(around, self._may_refuse)

    def patches(self) -> dict[tuple[Any, str], Any]:
        """Return what is replaced in modules for this history."""
        modules = self.disk.modules().items()
        local = {(tailer.offsets.local, name): value for name, value in modules}
        return {**local, **self.daemons.patches()}

    def _judge_state(self, location: str, data: bytes) -> None:
        """Judge what a daemon has saved."""
        if location.removeprefix("state/") != f"{make_document_name('feed')}.offset.json":
            return
        target = self.target
        document = msgspec.json.decode(data)
        owner = (document.get("owner") or {}).get("run")
        if owner is not None and owner != target.owner:
            if target.owner is not None:
                target.late_writes[target.owner] = 0
            target.late_writes.pop(owner, None)  # it has the feed again, by right
            target.owner = owner
        saved = document.get("offset")
        if saved is not None and saved != target.saved:
            offset, target.saved = Offset.from_json(saved), saved
            self.world.tell(f"{target.name} saved {offset.position}")
            target.judge.offset_saved(offset, "file")

    # The world's steps

    async def run(self) -> None:
        """Run the steps, then let everything come to its end."""
        world = self.world
        async with asyncio.TaskGroup() as tasks:
            keeper = tasks.create_task(self.daemons.keep())
            for number, step in enumerate(self.plan.steps):
                await asyncio.sleep(max(0.0, step.at - world.now))
                world.tell(f"step {number}: {step.what}")
                await self._step(step.what, tasks)
            await asyncio.sleep(world.rng.uniform(0.0, 5.0))
            world.calm = True
            self.target.poison.clear()
            world.tell("calm: no more faults")
            await self._comes_to_its_end(tasks)
            keeper.cancel()
        world.ended = True
        if self.daemons.refused is None:
            self.judge.check_end()

    async def _step(self, what: str, tasks: asyncio.TaskGroup) -> None:
        if what in OPERATIONS:
            OPERATIONS[what][1](self.table)
        elif what in LAST_ACTIONS or what in ("vacuum", "clean_up"):
            # Before it has saved a table's id, a feed follows whatever table is there.
            if what not in LAST_ACTIONS or self.judge.knows_table():
                getattr(self.table, what)()
        elif what == "poison":
            self.target.poison.add(self.table.next_id)
        elif what == "damage":
            self.target.damage()
        elif what == "clock":
            self.world.clock_offset_s += self.world.rng.uniform(-3600.0, 3600.0)
        elif running := self.daemons.running():
            action = getattr(self.daemons, what.replace(" ", "_"))
            self.actions.append(tasks.create_task(action(self.world.rng.choice(running))))

    def _may_refuse(self, error: TailerError) -> bool:
        """Return whether a feed may end with this error: the history wants it."""
        if error.family == "data_loss":
            return bool(self.table.removed_versions or self.table.removed_files)
        if self.table.successor is not None or self.table.went_back_to is not None:
            return error.family in ("replaced", "offset", "data_loss", "table")
        return error.family == "unsupported" and "unheardOf" in str(error)

    def _is_done(self) -> bool:
        """Return whether all is delivered, and all orders are carried out."""
        if self.daemons.commands or not all(action.done() for action in self.actions):
            return False
        ordered = self.operator.resnapshots
        return self.judge.finished() and bool(self.judge.excused or self.judge.obeyed(ordered))

    async def _comes_to_its_end(self, tasks: asyncio.TaskGroup) -> None:
        """Wait until all is delivered, or refused as it must be."""
        world, successor = self.world, self.table.successor
        until = world.now + _PATIENCE_S
        while self.daemons.refused is None and not self._is_done():
            if world.now > until:
                world.broken(f"P9: not all is delivered after {_PATIENCE_S:.0f} s without faults: "
                             f"{self.judge.saved} of {self.table.newest.number + 1}")  # fmt: skip
            for process in self.daemons.running():
                if getattr(process.runner(), "state", "") in ("paused", "stopped"):
                    tasks.create_task(self.daemons.resume(process))
            if self.daemons.taken_back and not self.daemons.commands:
                # An idle owner that has lost its lease meanwhile learns it with the next commit.
                self.daemons.taken_back = False
                OPERATIONS["append"][1](self.table)
            if successor is not None:
                successor.append()  # at the latest, the next commit shows that it is another table
            await asyncio.sleep(2.0)


def run_history(recipe: Recipe) -> Outcome:
    """Run one history to its end."""
    logged = logging.root.manager.disable
    if logged < logging.CRITICAL:  # a change takes long: every logger notices it
        logging.disable(logging.CRITICAL)
    history = History(recipe)
    world, loop = history.world, history.world.loop
    broken: BaseException | None = None
    try:
        with simulated(world, history.patches(), recipe.seed):
            try:
                loop.run_until_complete(history.run())
            except Violation:  # at the end
                pass
            except (Stalled, Endless) as e:
                broken = Violation(f"P9: {type(e).__name__}: {e}")
            except RuntimeError:  # the loop was stopped by a broken promise
                if world.violation is None:
                    raise
            except BaseExceptionGroup as e:
                if world.violation is None:
                    raise e.exceptions[0] from None
            broken = world.violation or broken
            loop.allow(1_000_000)
            loop.set_exception_handler(lambda *_: None)
            loop.run_until_complete(world.bury())
            loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        if logged < logging.CRITICAL:
            logging.disable(logged)
        loop.close()
    return Outcome(
        recipe, history.plan, broken, world.story, world.checksum, len(world.faults),
        history.judge.events, world.now,
    )  # fmt: skip
