"""Run histories: ``python -m tests.simulation --hours 1``, or one by its recipe."""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Sequence

from tests.simulation.history import run_history
from tests.simulation.many import run_many
from tests.simulation.plan import Recipe
from tests.simulation.shrink import story


def main(arguments: Sequence[str] | None = None) -> int:
    """Run histories on all cores; return 1 if one has broken a promise."""
    parser = argparse.ArgumentParser(prog="tests.simulation", description=__doc__)
    parser.add_argument("recipe", nargs="*", help="one history: a seed, or what a failure printed")
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--seed", type=int, help="the first seed; by default a random one")
    parser.add_argument("--count", type=int, help="run this many histories, however long it takes")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args(arguments)
    if options.recipe:
        outcome = run_history(Recipe.parse(" ".join(options.recipe)))
        print(story(outcome))
        return int(outcome.broken is not None)
    first = random.randrange(10**12) if options.seed is None else options.seed
    until = time.time() + (1e9 if options.count else options.hours * 3600)
    print(f"from seed {first} on, {options.processes} processes", flush=True)
    return int(run_many(first, options.count, until, options.processes) > 0)


if __name__ == "__main__":
    sys.exit(main())
