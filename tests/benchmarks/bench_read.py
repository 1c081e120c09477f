"""Time `tailer read` side by side with deltalake and with a bare pyarrow scan of the same files.

    python -m tests.benchmarks.bench_read [--tables small large] [--rounds 5] [--only bare tailer]

Every contender writes the whole feed of a table to an Arrow IPC file, in a fresh process whose
start counts. Rounds are interleaved, so that a busy moment of the machine meets all of them. A
first round warms the file cache and is not counted; its files are compared with the bare scan's,
for a reader that loses rows is not fast. Prints a table, writes the figures as JSON and ends with
1 where tailer is beyond a bound below or gives other rows.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from tests.benchmarks.measure import Cost, measure, median_cost
from tests.benchmarks.tables import (
    ENDING_VERSION,
    STARTING_VERSION,
    BenchTable,
    bench_folder,
    bench_table,
)

CONTENDERS = ("bare", "tailer", "deltalake", "deltalake=")

# The bounds of `tailer read`: time against the bare scan, memory, and how memory may grow from
# `small` to `large`.
WALL_RATIO_MAX = 1.5
PEAK_MIB_MAX = 300.0
PEAK_GROWTH_MAX = 1.10


@dataclass(frozen=True, slots=True)
class Result:
    """What one contender's runs on one table cost, and what its file holds.

    The ratios are against the bare scan. `differs` names what is not as in the bare scan's file:
    a column, or `rows` where the versions and change types already differ.
    """

    table: str
    contender: str
    runs: list[Cost]
    median: Cost
    wall_ratio: float
    cpu_ratio: float
    rows: int
    mib: float
    differs: list[str]


def command(contender: str, name: str, table: BenchTable, output: Path) -> list[str]:
    """The command line by which `contender` writes the feed of `table` to `output`."""
    if contender != "tailer":
        module = "tests.benchmarks.contenders"
        return [sys.executable, "-m", module, contender, name, str(output)]
    versions = f"--starting-version {STARTING_VERSION} --ending-version {ENDING_VERSION}".split()
    arguments = [str(table.path), *versions, "--output", str(output)]
    return [sys.executable, "-m", "tailer", "read", *arguments]


def digest(output: Path) -> dict[str, object]:
    """What the file holds, summed up in a process of its own, so that this one stays small.

    The kernel counts a child's peak from what the process that forked it had resident.
    """
    module = [sys.executable, "-m", "tests.benchmarks.contenders", "digest", str(output)]
    answer = subprocess.run(module, check=True, capture_output=True, text=True)
    found = json.loads(answer.stdout)
    assert isinstance(found, dict)
    return found


def differences(found: Mapping[str, object], wanted: Mapping[str, object]) -> list[str]:
    """The columns whose sums differ between two digests."""
    mine, other = found["sums"], wanted["sums"]
    assert isinstance(mine, dict)
    assert isinstance(other, dict)
    names = [name for name in other if mine.get(name) != other[name]]
    if "_commit_version" in names or "_change_type" in names:
        return ["rows"]
    return [name.removesuffix("_sum_sum") for name in names]


def bench(name: str, contenders: Sequence[str], rounds: int) -> Iterator[Result]:
    """Run every contender on the table `name`: once to warm up and compare, then `rounds` times."""
    table = bench_table(name)
    output = bench_folder() / "output.arrow"
    digests: dict[str, dict[str, object]] = {}
    runs: dict[str, list[Cost]] = {contender: [] for contender in contenders}
    for number in range(rounds + 1):
        for contender in contenders:
            output.unlink(missing_ok=True)
            cost = measure(command(contender, name, table, output))
            if number == 0:
                digests[contender] = digest(output)
            else:
                runs[contender].append(cost)
    output.unlink()
    bare = median_cost(runs["bare"])
    for contender in contenders:
        cost = median_cost(runs[contender])
        found = digests[contender]
        yield Result(
            table=name,
            contender=contender,
            runs=runs[contender],
            median=cost,
            wall_ratio=cost.wall_s / bare.wall_s,
            cpu_ratio=cost.cpu_s / bare.cpu_s,
            rows=int(str(found["rows"])),
            mib=int(str(found["bytes"])) / 2**20,
            differs=differences(found, digests["bare"]),
        )


def show(results: Sequence[Result]) -> None:
    """Print one line for each result."""
    print(
        f"{'table':6} {'contender':11} {'wall s':>7} {'(least)':>8} {'x bare':>7} {'cpu s':>7} "
        f"{'x bare':>7} {'peak MiB':>9} {'(most)':>7} {'rows':>11} {'file MiB':>9}  differs in"
    )
    for result in results:
        cost = result.median
        least = min(run.wall_s for run in result.runs)
        most = max(run.peak_mib for run in result.runs)
        print(
            f"{result.table:6} {result.contender:11} {cost.wall_s:7.2f} {least:8.2f} "
            f"{result.wall_ratio:7.2f} {cost.cpu_s:7.2f} {result.cpu_ratio:7.2f} "
            f"{cost.peak_mib:9.0f} {most:7.0f} {result.rows:11,} {result.mib:9.0f}  "
            f"{', '.join(result.differs)}"
        )


def beyond(results: Sequence[Result]) -> Iterator[str]:
    """A sentence for each bound that tailer does not keep."""
    mine = [result for result in results if result.contender == "tailer"]
    for result in mine:
        if result.differs:
            yield f"{result.table}: other rows than the bare scan: {', '.join(result.differs)}"
        if result.wall_ratio > WALL_RATIO_MAX:
            yield f"{result.table}: {result.wall_ratio:.2f} times the bare scan's time"
        # One run above a limit of memory is above it, whatever the others were.
        most = max(run.peak_mib for run in result.runs)
        if most > PEAK_MIB_MAX:
            yield f"{result.table}: {most:.0f} MiB at the peak"
    peaks = {result.table: result.median.peak_mib for result in mine}
    if {"small", "large"} <= peaks.keys():
        growth = peaks["large"] / peaks["small"]
        if growth > PEAK_GROWTH_MAX:
            yield f"four times the rows take {growth:.2f} times the memory"


def machine() -> dict[str, object]:
    """What the figures depend on besides the code."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        **{name: version(name) for name in ("pyarrow", "deltalake")},
    }


def main() -> None:
    """Measure, show, write the JSON, and end with 1 where a bound is not kept."""
    parser = argparse.ArgumentParser(prog="bench_read", description="Time the bounded read.")
    parser.add_argument("--tables", nargs="+", default=["small", "large"])
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, default=CONTENDERS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=bench_folder() / "read.json")
    options = parser.parse_args()
    # Without the bare scan there is nothing to compare with.
    contenders = [name for name in CONTENDERS if name == "bare" or name in options.only]
    results = [
        result for name in options.tables for result in bench(name, contenders, options.rounds)
    ]
    show(results)
    record = {"machine": machine(), "results": [asdict(result) for result in results]}
    options.json.write_text(json.dumps(record, indent=1))
    complaints = list(beyond(results))
    for complaint in complaints:
        print(f"beyond its bound: {complaint}")
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main()
