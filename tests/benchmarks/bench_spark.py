"""The Spark source against Spark's own readChangeFeed: all columns of 3 million changes to noop.

    python -m tests.benchmarks.bench_spark [--rounds 5]

Both are read in one warm session, in turn. The bounds are on the ratio of the median wall times.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import psutil

from tests.benchmarks.tables import STARTING_VERSION, BenchTable, bench_folder, bench_table
from tests.components import start_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH_RATIO_MAX = 0.8
STREAM_RATIO_MAX = 1.25
PLANNING_S_MAX = 5.0
BACKLOG_VERSIONS = 1000


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

    def _reader(self, reader: Any, kind: str) -> Any:
        options = {"startingVersion": STARTING_VERSION, "readChangeFeed": "true"}
        return reader.format(kind).options(**options)

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
        assert rows == table.rows, f"{kind} read {rows} of {table.rows}"


def compare(name: str, rounds: int, work: Callable[[str], None], bound: float) -> bool:
    """Print both contenders' medians; whether ours keeps within the bound."""
    costs: dict[str, list[tuple[float, float]]] = {"delta": [], "tailer": []}
    for _ in range(rounds):
        for kind, found in costs.items():
            cpu, start = cpu_s(), time.perf_counter()
            work(kind)
            found.append((time.perf_counter() - start, cpu_s() - cpu))
    wall = {kind: median(w for w, _ in found) for kind, found in costs.items()}
    cpu_of = {kind: median(c for _, c in found) for kind, found in costs.items()}
    ratio = wall["tailer"] / wall["delta"]
    print(
        f"{name:8} readChangeFeed {wall['delta']:5.2f} s, cpu {cpu_of['delta']:5.2f} s   "
        f"tailer {wall['tailer']:5.2f} s, cpu {cpu_of['tailer']:5.2f} s   "
        f"ratio {ratio:.2f} (at most {bound}), cpu {cpu_of['tailer'] / cpu_of['delta']:.2f}"
    )
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
    arguments = parser.parse_args()
    tiny, small = bench_table("tiny"), bench_table("small")
    good = planning()
    spark = start_spark(bench_folder() / "spark")
    from tailer.spark.source import TailerSource

    spark.dataSource.register(TailerSource)
    contest = Contest(spark)
    for kind in ("delta", "tailer"):  # warm up: workers, classes, compiled code
        contest.batch(kind, tiny)
        contest.stream(kind, tiny)
        contest.batch(kind, small)
    rounds = arguments.rounds
    good &= compare("batch", rounds, lambda kind: contest.batch(kind, small), BATCH_RATIO_MAX)
    good &= compare("stream", rounds, lambda kind: contest.stream(kind, small), STREAM_RATIO_MAX)
    compare("start", rounds, lambda kind: contest.stream(kind, tiny), float("inf"))
    spark.stop()
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
