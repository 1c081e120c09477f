"""The operator of a simulated daemon: gives orders, and remembers those that were acknowledged.

An order that was acknowledged by the feed's owner holds for every process that starts later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tailer.daemon.runner import Runner
from tailer.errors import TailerError
from tailer.feed.policy import FeedPaused
from tests.simulation.judge import Delivered, Judge
from tests.simulation.world import Process, World

#: How long a feed may take to stop.
_STOPPED_S = 60.0


class Operator:
    """Orders by name are methods that take the process that gets them."""

    def __init__(self, world: World, newest: Callable[[], int]) -> None:
        self.world = world
        self.newest = newest
        self.paused_at: float | None = None
        self.skipped: dict[int, float] = {}
        self.accepted: dict[int, float] = {}
        #: What the feed's sink has.
        self.judge: Judge | None = None
        #: When the orders to read the table again were acknowledged.
        self.resnapshots: list[float] = []

    async def _give(
        self, process: Process, what: str, order: Callable[[], Awaitable[None]]
    ) -> bool:
        """Give an order; return whether the feed's owner has acknowledged it."""
        runner: Runner = process.runner()
        owns = runner.build_status(0.0).lease == "held"
        try:
            await order()
        except TailerError as e:
            self.world.tell(f"{what} refused: {e}")
            return False
        acknowledged = owns and runner.build_status(0.0).lease == "held"
        self.world.tell(f"{what} {'acknowledged' if acknowledged else 'taken by a standby'}")
        return acknowledged

    async def pause(self, process: Process) -> None:
        """Pause the feed."""
        if await self._give(process, "pause", process.runner().pause):
            self.paused_at = self.world.now

    async def resume(self, process: Process) -> None:
        """Resume the feed, and accept the schema that it waits for."""
        self.paused_at = None
        runner = process.runner()
        error = runner.error
        if await self._give(process, "resume", runner.resume) and isinstance(error, FeedPaused):
            self.accepted[error.version] = self.world.now
        # A pause may have been carried out meanwhile: either order may have been the last one.
        self.paused_at = None

    async def stop(self, process: Process) -> None:
        """Stop the feed in this process."""
        process.runner().stop()

    async def skip(self, process: Process) -> None:
        """Skip a version that comes soon."""
        version = self.newest() + self.world.rng.randint(0, 2)
        order = process.runner().skip_version
        if await self._give(process, f"skip {version}", lambda: order(version)):
            self.skipped[version] = self.world.now

    async def resnapshot(self, process: Process) -> None:
        """Have the table read again."""
        if await self._give(process, "resnapshot", process.runner().order_resnapshot):
            self.resnapshots.append(self.world.now)

    def choose_place(self) -> int | None:
        """Return a version that the feed has delivered, to take it back to; None if there is none.
        What was skipped and is behind it may be delivered."""
        judge = self.judge
        at = None if judge is None else judge.saved.get("sink")
        if judge is None or judge.start is None or at is None or at.snapshot:
            return None
        if at.version <= judge.start.version:
            return None
        to = self.world.rng.randint(judge.start.version, at.version - 1)
        self.skipped = {version: at for version, at in self.skipped.items() if version <= to}
        return to

    async def rewind(self, process: Process) -> None:
        """Stop the feed, take it back to a version, and start it again."""
        runner = process.runner()
        runner.stop()
        until = self.world.now + _STOPPED_S
        while runner.feed.progress.lease_held or runner.state not in ("stopped", "failed"):
            if self.world.now > until:
                return
            await asyncio.sleep(0.5)
        if (to := self.choose_place()) is not None:
            try:
                await process.supervisor.rewind("feed", str(to))
            except TailerError as e:
                self.world.tell(f"rewind refused: {e}")
            else:
                self.world.tell(f"rewind to version {to} acknowledged")
        await self.resume(process)

    # What the orders promise

    def judge_write(self, process: Process | None, events: list[Delivered]) -> None:
        """Judge what a process writes: an order that it should know is not forgotten."""
        if process is None:
            return
        if self.paused_at is not None and process.started_at > self.paused_at and events:
            self.world.broken(f"orders: {process} delivers, though the feed was paused before it "
                              "started")  # fmt: skip
        for event in events:
            given = self.skipped.get(event.version)
            if given is not None and process.started_at > given and not event.snapshot:
                self.world.broken(f"orders: {process} delivers version {event.version}, though it "
                                  "was to be skipped before the process started")  # fmt: skip
