"""`tailer verify` of 3 million events in ten versions, beside a scan of what it must read.

    python -m tests.benchmarks.bench_verify [--rounds 5] [--quick]

It must read the files of the feed and those of the last snapshot. Both are whole processes, by
turns.
"""

from __future__ import annotations

from pathlib import Path

import anyio

from tailer.log.table import TableLog
from tailer.store.local import LocalStore
from tests.benchmarks.feed_tables import checked_table, feed_files
from tests.benchmarks.measure import by_turns, print_costs, python
from tests.benchmarks.results import Results, options

ROWS, ROWS_QUICK = 300_000, 100
PEAK_MIB_MAX = 1024.0


async def live_files(folder: Path) -> list[Path]:
    """The files of the newest snapshot."""
    log = TableLog(LocalStore(str(folder)))
    return [folder / file.path async for file in log.live_files(await log.load_snapshot())]


def main() -> None:
    """Measure, show, and end with 1 where a bound is not kept."""
    asked = options(__doc__).parse_args()
    results = Results(asked.quick)
    table = checked_table(ROWS_QUICK if asked.quick else ROWS)
    files = [file.path for file in feed_files(table)]
    files += anyio.run(live_files, table)
    commands = {
        "scan": python("tests.benchmarks.contenders", "scan", *files),
        "verify": python("tailer", "verify", table),
    }
    costs = by_turns(commands, 0 if asked.quick else asked.rounds)
    print_costs(costs)
    results.ratio("verify", costs["verify"], costs["scan"])
    if costs["verify"].peak_mib > PEAK_MIB_MAX:
        results.complain(f"verify takes {costs['verify'].peak_mib:.0f} MiB at the peak")
    results.end()


if __name__ == "__main__":
    main()
