"""Runs many histories on all cores: ``python -m tests.fuzz [HISTORIES] [FIRST SEED]``.

Uses the cores that the process may use (``taskset`` says which). Prints the rate now and then, and
each disagreement, shrunk, as it is found. Ends with status 1 if there was one.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed

import anyio
import pyarrow as pa

from tests.fuzz.grammar import draw
from tests.fuzz.judge import Tally, disagreement, inline_threads, judged
from tests.fuzz.shrink import report, shrunk
from tests.support.outcomes import record

_AT_ONCE = 100


def _run(first: int, count: int) -> tuple[int, float, Tally, list[str]]:
    """Judge the histories of some seeds: their number, processor time, tally and disagreements."""
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    tally, found, began = Tally(), list[str](), time.process_time()

    async def judge_all() -> list[int]:
        return [s for s in range(first, first + count) if await judged(draw(s), tally)]

    with inline_threads():
        for seed in anyio.run(judge_all):
            history = shrunk(draw(seed), disagreement)
            found.append(f"seed {seed}: {report(history, str(disagreement(history)))}")
    return count, time.process_time() - began, tally, found


def _parts(first: int, count: int) -> Iterator[tuple[int, int]]:
    for at in range(first, first + count, _AT_ONCE):
        yield at, min(_AT_ONCE, first + count - at)


def main(count: int, first: int) -> int:
    """Judge ``count`` histories from a seed on; return how many disagreements there were."""
    done, cpu_s, tally, disagreements, began = 0, 0.0, Tally(), 0, time.monotonic()
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for part in as_completed([pool.submit(_run, *part) for part in _parts(first, count)]):
            number, seconds, counted, found = part.result()
            done, cpu_s = done + number, cpu_s + seconds
            disagreements += len(found)
            tally.update(counted)
            for story in found:
                print(story, flush=True)
            rate = f"{done / (time.monotonic() - began):.1f} a second, {done / cpu_s:.1f} of CPU"
            print(f"{done} of {count} histories, {rate}, {disagreements} disagree", flush=True)
    print(", ".join(f"{number} {name}" for name, number in sorted(tally.items())))
    command = f"python -m tests.fuzz {count} {first}"
    record("protocol fuzz", command, seed=first, histories=done, broken=disagreements)
    return disagreements


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:]]
    sys.exit(bool(main(*[*numbers, *[1000, 1_000_000][len(numbers) :]])))
