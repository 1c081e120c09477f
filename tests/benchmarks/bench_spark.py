"""The Spark source against Spark's own readChangeFeed: all columns of 3 million changes to noop.

    python -m tests.benchmarks.bench_spark [--rounds 5] [--compiled]

All are read in one warm session, in turn. The bounds are on the ratio of the median wall times.
Beside them stand two Python sources that do nothing, which is Spark's own share: `ready` hands out
as many rows without reading any, and `empty` none. `--compiled` runs a Spark whose archive of
Python modules is compiled, as docs/spark.md says.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import psutil

from tests.benchmarks.measure import environment
from tests.benchmarks.python_sources import EmptySource, ReadySource, packed
from tests.benchmarks.spark_home import compiled_spark_home
from tests.benchmarks.tables import STARTING_VERSION, BenchTable, bench_folder, bench_table
from tests.components import start_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH_RATIO_MAX = 0.8
STREAM_RATIO_MAX = 1.25
PLANNING_S_MAX = 5.0
BACKLOG_VERSIONS = 1000
TITLES = {"delta": "readChangeFeed", "tailer": "tailer", "ready": "ready rows", "empty": "no rows"}
OWN_SHARE = ("ready", "empty")


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
        self.ready = {"rows": str(table.rows), "batch": packed(rows), "columns": columns.json()}

    def batch(self, kind: str, table: BenchTable) -> None:
        """All changes to noop, by `spark.read`."""
        frame = self._reader(self.spark.read, kind).load(str(table.path))
        frame.write.format("noop").mode("overwrite").save()

    def stream(self, kind: str, table: BenchTable) -> None:
        """The same by a query of one batch, with its start and end."""
        checkpoint = tempfile.mkdtemp()
        writer = self._reader(self.spark.readStream, kind).load(str(table.path)).writeStream
        query = writer.format("noop").option("checkpointLocation", checkpoint)
        running = query.trigger(availableNow=True).start()
        running.awaitTermination()
        shutil.rmtree(checkpoint)
        rows = sum(progress.numInputRows for progress in running.recentProgress)
        wanted = 0 if kind == "empty" else table.rows
        assert rows == wanted, f"{kind} read {rows} of {wanted}"


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
    arguments = parser.parse_args()
    if arguments.compiled:
        os.environ["SPARK_HOME"] = str(compiled_spark_home(bench_folder()))
    # Spark's Python processes begin as an installed program's would: with modules compiled once.
    os.environ.update(environment())
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    tiny, small = bench_table("tiny"), bench_table("small")
    good = planning()
    spark = start_spark(bench_folder() / "spark")
    from tailer.spark.source import TailerSource

    for source in (TailerSource, ReadySource, EmptySource):
        spark.dataSource.register(source)
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
    compare("start", rounds, lambda kind: contest.stream(kind, tiny), float("inf"))
    spark.stop()
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
