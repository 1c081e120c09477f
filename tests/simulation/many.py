"""Very many histories, on all cores."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import time
from itertools import islice

from tests.simulation.history import run_history
from tests.simulation.plan import Recipe
from tests.simulation.shrink import shrunk, story
from tests.support.outcomes import record

_REPORT_S = 60.0


def _run_seeds(first: int, count: int, until: float) -> tuple[int, int, float, list[str]]:
    """Run seeds from the first one on. Return how many histories and faults there were, the seconds
    of processor time, and the stories of those that failed."""
    done = faults = 0
    failed: list[str] = []
    logging.disable(logging.CRITICAL)
    gc.disable()  # the moment of a collection must not matter to a history
    gc.freeze()  # what was imported need not be looked at again
    started = time.process_time()
    for seed in range(first, first + count):
        if time.time() > until:
            break
        outcome = run_history(Recipe(seed))
        done += 1
        faults += outcome.faults
        if outcome.broken is not None:
            failed.append(story(shrunk(outcome)))
        gc.collect(0)  # while it is in the processor's cache
    return done, faults, time.process_time() - started, failed


def run_many(first: int, count: int | None, until: float, processes: int) -> int:
    """Run ``count`` histories, or as many as there is time for (epoch seconds); print those that
    fail, and return their number."""
    reported, cpu = time.time(), 0.0
    done = faults = failures = 0
    size = 100 if count is None else max(1, min(100, count // processes))
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        chunks = iter(range(first, first + (count or 10**9), size))
        waiting = [  # a few chunks ahead of the processes, and no more
            pool.apply_async(_run_seeds, (at, size, until)) for at in islice(chunks, 2 * processes)
        ]
        while waiting:
            ran, found, seconds, failed = waiting.pop(0).get()
            done, faults, cpu = done + ran, faults + found, cpu + seconds
            failures += len(failed)
            for one in failed:
                print(f"\n{one}", flush=True)
            if time.time() < until and (at := next(chunks, None)) is not None:
                waiting.append(pool.apply_async(_run_seeds, (at, size, until)))
            if time.time() - reported > _REPORT_S:
                reported = time.time()
                print(f"{done} histories, {faults} faults, {failures} failures", flush=True)
    speed = done / max(cpu, 0.001)
    print(f"{done} histories with {faults} faults, {speed:.0f} a second: {failures} failures")
    command = f"python -m tests.simulation --count {done} --seed {first}"
    record("simulator", command, seed=first, histories=done, faults=faults, broken=failures)
    return failures
