"""How the processor time grows where versions, files, rows, columns and feeds are doubled.

    python -m tests.benchmarks.bench_growth [--rounds 3] [--only versions] [--quick]

Each is doubled four times, and all else stays as it is. The figure is the slope of a line through
the points, both axes logarithmic: 1 is in proportion. A read is timed in this process, without its
start; feeds are those of a daemon, from its start until all have delivered.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from math import log
from pathlib import Path
from statistics import linear_regression, median

import anyio
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from tailer.changes import Offset
from tailer.feed.options import FeedOptions
from tailer.feed.read import read_changes
from tailer.log.table import TableLog
from tailer.store.local import LocalStore
from tailer.testing.table import TableBuilder
from tests.benchmarks.bench_daemon import configure, daemon, delivered, table
from tests.benchmarks.results import Results, options

DOUBLED = 4
#: The smallest size of each, and of a quick run.
SMALLEST = {"versions": 125, "files": 125, "rows": 125_000, "columns": 25, "feeds": 25}
QUICK = 2
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])

#: Does the work of one size, and returns the processor seconds that it took.
Work = Callable[[int], float]


async def _read(folder: Path, first: int, last: int) -> int:
    changes = read_changes(TableLog(LocalStore(str(folder))), Offset(first), last, FeedOptions())
    async with aclosing(changes) as batches:
        return sum([batch.num_rows async for batch in batches])


def read(folder: Path, first: int, last: int, rows: int) -> float:
    """Read these versions; returns the processor seconds that it took."""
    started = time.process_time()
    found = anyio.run(_read, folder, first, last)
    taken = time.process_time() - started
    if found != rows:
        sys.exit(f"{folder}: {found} rows, not {rows}")
    return taken


def rows_of(first: int, count: int) -> list[dict[str, object]]:
    """Some rows."""
    return [{"id": i, "text": f"text {i}"} for i in range(first, first + count)]


def versions(folder: Path, sizes: Sequence[int]) -> Work:
    """One table; a size reads as many of its versions."""
    made = TableBuilder(folder, SCHEMA)
    made.create()
    for version in range(1, sizes[-1] + 1):
        made.commit(made.add(rows_of(version, 10)), version=version)
    return lambda size: read(folder, 1, size, 10 * size)


def files(folder: Path, sizes: Sequence[int]) -> Work:
    """A version of as many files for each size."""
    made = TableBuilder(folder, SCHEMA)
    made.create()
    for size in sizes:
        made.commit(*(made.add(rows_of(i, 10)) for i in range(size)))
    return lambda size: read(folder, at := 1 + sizes.index(size), at, 10 * size)


def rows(folder: Path, sizes: Sequence[int]) -> Work:
    """A version with one file of as many rows for each size."""
    made = TableBuilder(folder, SCHEMA)
    made.create()
    for size in sizes:
        add = made.add(rows_of(0, 1))
        ids = pa.array(range(size), pa.int64())
        where = folder / add["add"]["path"]
        pq.write_table(pa.table({"id": ids, "text": ids.cast(pa.string())}, schema=SCHEMA), where)
        stats = f'{{"numRecords":{size}}}'
        made.commit({"add": {**add["add"], "size": where.stat().st_size, "stats": stats}})
    return lambda size: read(folder, at := 1 + sizes.index(size), at, size)


def columns(folder: Path, sizes: Sequence[int]) -> Work:
    """A table of as many columns for each size."""
    for size in sizes:
        schema = pa.schema([(f"c{i}", pa.int64()) for i in range(size)])
        made = TableBuilder(folder / str(size), schema)
        made.create()
        made.insert([{f"c{i}": i * row for i in range(size)} for row in range(1000)])
    return lambda size: read(folder / str(size), 1, 1, 1000)


def feeds(folder: Path, sizes: Sequence[int]) -> Work:
    """A daemon of as many feeds."""
    names = [f"t{i}" for i in range(sizes[-1])]
    for name in names:
        table(folder / name)

    def work(size: int) -> float:
        outputs = [folder / f"{name}.jsonl" for name in names[:size]]
        for left in (*outputs, folder / "state"):
            subprocess.run(["rm", "-rf", left], check=True)
        child = daemon(configure(folder, names[:size]))
        try:
            while not all(map(delivered, outputs)):
                if child.poll() is not None:
                    sys.exit(f"the daemon ended with {child.returncode}")
                time.sleep(0.05)
            times = psutil.Process(child.pid).cpu_times()
            return float(times.user + times.system)
        finally:
            child.terminate()
            child.wait()

    return work


KINDS = {"versions": versions, "files": files, "rows": rows, "columns": columns, "feeds": feeds}


def slope(sizes: Sequence[int], taken: Sequence[float]) -> float:
    """Return the slope of the line through these points, both axes logarithmic."""
    return linear_regression([log(size) for size in sizes], [log(t) for t in taken]).slope


def main() -> None:
    """Measure, show, and end with 1 where a bound is not kept."""
    parser = options(__doc__, rounds=3)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS)
    asked = parser.parse_args()
    results = Results(asked.quick)
    for kind in asked.only:
        smallest, doubled = (QUICK, 1) if asked.quick else (SMALLEST[kind], DOUBLED)
        sizes = [smallest * 2**i for i in range(doubled + 1)]
        with tempfile.TemporaryDirectory(prefix="tailer-bench-") as folder:
            work = KINDS[kind](Path(folder), sizes)
            work(sizes[0])
            rounds = [
                [work(size) for size in sizes] for _ in range(1 if asked.quick else asked.rounds)
            ]
        taken = [median(found) for found in zip(*rounds, strict=True)]
        print(kind, ", ".join(f"{n}: {s:.3f} s" for n, s in zip(sizes, taken, strict=True)))
        results.value(f"growth-{kind}", slope(sizes, taken), sizes=sizes, seconds=taken)
    results.end()


if __name__ == "__main__":
    main()
