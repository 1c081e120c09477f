"""Deriving changes: a version that rewrites 3 million rows to change 300 thousand of them.

    python -m tests.benchmarks.bench_derive [--rounds 5] [--quick]

compares `tailer read` over that version, by row ids and by cancel-out, with a bare pyarrow scan of
the files that leave and come; and many versions that change 20 rows each, with what one writes
without a change data feed: both versions read by deltalake, and compared by DuckDB.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pyarrow.ipc

from tests.benchmarks.feed_tables import rewritten_table, updated_table
from tests.benchmarks.measure import by_turns, print_costs, python
from tests.benchmarks.results import Results, options

ROWS, ROWS_QUICK = 3_000_000, 1_000
FILES = 4
VERSION = 2
SMALL, SMALL_QUICK = 300, 5
BARS = {"row_ids": "derived-ids", "cancel_out": "derived-cancel"}
PEAK_MIB_MAX = 1024.0


def run(origin: str, folder: Path, rounds: int, results: Results) -> None:
    """Measure one way."""
    count = ROWS_QUICK if results.quick else ROWS
    table = rewritten_table(origin, count, FILES)
    output = folder / "changes.arrow"
    ours = python("tailer", "read", table, "--from", VERSION, "--output", output)
    ours += ["--change-source", "derived", "--with-ids"]
    files = sorted(table.glob("*.parquet"))
    costs = by_turns(
        {"scan": python("tests.benchmarks.contenders", "scan", *files), "tailer": ours}, rounds
    )
    with pyarrow.OSFile(str(output)) as file:
        rows = pyarrow.ipc.open_file(file).read_all()
    origins = set(rows["_origin"].unique().to_pylist())
    if rows.num_rows != 2 * count // 10 or origins != {origin}:
        sys.exit(f"{origin}: {rows.num_rows} changes of {origins}, not {2 * count // 10}")
    print_costs(costs, origin)
    results.ratio(BARS[origin], costs["tailer"], costs["scan"])
    if costs["tailer"].peak_mib > PEAK_MIB_MAX:
        results.complain(f"{origin}: {costs['tailer'].peak_mib:.0f} MiB at the peak")


def run_small(folder: Path, rounds: int, results: Results) -> None:
    """Measure many small versions."""
    count = SMALL_QUICK if results.quick else SMALL
    table = updated_table(count)
    outputs = {name: folder / f"{name}.arrow" for name in ("except_all", "tailer")}
    costs = by_turns(
        {
            "except_all": python(
                "tests.benchmarks.contenders", "except_all", table, outputs["except_all"]
            ),
            "tailer": python("tailer", "read", table, "--from", 1, "--output", outputs["tailer"]),
        },
        rounds,
    )
    for name, output in outputs.items():
        with pyarrow.OSFile(str(output)) as file:
            rows = pyarrow.ipc.open_file(file).read_all().num_rows
        if rows != 40 * count:
            sys.exit(f"{name}: {rows} changes, not {40 * count}")
    print_costs(costs, "small")
    results.ratio("derived-small", costs["tailer"], costs["except_all"])


def main() -> None:
    """Both ways; ends with 1 where a bound is not kept."""
    asked = options(__doc__).parse_args()
    results = Results(asked.quick)
    with tempfile.TemporaryDirectory(prefix="tailer-bench-") as folder:
        for origin in BARS:
            run(origin, Path(folder), 0 if asked.quick else asked.rounds, results)
        run_small(Path(folder), 0 if asked.quick else asked.rounds, results)
    results.end()


if __name__ == "__main__":
    main()
