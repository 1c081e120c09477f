"""The daemons of a history: each runs the feed, ends when it has failed, and is started again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio

import tailer.daemon.rewind
import tailer.daemon.supervisor
from tailer.changes import Offset
from tailer.config.feeds import Config, FeedConfig, SinkConfig
from tailer.daemon.rewind import rewind_feed
from tailer.daemon.supervisor import Supervisor
from tailer.decode.options import DecodeOptions, DiffOptions
from tailer.errors import OffsetError, TailerError
from tailer.feed.copy_repairs import RepairCounts
from tailer.feed.options import FeedOptions, RetryOptions
from tailer.feed.progress import FeedProgress, Observer
from tailer.feed.run import Feed
from tailer.log.follow import FollowOptions
from tailer.log.starts import find_start_to_keep
from tailer.log.table import TableLog
from tailer.offsets import OffsetStore
from tailer.offsets.document import decode_document
from tailer.offsets.leased import LeasedOffsetStore
from tailer.offsets.local import LocalOffsetStore
from tailer.shape.expressions import Condition, parse_condition
from tailer.shape.selection import Selection
from tailer.sink import Sink
from tailer.store import Store
from tailer.verify.repair import repair_mirror
from tests.simulation.bucket import Bucket, DiskStore, ReadAheadStore
from tests.simulation.catalog import SimulatedCatalog, catalog_store
from tests.simulation.copies import SINKS, FileMirrorSink, MirrorSink
from tests.simulation.disk import Disk, DiskPath
from tests.simulation.loop import PROCESS
from tests.simulation.offset_object import SimulatedObject
from tests.simulation.orders import Operator
from tests.simulation.plan import Plan
from tests.simulation.sinks import PlainSink, Target
from tests.simulation.world import Process, World

#: How often a process may end with an error once the faults have stopped.
_FAILURES_MAX = 5


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What daemons stand on: the table's bucket and catalog, the disk of their state, and their
    sink's target."""

    world: World
    plan: Plan
    bucket: Bucket
    disk: Disk
    operator: Operator
    target: Target
    catalog: SimulatedCatalog | None = None


class _StoryLogger(logging.Logger):
    """A logger whose warnings become a part of the story."""

    def __init__(self, world: World) -> None:
        super().__init__("simulation")
        self._world = world

    def log(self, level: int, msg: object, *args: object, **_: Any) -> None:
        """Tell a line."""
        if level >= logging.WARNING:
            self._world.tell(str(msg) % args)


class _LocalOffsets(LocalOffsetStore):
    """The real local store; what it says is saved must survive a power cut."""

    def __init__(
        self, path: DiskPath, name: str, acknowledged: dict[str, Offset], *, standby: bool
    ) -> None:
        super().__init__(path, name, standby=standby)  # type: ignore[arg-type]  # as much of a Path as it needs
        self._acknowledged = acknowledged

    async def save(self, offset: Offset) -> None:
        """See :class:`tailer.offsets.OffsetStore`."""
        await super().save(offset)
        self._acknowledged[self.name] = offset


