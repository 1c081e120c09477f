"""The sink `pubsub` beside Google's own publisher, on one server, with and without ordering keys.

    python -m tests.benchmarks.bench_pubsub [--rows 200000] [--rounds 3] [--quick]

Without a key, requests have a thousand messages; with one, each row has an ordering key of its own
and each request one message (a quarter of the rows). The server's processor time is not counted.
Then every answer is 20 ms late, with the default of `in_flight` and with one request at a time.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.benchmarks.feed_tables import many_files
from tests.benchmarks.late import run_late
from tests.benchmarks.measure import Cost, by_turns, python
from tests.support.pubsub import Pubsub

CONTENDERS = "tests.benchmarks.sinks_contenders"
DELAY_S = 0.02
LATE_ROWS = 2000
_KEYED = 4


def run_jobs(
    jobs: Mapping[str, tuple[str, Mapping[str, Any]]], rows: int, rounds: int
) -> dict[str, Cost]:
    """Run all by turns and print events a second. A job is a contender and its options."""
    table = many_files(1, rows)
    with tempfile.TemporaryDirectory(prefix="tailer-bench-") as made:
        commands = {}
        for number, (name, (how, wanted)) in enumerate(jobs.items()):
            folder = Path(made) / str(number)
            commands[name] = python(CONTENDERS, how, "pubsub", table, folder, json.dumps(wanted))

        def begin(_: str) -> None:
            for number in range(len(jobs)):
                folder = Path(made) / str(number)
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()

        costs = by_turns(commands, rounds, before=begin)
    for name, cost in costs.items():
        print(
            f"{name:40} {rows / cost.wall_s:10,.0f} events/s {cost.cpu_s * 1e6 / rows:8.2f} s cpu "
            f"a million, {cost.peak_mib:5.0f} MiB, others {cost.others:.1f} cores",
            flush=True,
        )
    return costs


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="few rows, once")
    asked = parser.parse_args()
    if asked.quick:
        asked.rows, asked.rounds = LATE_ROWS // 10, 0
    with Pubsub() as server:
        plain = server.options("orders")
        keyed = {**plain, "key": ["id"]}
        shared = {**keyed, "ordering_keys": 100}
        run_jobs({"google": ("bare", plain), "sink": ("sink", plain)}, asked.rows, asked.rounds)
        of_keys = {
            "google, key": ("bare", keyed),
            "sink, key": ("sink", keyed),
            "sink, key, 100 ordering keys": ("sink", shared),
        }
        run_jobs(of_keys, asked.rows // _KEYED, asked.rounds)
        with run_late(server.url, DELAY_S) as late:
            far = {**keyed, "endpoint_url": late.url}
            jobs = {
                "20 ms, in_flight default": ("sink", far),
                "20 ms, in_flight = 1": ("sink", {**far, "in_flight": 1}),
            }
            costs = run_jobs(jobs, min(asked.rows, LATE_ROWS), asked.rounds)
        many, one = costs.values()
        print(f"in_flight default is {one.wall_s / many.wall_s:.1f} times as fast as 1")


if __name__ == "__main__":
    main()
