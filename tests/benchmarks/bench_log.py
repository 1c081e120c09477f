"""Open tables of many live files, and list long histories, side by side with peers.

    python -m tests.benchmarks.bench_log [--tables classic v2] [--rounds 3]

Every contender runs in a fresh process whose start counts:

    open         tailer: the newest version and the state behind it, as following needs it
    read         `tailer read` of the versions after the checkpoint
    files        tailer: open, and iterate over the snapshot's files
    deltalake    DeltaTable(...), its schema and version
    deltalake+   the same, and its add actions

Of a table of 300,000 files, `open` may take a share of deltalake's time and memory. `history` of 50
commits with 100,000 adds is measured against one pass of json.loads over the same lines.

Prints a table: time, peak memory, bytes read from the disk by system calls, and what was found.
Ends with 1 where tailer is beyond a bound below or finds another number of files.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks.big_log import (
    CHECKPOINT_VERSION,
    FILES,
    LAST_VERSION,
    big_log,
    long_history,
)
from tests.benchmarks.measure import Cost, measure, median_cost

CONTENDERS = ("open", "read", "files", "deltalake", "deltalake+")

PEAK_MIB_MAX = 200.0
# Following a table needs none of its file list, so of 70 MiB of checkpoint only the columns that
# steer are read. The interpreter's own modules are among these bytes, about five megabytes.
OPEN_READ_MIB_MAX = 16.0
# Of deltalake's processor time and peak memory, for 300,000 files.
OPEN_FILES, OPEN_SHARE_MAX = 300_000, 0.3
# Of one pass of json.loads.
HISTORY_SHARE_MAX = 0.5


def command(name: str, table: Path, output: Path) -> list[str]:
    """The command line of a contender."""
    if name == "read":
        first = CHECKPOINT_VERSION + 1
        versions = f"--starting-version {first} --ending-version {LAST_VERSION}".split()
        arguments = ["read", str(table), *versions, "--output", str(output)]
        return [sys.executable, "-m", "tailer", *arguments]
    return [sys.executable, "-m", "tests.benchmarks.log_contenders", name, str(table)]


def bench(kind: str, rounds: int) -> Iterator[str]:
    """Measure and print all contenders on one table; a sentence for each bound not kept."""
    table = big_log(kind)
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
        wanted = {"open": base["found"], "read": "1 events", "files": f"{FILES + 1} files"}[name]
        if answer["found"] != wanted:
            yield f"{kind}: {name} finds {answer['found']}, not {wanted}"
    if (read_mib := json.loads(said["open"])["bytes"] / 2**20) > OPEN_READ_MIB_MAX:
        yield f"{kind}: opening reads {read_mib:.0f} MiB"


def measure_said(arguments: list[str]) -> tuple[Cost, str]:
    """The cost of a command, and what it printed."""
    with tempfile.NamedTemporaryFile("r") as output:
        redirected = ["sh", "-c", 'exec "$@" > "$0"', output.name, *arguments]
        return measure(redirected), output.read()


def share(names: tuple[str, str], commands: list[list[str]], rounds: int) -> tuple[float, float]:
    """Measure two commands by turns and print them; the second's share of time and memory."""
    costs: tuple[list[Cost], list[Cost]] = [], []
    for _ in range(rounds):
        for found, arguments in zip(costs, commands, strict=True):
            found.append(measure(arguments))
    peer, ours = map(median_cost, costs)
    for name, cost in zip(names, (peer, ours), strict=True):
        print(f"{name:20} {cost.wall_s:7.2f} {cost.cpu_s:7.2f} {cost.peak_mib:9.0f}")
    return ours.cpu_s / peer.cpu_s, ours.peak_mib / peer.peak_mib


def bench_shares(rounds: int) -> Iterator[str]:
    """Measure what has a bar against a peer; a sentence for each that is not met."""
    table = big_log("classic", OPEN_FILES)
    commands = [command(name, table, table) for name in ("deltalake", "open")]
    names = f"deltalake {OPEN_FILES}", f"open {OPEN_FILES}"
    for what, found in zip(("time", "memory"), share(names, commands, rounds), strict=True):
        if found > OPEN_SHARE_MAX:
            yield f"opening takes {found:.2f} of deltalake's {what}"
    table = long_history()
    peer = [sys.executable, "-m", "tests.benchmarks.log_contenders", "json.loads", str(table)]
    ours = [sys.executable, "-m", "tailer", "history", str(table)]
    time, _ = share(("json.loads", "history"), [peer, ours], rounds)
    if time > HISTORY_SHARE_MAX:
        yield f"history takes {time:.2f} of json.loads' time"


def main() -> None:
    """Measure, show, and end with 1 where a bound is not kept."""
    parser = argparse.ArgumentParser(prog="bench_log", description="Open tables of many files.")
    parser.add_argument("--tables", nargs="+", default=["classic", "v2"])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"{'table':8} {'contender':11} {'wall s':>7} {'cpu s':>7} {'peak MiB':>9} {'MiB read':>9}"
          "  finds")  # fmt: skip
    complaints = [c for kind in options.tables for c in bench(kind, options.rounds)]
    complaints += bench_shares(options.rounds)
    for complaint in complaints:
        print(f"beyond its bound: {complaint}")
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main()
