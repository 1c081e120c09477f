"""What a simulation replaces for its time: clocks, chance, worker threads, the exchange with S3.

Everything else that runs is the real code.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace
from typing import Any, Self

import anyio
import anyio.to_thread
from anyio._backends import _asyncio as anyio_asyncio
from anyio.lowlevel import checkpoint

import tailer.feed.derive
import tailer.feed.pairing
import tailer.offsets.s3
import tailer.store.s3.store
from tailer.testing.simulation.bucket import Bucket
from tailer.testing.simulation.loop import PROCESS
from tailer.testing.simulation.s3 import SimulatedS3Client
from tailer.testing.simulation.world import World

__all__ = ["simulated"]


class _Scope(anyio_asyncio.CancelScope):
    """A cancel scope whose hash is its number, as that of a simulated task is."""

    __slots__ = ("number",)
    _numbers = count()

    def __init__(self, deadline: float = float("inf"), shield: bool = False) -> None:  # noqa: FBT001, FBT002  # anyio's
        super().__init__(deadline, shield)
        self.number = next(self._numbers)

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


def _in_thread(world: World) -> Callable[..., Any]:
    async def run_sync(func: Callable[..., Any], *args: Any, **_: Any) -> Any:
        """Run ``func`` here and now, after and before waits in which anything may happen."""
        await checkpoint()
        with anyio.CancelScope(shield=True):
            if world.chance("thread late"):
                await anyio.sleep(world.rng.expovariate(5.0))
            world.current()
            result = func(*args)
            if world.chance("thread late"):
                await anyio.sleep(world.rng.expovariate(5.0))
            return result

    return run_sync


class _Portal:
    """A portal out of a worker thread that is none: it runs what it is given to its end.

    Requests are answered at once meanwhile, without faults."""

    world: World

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    def call(self, func: Callable[..., Any], *args: Any) -> Any:
        """Run an async function that waits for nothing."""
        coroutine = func(*args)
        calm = self.world.calm
        self.world.at_once = self.world.calm = True
        try:
            coroutine.send(None)
        except StopIteration as e:
            return e.value
        finally:
            self.world.at_once, self.world.calm = False, calm
        raise RuntimeError("what a worker thread waits for has to be answered at once")


def _owner() -> dict[str, Any]:
    process = PROCESS.get()
    return {"host": "simulated", "pid": 0, "run": "" if process is None else process.name}


@contextmanager
def simulated(
    world: World, bucket: Bucket, more: Mapping[tuple[Any, str], Any], seed: int
) -> Iterator[None]:
    """Replace what a simulation replaces, and ``more`` by module and name, for one history."""
    state = random.getstate()
    numbers = count(1)
    fixed: dict[tuple[Any, str], Any] = {
        (anyio.to_thread, "run_sync"): _in_thread(world),
        (anyio_asyncio, "CancelScope"): _Scope,
        (tailer.offsets.s3, "_now"): lambda: world.now,
        (tailer.offsets.s3, "uuid"): SimpleNamespace(
            uuid4=lambda: SimpleNamespace(hex=f"owner-{next(numbers)}")
        ),
        (tailer.offsets.s3, "this_process"): _owner,
        (tailer.offsets.s3, "is_dead"): lambda owner: world.known_dead(owner.get("run", "")),
        (tailer.store.s3.store, "S3Client"): SimulatedS3Client,
        (tailer.feed.derive, "BlockingPortal"): _Portal,
        (tailer.feed.pairing, "BlockingPortal"): _Portal,
        (_Portal, "world"): world,
        (SimulatedS3Client, "world"): world,
        (SimulatedS3Client, "bucket"): bucket,
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
