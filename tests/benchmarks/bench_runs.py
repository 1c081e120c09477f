"""Tables of many small commits: `tailer read` and a feed beside deltalake's load_cdf.

    python -m tests.benchmarks.bench_runs [--versions 10000] [--rounds 5] [--quick]

Each version has one file of 100 rows. All are whole processes, by turns; a first round is not
counted. The readers must give the same rows. Ends with 1 where tailer is beyond a bound. `--quick`
reads few versions once, and has no bounds.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tests.benchmarks.measure import Cost, environment, measure, median_cost

#: `read` against load_cdf, and a feed to JSON lines with its offsets saved against `read` to JSON
#: lines, by wall time.
READ_RATIO_MAX, FEED_RATIO_MAX = 0.8, 1.2
VERSIONS, VERSIONS_QUICK = 10_000, 50


def commands(table: Path, last: int, folder: Path) -> dict[str, tuple[list[str], Path]]:
    """The command line of each contender, and the file that it writes."""
    contenders = [sys.executable, "-m", "tests.benchmarks.runs_contenders"]
    read = [sys.executable, "-m", "tailer", "read", str(table), "--starting-version", "1"]
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
    costs: dict[str, list[Cost]] = {}
    rows: dict[str, tuple[int, int]] = {}
    for number in range(rounds + 1):
        for name, (command, output) in commands(table, last, folder).items():
            output.unlink(missing_ok=True)
            shutil.rmtree(folder / "state", ignore_errors=True)
            cost = measure(command)
            rows[name] = summary(output)
            if number or not rounds:
                costs.setdefault(name, []).append(cost)
    if rows["read"] != rows["deltalake"] or rows["read to lines"] != rows["feed to lines"]:
        sys.exit(f"not the same rows: {rows}")
    return {name: median_cost(runs) for name, runs in costs.items()}


def main() -> None:
    """Measure, show, and end with 1 where a bound is not kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--versions", type=int, default=VERSIONS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    last = VERSIONS_QUICK if options.quick else options.versions
    with tempfile.TemporaryDirectory(prefix="tailer-bench-") as name:
        table = Path(name) / "small"
        write = [sys.executable, "-m", "tests.benchmarks.runs_contenders", "write"]
        subprocess.run([*write, str(table), str(last)], check=True, env=environment())
        found = bench(table, last, Path(name), 0 if options.quick else options.rounds)
    for contender, cost in found.items():
        print(
            f"{contender:14} {cost.wall_s:7.2f} s wall, {cost.cpu_s:6.2f} s cpu, "
            f"{cost.peak_mib:5.0f} MiB, {cost.cpu_s / last * 1000:.2f} ms of cpu a version"
        )
    read = found["read"].wall_s / found["deltalake"].wall_s
    feed = found["feed to lines"].wall_s / found["read to lines"].wall_s
    print(f"read: {read:.2f} of load_cdf's time (bound {READ_RATIO_MAX})")
    print(f"feed: {feed:.2f} of read's time, both to lines (bound {FEED_RATIO_MAX})")
    met = read <= READ_RATIO_MAX and feed <= FEED_RATIO_MAX
    sys.exit(0 if options.quick or met else 1)


if __name__ == "__main__":
    main()
