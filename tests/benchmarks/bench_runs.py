"""Tables of many small commits: `tailer read` and a feed beside deltalake's load_cdf.

    python -m tests.benchmarks.bench_runs [--versions 5000] [--rounds 5] [--quick]

Each version has one file of 100 rows. All are whole processes, by turns; a first round is not
counted. The readers must give the same rows.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tests.benchmarks.measure import Cost, by_turns, environment, print_costs, python
from tests.benchmarks.results import Results, options

VERSIONS, VERSIONS_QUICK = 5_000, 50


def commands(table: Path, last: int, folder: Path) -> dict[str, tuple[list[str], Path]]:
    """The command line of each contender, and the file that it writes."""
    contenders = python("tests.benchmarks.runs_contenders")
    read = python("tailer", "read", table, "--from", 1)
    arrow, lines = folder / "read.arrow", folder / "read.jsonl"
    theirs, fed = folder / "theirs.arrow", folder / "feed.jsonl"
    return {
        "read": ([*read, "--output", str(arrow)], arrow),
        "deltalake": ([*contenders, "deltalake", str(table), str(last), str(theirs)], theirs),
        "read to lines": ([*read, "--output", str(lines)], lines),
        "feed to lines": ([*contenders, "feed", str(table), str(last), str(fed)], fed),
    }


def summary(output: Path) -> tuple[int, int]:
    """The number of rows in an Arrow file and the sum of their ids; for lines, their number."""
    if output.suffix == ".jsonl":
        return output.read_bytes().count(b"\n"), 0
    with pa.memory_map(str(output)) as file:
        table = pa.ipc.open_file(file).read_all()
        return table.num_rows, int(pc.sum(table["id"]).as_py())


def bench(table: Path, last: int, folder: Path, rounds: int) -> dict[str, Cost]:
    """Run all, by turns, and return the median of each."""
    rows: dict[str, tuple[int, int]] = {}
    found = commands(table, last, folder)

    def before(name: str) -> None:
        found[name][1].unlink(missing_ok=True)
        shutil.rmtree(folder / "state", ignore_errors=True)

    def after(name: str) -> None:
        rows[name] = summary(found[name][1])

    lines = {name: command for name, (command, _) in found.items()}
    costs = by_turns(lines, rounds, before=before, after=after)
    if rows["read"] != rows["deltalake"] or rows["read to lines"] != rows["feed to lines"]:
        sys.exit(f"not the same rows: {rows}")
    return costs


def main() -> None:
    """Measure, show, and end with 1 where a bound is not kept."""
    parser = options(__doc__)
    parser.add_argument("--versions", type=int, default=VERSIONS)
    asked = parser.parse_args()
    results = Results(asked.quick)
    last = VERSIONS_QUICK if asked.quick else asked.versions
    with tempfile.TemporaryDirectory(prefix="tailer-bench-") as name:
        table = Path(name) / "small"
        write = python("tests.benchmarks.runs_contenders", "write", table, last)
        subprocess.run(write, check=True, env=environment())
        found = bench(table, last, Path(name), 0 if asked.quick else asked.rounds)
    print_costs(found)
    results.ratio("small-read", found["read"], found["deltalake"])
    results.ratio("small-feed", found["feed to lines"], found["deltalake"])
    results.end()


if __name__ == "__main__":
    main()
