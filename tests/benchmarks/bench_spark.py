"""The Spark source against Spark's own readChangeFeed: all columns of 3 million changes to noop.

    python -m tests.benchmarks.bench_spark [--rounds 5] [--jobs 3] [--compiled] [--python SCRIPT]

All are read in one warm session, in turn. The bounds are on the ratio of the median wall times.
`--jobs` then runs the same stream as the first query of a new application, as `AvailableNow` mostly
is, and says what that query takes, and the whole application from its start to its end.
Beside them stand two Python sources that do nothing, which is Spark's own share: `ready` hands out
as many rows without reading any, and `empty` none. `--compiled` runs a Spark whose archive of
Python modules is compiled, as docs/spark.md says; `--python` is its script for PYSPARK_PYTHON, and
JAVA_TOOL_OPTIONS can have its options for Java.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import psutil

from tests.benchmarks.measure import environment
from tests.benchmarks.python_sources import EmptySource, ReadySource, keep
from tests.benchmarks.spark_home import compiled_spark_home
from tests.benchmarks.tables import STARTING_VERSION, BenchTable, bench_folder, bench_table
from tests.support.components import start_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH_RATIO_MAX = 0.8
STREAM_RATIO_MAX = 1.25
PLANNING_S_MAX = 5.0
BACKLOG_VERSIONS = 1000
TITLES = {"delta": "readChangeFeed", "tailer": "tailer", "ready": "ready rows", "empty": "no rows"}
OWN_SHARE = ("ready", "empty")
#: A stream's time, in turn: `load`; from its start to its first batch, which is where Spark starts
#: the source's own process; finding and planning the batch; the batch; Spark's two logs; the end.
PHASES = ("load", "process", "plan", "batch", "logs", "end")


def cpu_s() -> float:
    """Processor seconds of all our descendants so far: Java, and Python where it runs."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


class Contest:
    """Reads one table either way, as a batch or as a stream."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.ready: dict[str, str] = {}
        self.phases: dict[str, list[list[float]]] = {}

    def _reader(self, reader: Any, kind: str) -> Any:
        if kind in OWN_SHARE:
            return reader.format(kind).options(**self.ready)
        options = {"startingVersion": STARTING_VERSION, "readChangeFeed": "true"}
        return reader.format(kind).options(**options)

    def prepare(self, table: BenchTable) -> None:
        """What `ready` hands out: as many rows as the table has changes, all like the first."""
        from tailer.spark.source import TailerSource

        options = {"path": str(table.path), "startingVersion": str(STARTING_VERSION)}
        source = TailerSource(options)
        reader = source.reader(source.schema())
        rows: Any = next(iter(reader.read(reader.partitions()[0])))
        columns = self._reader(self.spark.read, "tailer").load(str(table.path)).schema
        batch = bench_folder() / "ready.arrow"
        keep(rows, batch)
        self.ready = {"rows": str(table.rows), "batch": str(batch), "columns": columns.json()}

    def batch(self, kind: str, table: BenchTable) -> None:
        """All changes to noop, by `spark.read`."""
        frame = self._reader(self.spark.read, kind).load(str(table.path))
        frame.write.format("noop").mode("overwrite").save()

    def stream(self, kind: str, table: BenchTable) -> None:
        """The same by a query of one batch, with its start and end."""
        checkpoint, began = tempfile.mkdtemp(), time.time()
        writer = self._reader(self.spark.readStream, kind).load(str(table.path)).writeStream
        loaded = time.time()
        query = writer.format("noop").option("checkpointLocation", checkpoint)
        running = query.trigger(availableNow=True).start()
        running.awaitTermination()
        self.phases.setdefault(kind, []).append(_phases(running, began, loaded))
        shutil.rmtree(checkpoint)
        rows = sum(progress.numInputRows for progress in running.recentProgress)
        wanted = 0 if kind == "empty" else table.rows
        assert rows == wanted, f"{kind} read {rows} of {wanted}"


def _phases(query: Any, began: float, loaded: float) -> list[float]:
    """The seconds of a query's :data:`PHASES`, by its progress; the first batch is all of it."""
    ended, progress = time.time(), query.recentProgress[0]
    spent = {name: ms / 1000 for name, ms in progress.durationMs.items()}
    trigger = datetime.fromisoformat(progress.timestamp).timestamp()
    plan = spent["latestOffset"] + spent["getBatch"] + spent["queryPlanning"]
    logs = spent["walCommit"] + spent["commitOffsets"]
    found = [loaded - began, trigger - loaded, plan, spent["addBatch"], logs]
    return [*found, ended - began - sum(found)]


def print_phases(contest: Contest, rounds: int) -> None:
    """The medians of each contender's last so many streams, phase by phase."""
    for kind, found in contest.phases.items():
        medians = [median(phase) for phase in zip(*found[-rounds:], strict=True)]
        told = ", ".join(f"{n} {s:.2f}" for n, s in zip(PHASES, medians, strict=True))
        print(f"{TITLES[kind]:<16} {told} s", flush=True)


