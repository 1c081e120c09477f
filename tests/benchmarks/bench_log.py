"""Open tables of many live files, and list long histories, side by side with peers.

    python -m tests.benchmarks.bench_log [--tables classic v2] [--rounds 3]

Every contender runs in a fresh process whose start counts:

    open         tailer: the newest version and the state behind it, as following needs it
    read         `tailer read` of the versions after the checkpoint
    files        tailer: open, and iterate over the snapshot's files
    deltalake    DeltaTable(...), its schema and version
    deltalake+   the same, and its add actions

Prints a table: time, peak memory, bytes read from the disk by system calls, and what was found.
`open` and deltalake are compared on 300,000 files, and `history` of 50 commits with 100,000 adds
with one pass of json.loads over the same lines.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.benchmarks.big_log import (
    CHECKPOINT_VERSION,
    FILES,
    LAST_VERSION,
    big_log,
    long_history,
)
from tests.benchmarks.measure import Cost, by_turns, measure, median_cost, print_costs, python
from tests.benchmarks.results import Results, options

CONTENDERS = ("open", "read", "files", "deltalake", "deltalake+")

PEAK_MIB_MAX = 200.0
# Following a table needs none of its file list, so of 70 MiB of checkpoint only the columns that
# steer are read. The interpreter's own modules are among these bytes, about five megabytes.
OPEN_READ_MIB_MAX = 16.0
OPEN_FILES = 300_000
QUICK = 100


def command(name: str, table: Path, output: Path) -> list[str]:
    """The command line of a contender."""
    if name == "read":
        first = CHECKPOINT_VERSION + 1
        versions = f"--from {first} --to {LAST_VERSION}".split()
        arguments = ["read", str(table), *versions, "--output", str(output)]
        return [sys.executable, "-m", "tailer", *arguments]
    return [sys.executable, "-m", "tests.benchmarks.log_contenders", name, str(table)]


def bench(kind: str, files: int, rounds: int) -> Iterator[str]:
    """Measure and print all contenders on one table; a sentence for each bound not kept."""
    table = big_log(kind, files)
    costs: dict[str, list[Cost]] = {name: [] for name in CONTENDERS}
    said: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for name in CONTENDERS:
                output = Path(folder, "output.jsonl")
                cost, text = measure_said(command(name, table, output))
                costs[name].append(cost)
                said[name] = output.read_text() if name == "read" else text
    base = json.loads(said["deltalake"])
    for name in CONTENDERS:
        cost, peak = median_cost(costs[name]), max(c.peak_mib for c in costs[name])
        answer: dict[str, Any] = {"found": f"{said[name].count(chr(10))} events", "bytes": 0}
        if name != "read":
            answer = json.loads(said[name])
        read = f"{answer['bytes'] / 2**20:9.1f}" if answer["bytes"] else f"{'':9}"
        print(
            f"{kind:8} {name:11} {cost.wall_s:7.2f} {cost.cpu_s:7.2f} {peak:9.0f} {read}  "
            f"{answer['found']}"
        )
        if name.startswith("deltalake"):
            continue
        if peak > PEAK_MIB_MAX:
            yield f"{kind}: {name} takes {peak:.0f} MiB at the peak"
        wanted = {"open": base["found"], "read": "1 events", "files": f"{files + 1} files"}[name]
        if answer["found"] != wanted:
            yield f"{kind}: {name} finds {answer['found']}, not {wanted}"
    if (read_mib := json.loads(said["open"])["bytes"] / 2**20) > OPEN_READ_MIB_MAX:
        yield f"{kind}: opening reads {read_mib:.0f} MiB"


def measure_said(arguments: list[str]) -> tuple[Cost, str]:
    """The cost of a command, and what it printed."""
    with tempfile.NamedTemporaryFile("r") as output:
        redirected = ["sh", "-c", 'exec "$@" > "$0"', output.name, *arguments]
        return measure(redirected), output.read()


def bench_shares(files: int, history: tuple[int, int], rounds: int, results: Results) -> None:
    """Measure what has a bar against a peer."""
    table = big_log("classic", files)
    costs = by_turns({name: command(name, table, table) for name in ("deltalake", "open")}, rounds)
    print_costs(costs, f"{files} files")
    ours, peer = costs["open"], costs["deltalake"]
    results.ratio("open-time", ours, peer)
    results.value(
        "open-memory", ours.peak_mib / peer.peak_mib, ours=asdict(ours), peer=asdict(peer)
    )
    table = long_history(*history)
    costs = by_turns(
        {
            "json.loads": python("tests.benchmarks.log_contenders", "json.loads", table),
            "history": python("tailer", "history", table),
        },
        rounds,
    )
    print_costs(costs, "history")
    results.ratio("history", costs["history"], costs["json.loads"])


def main() -> None:
    """Measure, show, and end with 1 where a bound is not kept."""
    parser = options(__doc__, rounds=3)
    parser.add_argument("--tables", nargs="+", default=["classic", "v2"])
    asked = parser.parse_args()
    results = Results(asked.quick)
    files, history, rounds = FILES, (50, 2000), asked.rounds
    if asked.quick:
        files, history, rounds = QUICK, (5, 20), 0
    print(f"{'table':8} {'contender':11} {'wall s':>7} {'cpu s':>7} {'peak MiB':>9} {'MiB read':>9}"
          "  finds")  # fmt: skip
    for kind in asked.tables:
        for complaint in bench(kind, files, max(1, rounds)):
            results.complain(complaint)
    bench_shares(QUICK if asked.quick else OPEN_FILES, history, rounds, results)
    results.end()


if __name__ == "__main__":
    main()
