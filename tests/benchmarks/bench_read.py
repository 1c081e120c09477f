"""`tailer read` of large versions, beside deltalake's load_cdf and a bare pyarrow scan.

    python -m tests.benchmarks.bench_read [--tables small large vectors nested files] [--rounds 5]
                                          [--quick]

* `small`: 2.1 million changes in 12 files of 7 columns, half of them change data files;
* `large`: ten times as many, in 120 files (names of the same 12 files);
* `vectors`: 2.1 million inserts, and then a tenth of them deleted by deletion vectors;
* `nested`: 2.1 million inserts by Spark with a struct, a list, a map and a list of structs;
* `files`: one version of 1,000 files of 1,000 rows, beside one of one file of as many rows.

Every contender writes an Arrow IPC file, in a fresh process whose start counts, by turns. A first
round warms the file cache and is not counted; all contenders of a table must give the same rows.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.feed_tables import feed_table, many_files, nested_table, thinned_table
from tests.benchmarks.measure import Cost, by_turns, print_costs, python
from tests.benchmarks.results import Results, options

TABLES = ("small", "large", "vectors", "nested", "files")
ROWS_OF_A_FILE, FILES_OF_A_TABLE, COPIES = 175_000, 12, 10
FILES, ROWS_OF_MANY = 1_000, 1_000
QUICK = 50
#: Of `tailer read`: the peak, and how it may grow from `small` to `large`. That is what groups of
#: files may hold while they wait (tailer/feed/rows/group_lanes.py), and half of it again: the
#: small table ends before they are full. Rows that pile up would take 1,000 MiB.
PEAK_MIB_MAX = 300.0
PEAK_GROWTH_MIB_MAX = 72.0
CONTENDERS = "tests.benchmarks.contenders"


def digest(output: Path) -> str:
    """What the file holds, summed up in a process of its own, so that this one stays small.

    The kernel counts a child's peak from what the process that forked it had resident.
    """
    command = python(CONTENDERS, "digest", output)
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def read(table: Path, output: Path) -> list[str]:
    """The command line of our own reader."""
    return python("tailer", "read", table, "--from", 1, "--output", output)


def bench(name: str, commands: dict[str, list[str]], output: Path, rounds: int) -> dict[str, Cost]:
    """Run all by turns; ends the process where they do not give the same rows."""
    digests: dict[str, str] = {}

    def compare(contender: str) -> None:
        if contender not in digests:
            digests[contender] = digest(output)

    costs = by_turns(
        commands, rounds, before=lambda _: output.unlink(missing_ok=True), after=compare
    )
    print_costs(costs, name)
    if len(set(digests.values())) != 1:
        sys.exit(f"{name}: not the same rows: {digests}")
    return costs


def feed(name: str, rows_of_a_file: int) -> Path:
    """Return the table of that name."""
    match name:
        case "vectors":
            return thinned_table(rows_of_a_file, FILES_OF_A_TABLE)
        case "nested":
            return nested_table(rows_of_a_file, FILES_OF_A_TABLE)
    return feed_table(rows_of_a_file, COPIES if name == "large" else 1)


def bench_feed(name: str, output: Path, rounds: int, results: Results) -> Cost:
    """Measure a feed of whole files; returns our own cost."""
    table = feed(name, QUICK if results.quick else ROWS_OF_A_FILE)
    others = ("deltalake", "bare") if name == "small" else ("deltalake",)
    commands = {"tailer": read(table, output)}
    commands |= {other: python(CONTENDERS, other, table, output) for other in others}
    costs = bench(name, commands, output, rounds)
    ours = costs["tailer"]
    results.ratio("read" if name == "small" else f"read-{name}", ours, costs["deltalake"])
    if "bare" in costs:
        results.ratio("read-bare", ours, costs["bare"])
    if ours.peak_mib > PEAK_MIB_MAX:
        results.complain(f"{name}: {ours.peak_mib:.0f} MiB at the peak")
    return ours


def bench_files(output: Path, rounds: int, results: Results) -> None:
    """Measure many files of one version against one."""
    files, each = (QUICK, QUICK) if results.quick else (FILES, ROWS_OF_MANY)
    shapes = {f"{files} files": (files, each), "one file": (1, files * each)}
    commands = {name: read(many_files(*shape), output) for name, shape in shapes.items()}
    costs = by_turns(commands, rounds, before=lambda _: output.unlink(missing_ok=True))
    print_costs(costs, "files")
    results.ratio("files", *costs.values())


def main() -> None:
    """Measure, show, and end with 1 where a bound is not kept."""
    parser = options(__doc__)
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES)
    asked = parser.parse_args()
    results = Results(asked.quick)
    rounds = 0 if asked.quick else asked.rounds
    with tempfile.TemporaryDirectory(prefix="tailer-bench-") as folder:
        output = Path(folder) / "output.arrow"
        feeds = [name for name in asked.tables if name != "files"]
        peaks = {n: bench_feed(n, output, rounds, results).peak_mib for n in feeds}
        if "files" in asked.tables:
            bench_files(output, rounds, results)
    if peaks.keys() >= {"small", "large"} and peaks["large"] - peaks["small"] > PEAK_GROWTH_MIB_MAX:
        results.complain(f"ten times the rows take more memory: {peaks} MiB")
    results.end()


if __name__ == "__main__":
    main()