class Daemons:
    """The processes of a history by their slots, as a service manager keeps them.

    The actions on one of them are methods that take it. ``may_refuse`` decides whether a feed may
    end with an error; ``refused`` is that error then.
    """

    def __init__(self, around: Surroundings, may_refuse: Callable[[TailerError], bool]) -> None:
        self.around = around
        self.world = around.world
        self.plan = around.plan
        self.slots: list[Process | None] = [None] * around.plan.daemons
        self.logger = _StoryLogger(around.world)
        self.refused: TailerError | None = None
        self._may_refuse = may_refuse
        self._acknowledged: dict[str, Offset] = {}
        self._lives = self._edits = 0
        #: How many commands run beside the daemons.
        self.commands = 0
        self.taken_back = False
        self._failures = 0
        plan = self.plan
        self._options = FeedOptions(
            change_source=plan.change_source,
            paired=plan.paired,
            diff=DiffOptions(threads=1),
            decode=DecodeOptions(batch_rows_max=plan.batch_rows),
            follow=FollowOptions(poll_min_s=0.4, poll_max_s=4.0),
            retry=RetryOptions(0.2, 5.0),
            policies=plan.policies,
            selection=Selection(where=parse_condition("id % 2 = 0") if plan.even else None),
        )

    def running(self) -> list[Process]:
        """Return the processes that are alive."""
        return [process for process in self.slots if process is not None and process.alive]

    async def keep(self) -> None:
        """Start daemons that are not there."""
        while True:
            for slot, process in enumerate(self.slots):
                if process is None or not process.alive:
                    self.slots[slot] = self._start(slot)
            await asyncio.sleep(self.world.rng.uniform(0.2, 3.0))

    # Their parts, as the daemon assembles them

    def _store(self) -> Store:
        catalog = self.around.catalog
        if catalog is None:
            return self._files()
        return catalog_store(catalog, self._files)

    def _files(self) -> Store:
        kind = DiskStore if self.plan.store == "disk" else ReadAheadStore
        return kind(self.around.bucket)

    def _offsets(self, name: str, *, standby: bool = True) -> OffsetStore:
        if self.plan.offsets == "local":
            path = DiskPath(self.around.disk)
            return _LocalOffsets(path, name, self._acknowledged, standby=standby)
        found = SimulatedObject(self.around.bucket, name)
        return LeasedOffsetStore(found, name, standby=standby, lease_s=self.plan.lease_s)

    def _sink(self) -> Sink:
        if self.plan.sink == "mirror" and self.plan.offsets == "local":
            return FileMirrorSink(self.around.target)
        return SINKS[self.plan.sink](self.around.target)

    def _feed(self) -> Feed:
        async def start(log: TableLog) -> Offset:
            return await find_start_to_keep(log, self.plan.start)

        log = TableLog(self._store())
        target = self.around.target

        async def repair(where: Condition | None, observer: Observer) -> RepairCounts:
            copy, sink = TableLog(self._store()), MirrorSink(target)
            try:
                found = await repair_mirror(
                    copy, sink, "feed", self._options, observer, where=where
                )
            finally:
                await copy.store.aclose()
            return found.counts

        parks = self.plan.policies.on_reject == "park"
        return Feed(
            name="feed",
            log=log,
            sink=self._sink(),
            offsets=self._offsets("feed"),
            start=start,
            park=PlainSink(target.parking()) if parks else None,
            progress=FeedProgress("feed", self.world.clock),
            jitter=self.world.rng.random,
            options=self._options,
            repair=repair if self.plan.sink == "mirror" else None,
        )

    def _config(self) -> Config:
        """Return what a daemon reads as its configuration file."""
        feed = FeedConfig(
            "feed", "simulated", self.plan.start, self._options, SinkConfig("simulated", {}),
            discover_s=60.0 + self._edits,
        )  # fmt: skip
        return Config(Path("simulated.toml"), None, "state", {"feed": feed})

    def patches(self) -> dict[tuple[Any, str], Any]:
        """Return what the supervisor calls to assemble a feed."""
        return {
            (tailer.daemon.supervisor, "assemble_feed"): lambda *_: self._feed(),
            (tailer.daemon.supervisor, "check_targets"): lambda _: None,
            # What a rewind asks for: the feed is stopped, and nobody waits for its place.
            (tailer.daemon.supervisor, "make_offset_store"): lambda *_: self._offsets(
                "feed", standby=False
            ),
            (tailer.daemon.supervisor, "make_feed_sink"): lambda *_: self._sink(),
            (tailer.daemon.rewind, "make_table_log"): lambda *_: TableLog(self._store()),
        }

    def _start(self, slot: int) -> Process:
        self._lives += 1
        machine = "machine" if self.plan.offsets == "local" else f"machine{slot}"
        process = Process(f"daemon{slot}.{self._lives}", machine)

        async def main() -> None:
            families: Any = SimpleNamespace(forget_feed=lambda _: None)

            async def load() -> Config:
                return self._config()

            supervisor = Supervisor(self._config(), load, families, None, self.logger)
            process.supervisor = supervisor
            with anyio.CancelScope() as process.scope:
                await supervisor.run()
                self._ended(supervisor.find_runner("feed").error)
            process.alive = False

        self.world.start(process, main)
        return process

    def _ended(self, error: TailerError | None) -> None:
        """Judge a process that has ended with an error."""
        assert error is not None
        if error.family == "internal":
            self.world.broken(f"P9: {error}")
        if self._may_refuse(error):
            self.refused = error
        elif isinstance(error, OffsetError) and "damaged" in str(error):
            self.world.broken(f"P9: it needs a human: {error}")
        elif self.world.calm:
            self._failures += 1
            if self._failures > _FAILURES_MAX:
                self.world.broken(f"P9: it needs a human: {error}")

    # What happens to them

    async def kill(self, process: Process) -> None:
        """End a process as kill -9 does."""
        await self.world.kill(process)

    async def power_cut(self, process: Process) -> None:
        """End all processes of a machine, and lose what its disk has not synced."""
        await self.world.power_cut(process.machine)
        if self.plan.offsets != "local":
            return
        disk = self.around.disk
        disk.power_cut()
        for name, offset in self._acknowledged.items():
            kept = self._kept(disk, name)
            if kept is None or kept.position < offset.position:
                self.world.broken(f"P1: offset {offset.position} was saved, and after a power cut "
                                  f"it is {kept and kept.position}")  # fmt: skip

    @staticmethod
    def _kept(disk: Disk, name: str) -> Offset | None:
        """Return the offset on the disk, None if the file is gone or damaged."""
        path = LocalOffsetStore(DiskPath(disk), name).path  # type: ignore[arg-type]  # as above
        inode = disk.names.get(path.name)
        try:
            document = None if inode is None else decode_document(inode.data, name, str(path))
        except OffsetError:
            return None
        return None if document is None else Offset.from_json(document["offset"])

    async def freeze(self, process: Process) -> None:
        """Stop a process for a while, as SIGSTOP does; often for longer than its lease."""
        world = self.world
        seconds = world.rng.uniform(1.0, 3 * self.plan.lease_s)
        world.tell(f"{process} is stopped for {seconds:.1f} s")
        world.loop.stop_process(process)
        await asyncio.sleep(seconds)
        world.tell(f"{process} continues")
        world.loop.continue_process(process)

    async def restart(self, process: Process) -> None:
        """End a process as SIGTERM does."""

        async def end() -> None:
            if process.scope is not None:
                self.world.tell("is asked to end")
                process.scope.cancel()

        await self._inside(process, end())

    async def reload(self, process: Process) -> None:
        """Edit the configuration, and have a process read it, as SIGHUP does."""
        self._edits += 1
        if process.supervisor is not None:
            await self._inside(process, process.supervisor.handle_hangup())

    async def _inside(self, process: Process, work: Any) -> None:
        """Run something as a part of a process; it ends with it."""
        context = self.world.context.copy()
        context.run(PROCESS.set, process)
        await asyncio.wait([self.world.loop.create_task(work, context=context)])

    async def pause(self, process: Process) -> None:
        """Give this order."""
        await self._order("pause", process)

    async def resume(self, process: Process) -> None:
        """Give this order."""
        await self._order("resume", process)

    async def stop(self, process: Process) -> None:
        """Give this order."""
        await self._order("stop", process)

    async def skip(self, process: Process) -> None:
        """Give this order."""
        await self._order("skip", process)

    async def resnapshot(self, process: Process) -> None:
        """Give this order."""
        await self._order("resnapshot", process)

    async def rewind(self, process: Process) -> None:
        """Give this order."""
        await self._order("rewind", process)

    async def take_back(self, _: Process) -> None:
        """Take the feed back as `tailer offsets rewind` does, as soon as nobody has it."""
        self._lives += 1
        self.commands += 1
        self.world.start(Process(f"command.{self._lives}", "elsewhere"), self._command)

    async def _command(self) -> None:
        try:
            await self._rewind()
        finally:
            self.commands -= 1

    async def _rewind(self) -> None:
        world, store = self.world, self._offsets("feed")
        with anyio.move_on_after(4 * self.plan.lease_s) as waited:
            await store.acquire()
        if waited.cancelled_caught:
            return
        config = self._config()
        try:
            if (to := self.around.operator.choose_place()) is not None:
                await rewind_feed(config, config.feeds["feed"], store, self._sink(), str(to))
                world.tell(f"taken back to version {to}")
                self.taken_back = True
        except TailerError as e:
            world.tell(f"not taken back: {e}")
        finally:
            await store.release()

    async def repair(self, process: Process) -> None:
        """Repair the mirror, beside the feed, as `tailer verify --repair` does."""
        await self._inside(process, self._repair())

    async def _repair(self) -> None:
        world, target = self.world, self.around.target
        log, damages = TableLog(self._store()), target.judge.damages
        try:
            found = await repair_mirror(log, MirrorSink(target), "feed", self._options)
        except TailerError as e:
            world.tell(f"repair ended: {e}")
        else:
            counts = found.counts
            world.tell(f"repair of version {found.verdict.version}: {counts}")
            if not counts.refused:
                target.judge.repaired(target.rows.values(), damages)
        finally:
            await log.store.aclose()

    async def _order(self, what: str, process: Process) -> None:
        if process.runner() is not None:
            order = getattr(self.around.operator, what)
            await self._inside(process, order(process))
