"""Open tables of a million live files, side by side with deltalake.

    python -m tests.benchmarks.bench_log [--tables classic v2] [--rounds 3]

Every contender runs in a fresh process whose start counts:

    open         tailer: the newest version and the state behind it, as following needs it
    read         `tailer read` of the versions after the checkpoint
    files        tailer: open, and iterate over the snapshot's files
    deltalake    DeltaTable(...), its schema and version
    deltalake+   the same, and its add actions

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

from tests.benchmarks.big_log import CHECKPOINT_VERSION, FILES, LAST_VERSION, big_log
from tests.benchmarks.measure import Cost, measure, median_cost

CONTENDERS = ("open", "read", "files", "deltalake", "deltalake+")

PEAK_MIB_MAX = 200.0
# Following a table needs none of its file list, so of 70 MiB of checkpoint only the columns that
# steer are read. The interpreter's own modules are among these bytes, about five megabytes.
OPEN_READ_MIB_MAX = 16.0


def open_table(table: Path) -> str:
    """What following from the newest version on has to know."""
    import anyio

    from tailer.log.starts import start_offset
    from tailer.log.table import TableLog
    from tailer.store import open_store

    async def work() -> str:
        log = TableLog(open_store(str(table)))
        start = await start_offset(log, "latest")
        state = await log.state_before(start.version)
        assert state is not None
        return f"version {start.version}, {len(state.schema.names)} columns"

    return anyio.run(work)


def iterate(table: Path) -> str:
    """How many files the newest snapshot has."""
    from contextlib import aclosing

    import anyio

    from tailer.log.table import TableLog
    from tailer.store import open_store

    async def work() -> str:
        log = TableLog(open_store(str(table)))
        count = 0
        async with aclosing(log.live_files(await log.snapshot())) as files:
            async for _ in files:
                count += 1
        return f"{count} files"

    return anyio.run(work)


def deltalake(table: Path, *, files: bool) -> str:
    """The same by deltalake."""
    from deltalake import DeltaTable

    found = DeltaTable(str(table))
    if files:
        return f"{len(found.file_uris())} files"
    return f"version {found.version() + 1}, {len(found.schema().fields)} columns"


def contend(name: str, table: Path) -> None:
    """Run a contender in this process; say what it found and how many bytes it read."""
    match name:
        case "open":
            found = open_table(table)
        case "files":
            found = iterate(table)
        case "deltalake" | "deltalake+":
            found = deltalake(table, files=name.endswith("+"))
        case _:
            sys.exit(__doc__)
    counters = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    print(json.dumps({"found": found, "bytes": int(counters["rchar"])}))


def command(name: str, table: Path, output: Path) -> list[str]:
    """The command line of a contender."""
    if name == "read":
        first = CHECKPOINT_VERSION + 1
        versions = f"--starting-version {first} --ending-version {LAST_VERSION}".split()
        arguments = ["read", str(table), *versions, "--output", str(output)]
        return [sys.executable, "-m", "tailer", *arguments]
    return [sys.executable, "-m", "tests.benchmarks.bench_log", "--contend", name, str(table)]


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


def main() -> None:
    """Measure, show, and end with 1 where a bound is not kept."""
    parser = argparse.ArgumentParser(prog="bench_log", description="Open tables of many files.")
    parser.add_argument("--tables", nargs="+", default=["classic", "v2"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contend", nargs=2, metavar=("NAME", "TABLE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contend:
        return contend(options.contend[0], Path(options.contend[1]))
    print(f"{'table':8} {'contender':11} {'wall s':>7} {'cpu s':>7} {'peak MiB':>9} {'MiB read':>9}"
          "  finds")  # fmt: skip
    complaints = [c for kind in options.tables for c in bench(kind, options.rounds)]
    for complaint in complaints:
        print(f"beyond its bound: {complaint}")
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main()