def compare(name: str, rounds: int, work: Callable[[str], None], bound: float, *more: str) -> bool:
    """Print all contenders' medians; whether ours keeps within the bound."""
    costs: dict[str, list[tuple[float, float]]] = {k: [] for k in ("delta", "tailer", *more)}
    for _ in range(rounds):
        for kind, found in costs.items():
            cpu, start = cpu_s(), time.perf_counter()
            work(kind)
            found.append((time.perf_counter() - start, cpu_s() - cpu))
    wall = {kind: median(w for w, _ in found) for kind, found in costs.items()}
    cpu_of = {kind: median(c for _, c in found) for kind, found in costs.items()}
    for kind in costs:
        print(
            f"{name:8} {TITLES[kind]:<16} {wall[kind]:5.2f} s, cpu {cpu_of[kind]:5.2f} s   "
            f"ratio {wall[kind] / wall['delta']:.2f}, cpu {cpu_of[kind] / cpu_of['delta']:.2f}"
        )
    ratio = wall["tailer"] / wall["delta"]
    print(f"{name:8} {ratio:.2f} (at most {bound})", flush=True)
    return ratio <= bound


def registered(python: str) -> SparkSession:
    """A new session that knows all contenders."""
    spark = start_spark(bench_folder() / "spark", python, small=False)
    from tailer.spark.source import TailerSource

    for source in (TailerSource, ReadySource, EmptySource):
        spark.dataSource.register(source)
    return spark


def job(kind: str, python: str) -> None:
    """What a process of :func:`jobs` does: one stream and no more; prints its seconds."""
    spark = registered(python)
    start = time.perf_counter()
    Contest(spark).stream(kind, bench_table("small"))
    took = time.perf_counter() - start
    spark.stop()
    print(json.dumps(took))


def jobs(rounds: int, more: list[str]) -> None:
    """Print the medians of one stream in a new application, and of that application."""
    costs: dict[str, list[tuple[float, float]]] = {"delta": [], "tailer": []}
    for _ in range(rounds):
        for kind, found in costs.items():
            command = [sys.executable, "-m", "tests.benchmarks.bench_spark", *more, "--job", kind]
            start = time.perf_counter()
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True
            )
            found.append((float(done.stdout.splitlines()[-1]), time.perf_counter() - start))
    for name, index in (("first", 0), ("whole", 1)):
        delta, ours = (median(f[index] for f in costs[kind]) for kind in costs)
        print(
            f"{name:8} readChangeFeed {delta:.2f} s, tailer {ours:.2f} s   "
            f"ratio {ours / delta:.2f}",
            flush=True,
        )


def backlog(folder: Path) -> Path:
    """A table of a thousand versions of one file each."""
    import pyarrow as pa

    from tailer.testing.table import TableBuilder

    table = TableBuilder(folder / "backlog", pa.schema([("id", pa.int64())]))
    table.create()
    first = table.add([{"id": 0}])
    for version in range(1, BACKLOG_VERSIONS):
        action = json.loads(json.dumps(first))
        action["add"]["path"] = f"part-{version}.parquet"
        table.commit(action, version=version)
    return table.folder


def planning() -> bool:
    """The driver's work on a backlog: where the batch ends, and its partitions."""
    from pyspark.sql.streaming.datasource import ReadMaxFiles

    from tailer.spark.source import TailerSource

    with tempfile.TemporaryDirectory() as folder:
        source = TailerSource({"path": str(backlog(Path(folder))), "startingVersion": "0"})
        reader = source.streamReader(source.schema())
        start, began = reader.initialOffset(), time.perf_counter()
        end = reader.latestOffset(start, ReadMaxFiles(10_000))
        found = time.perf_counter() - began
        count = len(reader.partitions(start, end))
        took = time.perf_counter() - began
        reader.stop()
    print(
        f"planning {BACKLOG_VERSIONS} versions: {found:.2f} s to the offset, {took:.2f} s to "
        f"{count} partitions (at most {PLANNING_S_MAX} s)"
    )
    return took <= PLANNING_S_MAX


def main() -> None:
    """Run all and end with 1 where one is beyond its bound."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--jobs", type=int, default=0, help="so many rounds of new applications")
    parser.add_argument("--job", choices=("delta", "tailer"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.compiled:
        os.environ["SPARK_HOME"] = str(compiled_spark_home(bench_folder()))
    # Spark's Python processes begin as an installed program's would: with modules compiled once.
    os.environ.update(environment())
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if arguments.job:
        job(arguments.job, arguments.python)
        return
    tiny, small = bench_table("tiny"), bench_table("small")
    good = planning()
    spark = registered(arguments.python)
    contest = Contest(spark)
    contest.prepare(small)
    for kind in ("delta", "tailer"):  # warm up: workers, classes, compiled code
        contest.batch(kind, tiny)
        contest.stream(kind, tiny)
        contest.batch(kind, small)
        contest.stream(kind, small)
    rounds, bound = arguments.rounds, STREAM_RATIO_MAX
    good &= compare("batch", rounds, lambda kind: contest.batch(kind, small), BATCH_RATIO_MAX)
    good &= compare("stream", rounds, lambda kind: contest.stream(kind, small), bound, *OWN_SHARE)
    print_phases(contest, rounds)
    compare("start", rounds, lambda kind: contest.stream(kind, tiny), float("inf"))
    spark.stop()
    if arguments.jobs:
        more = ["--compiled"] if arguments.compiled else []
        jobs(arguments.jobs, [*more, "--python", arguments.python])
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
