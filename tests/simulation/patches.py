"""What a simulation replaces for its time: clocks, chance, worker threads.

Everything else that runs is the real code.
"""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import time
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from itertools import count
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.to_thread
import duckdb
from anyio._backends import _asyncio as anyio_asyncio
from anyio._core import _eventloop as anyio_eventloop

import tailer.daemon.runner
import tailer.feed.rows.comparing
import tailer.offsets.leased
import tailer.shape.sql
import tailer.verify.table
import tests.simulation.offset_object
from tests.simulation.baton import WaitingPortal
from tests.simulation.inline import InlinePortal, shared_duckdb
from tests.simulation.loop import PROCESS, turn
from tests.simulation.world import World

#: isinstance() with a protocol asks for its names each time, and takes long to find them.
_PROTOCOL_ATTRS = cache(getattr(typing, "_get_protocol_attrs", frozenset))
#: The current task of a loop. Up to Python 3.13, asyncio.current_task() looks into this mapping
#: and takes ten times as long; 3.14 leaves it empty and is quick itself.
_CURRENT_TASK: Callable[[Any], Any] = (
    asyncio.current_task
    if sys.version_info >= (3, 14)
    else vars(asyncio.tasks)["_current_tasks"].get
)


#: One database computes the expressions of all histories: making one takes longer than most.
_CLOSED = tailer.shape.sql._open_shared()


class _Scope(anyio_asyncio.CancelScope):
    """A cancel scope whose hash is a number, as that of a simulated task is."""

    __slots__ = ("number",)
    _numbers = count()

    def __hash__(self) -> int:
        try:
            return self.number
        except AttributeError:
            self.number: int = next(self._numbers)
            return self.number


def _in_thread(world: World) -> Callable[..., Any]:
    async def run_sync(func: Callable[..., Any], *args: Any, **_: Any) -> Any:
        """Run ``func`` here and now, after and before waits in which anything may happen."""
        await turn()
        if world.chance("thread late"):
            await late()
        world.current()
        try:
            if args and isinstance(args[0], WaitingPortal):
                return await args[0].run_work(func, *args)
            return func(*args)
        finally:
            if world.chance("thread late"):
                await late()

    async def late() -> None:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(world.rng.expovariate(5.0))

    return run_sync


class _Portal(InlinePortal):
    """A portal whose requests are answered at once, without faults."""

    world: World

    def call(self, func: Callable[..., Any], *args: Any) -> Any:
        """See :class:`InlinePortal`."""
        calm = self.world.calm
        self.world.at_once = self.world.calm = True
        try:
            return super().call(func, *args)
        finally:
            self.world.at_once, self.world.calm = False, calm


def _owner() -> dict[str, Any]:
    process = PROCESS.get()
    return {"host": "simulated", "pid": 0, "run": "" if process is None else process.name}


@contextmanager
def simulated(world: World, more: Mapping[tuple[Any, str], Any], seed: int) -> Iterator[None]:
    """Replace what a simulation replaces, and ``more`` by module and name, for one history."""
    state = random.getstate()
    numbers = count(1)
    fixed: dict[tuple[Any, str], Any] = {
        (anyio.to_thread, "run_sync"): _in_thread(world),
        (anyio_asyncio, "CancelScope"): _Scope,
        (anyio_asyncio, "_task_states"): {},  # the tasks live no longer than the history
        (anyio_asyncio, "current_task"): partial(_CURRENT_TASK, world.loop),
        (anyio_eventloop, "current_async_library"): lambda: "asyncio",
        (duckdb, "connect"): shared_duckdb,
        (tailer.shape.sql, "_open_shared"): lambda: _CLOSED,
        (typing, "_get_protocol_attrs"): _PROTOCOL_ATTRS,
        (tailer.daemon.runner, "_STANDBY_LOOK_S"): 2.0,
        (tests.simulation.offset_object, "steady_now"): lambda: world.now,
        (tailer.offsets.leased, "steady_now"): lambda: world.now,
        (tailer.offsets.leased, "uuid"): SimpleNamespace(
            uuid4=lambda: SimpleNamespace(hex=f"owner-{next(numbers)}")
        ),
        (tailer.offsets.leased, "this_process"): _owner,
        (tailer.offsets.leased, "is_dead"): lambda owner: world.known_dead(owner.get("run", "")),
        (tailer.feed.rows.comparing, "BlockingPortal"): _Portal,
        (_Portal, "world"): world,
        (tailer.verify.table, "BlockingPortal"): WaitingPortal,
        (time, "perf_counter"): lambda: world.now,
        **more,
    }
    known = {place: vars(place[0]).get(place[1]) for place in fixed}
    collecting = gc.isenabled()
    try:
        for (target, name), value in fixed.items():
            setattr(target, name, value)
        random.seed(seed)
        gc.disable()  # the moment of a collection must not matter
        yield
    finally:
        for (target, name), value in known.items():
            setattr(target, name, value)
        random.setstate(state)
        if collecting:
            gc.enable()
