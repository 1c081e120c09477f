"""The programs that bench_log measures, each run by itself in a fresh process.

`python -m tests.benchmarks.log_contenders NAME TABLE`. Nothing is imported here that a contender
does not need: its start counts.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def open_table(table: Path) -> str:
    """The newest version and its state: what following from there on has to know."""
    from tailer.deltalog import DeltaLog

    found = DeltaLog.for_table(str(table)).update()
    return f"version {found.version + 1}, {len(found.state.schema.names)} columns"


def iterate(table: Path) -> str:
    """How many files the newest snapshot has."""
    from contextlib import aclosing

    import anyio

    from tailer.log.table import TableLog
    from tailer.storage import open_store

    async def work() -> str:
        log = TableLog(open_store(str(table)))
        count = 0
        async with aclosing(log.live_files(await log.load_snapshot())) as files:
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


def parse(table: Path) -> str:
    """The lines of all commits, each parsed by json.loads."""
    lines = 0
    for commit in sorted((table / "_delta_log").glob("*.json")):
        with commit.open("rb") as file:
            for line in file:
                json.loads(line)
                lines += 1
    return f"{lines} lines"


def contend(name: str, table: Path) -> None:
    """Run a contender in this process; say what it found and how many bytes it read."""
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")  # as the command line does
    match name:
        case "open":
            found = open_table(table)
        case "files":
            found = iterate(table)
        case "deltalake" | "deltalake+":
            found = deltalake(table, files=name.endswith("+"))
        case "json.loads":
            found = parse(table)
        case _:
            sys.exit(__doc__)
    counters = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    print(json.dumps({"found": found, "bytes": int(counters["rchar"])}))


if __name__ == "__main__":
    contend(sys.argv[1], Path(sys.argv[2]))
