"""`changes` and `foreach_batch` against Spark's own readChangeFeed, all to noop.

    python -m tests.benchmarks.bench_spark_frames [--rounds 5] [--quick]

The data source stands beside them. All run by turns in one warm session, planning included, streams
as `AvailableNow` from a new checkpoint. The tables are that of bench_spark, one of thousands of
small versions, and one with a thousand deletion vectors. Workers of Python end between two looks at
the processor time, so all is compared by wall time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from tests.benchmarks.bench_spark import cpu_s, registered
from tests.benchmarks.measure import Cost, busy_s, environment, print_costs, python
from tests.benchmarks.results import Results, options
from tests.benchmarks.tables import STARTING_VERSION, bench_table, vectors_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

VERSIONS, VERSIONS_QUICK = 2000, 20
VECTORS, VECTORS_QUICK = (3_000_000, 1000), (2000, 4)
PARTS, PARTS_QUICK = (3_000_000, 30), (300, 10)
Run = Callable[[], None]
Work = Callable[["DataFrame"], "DataFrame"]


def readers(spark: SparkSession, table: Path) -> dict[str, Callable[[], DataFrame]]:
    """Each contender's frame of all changes; a source of ours plans as it is made or run."""
    from tailer.spark import changes

    def by_format(name: str) -> DataFrame:
        reader = spark.read.format(name).option("readChangeFeed", "true")
        return reader.option("startingVersion", STARTING_VERSION).load(str(table))

    return {
        "readChangeFeed": lambda: by_format("delta"),
        "changes()": lambda: changes(spark, str(table), startingVersion=STARTING_VERSION),
        "format(tailer)": lambda: by_format("tailer"),
    }


def streams(spark: SparkSession, table: Path) -> dict[str, Callable[[Path], DataStreamWriter]]:
    """Each contender's writer of a stream of all changes, from a checkpoint."""
    from tailer.spark import foreach_batch

    def by_format(name: str) -> Callable[[Path], DataStreamWriter]:
        reader = spark.readStream.format(name).option("readChangeFeed", "true")
        frame = reader.option("startingVersion", STARTING_VERSION)
        return lambda at: _to_noop(frame.load(str(table)), at)

    return {
        "readChangeFeed": by_format("delta"),
        "foreach_batch()": lambda at: foreach_batch(
            spark, str(table), str(at), _keep, startingVersion=STARTING_VERSION
        ),
        "format(tailer)": by_format("tailer"),
    }


def _to_noop(frame: DataFrame, checkpoint: Path) -> DataStreamWriter:
    return frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))


def _keep(frame: DataFrame, _: int) -> None:
    frame.write.format("noop").mode("overwrite").save()


def whole(frame: DataFrame) -> DataFrame:
    """All columns and rows."""
    return frame


def few(frame: DataFrame) -> DataFrame:
    """Two of the eight columns, and a condition that a third of the rows fulfil."""
    return frame.where("amount > 666666").select("id", "amount")


def counted(frame: DataFrame) -> DataFrame:
    """The number of rows."""
    return frame.groupBy().count()


def where(condition: str) -> Work:
    """All columns, and a condition that Delta does without reading the rows."""
    return lambda frame: frame.where(condition)


def partitioned(spark: SparkSession, folder: Path, rows: int, parts: int) -> Path:
    """A table of as many rows in as many partitions, one version."""
    table = folder / "partitioned"
    spark.sql(
        f"CREATE TABLE delta.`{table}` (id LONG, name STRING, part INT) USING delta PARTITIONED BY "
        "(part) TBLPROPERTIES (delta.enableChangeDataFeed = true)"
    )
    made = f"SELECT id, concat('row ', id), CAST(id % {parts} AS INT) FROM range({rows})"
    spark.sql(f"INSERT INTO delta.`{table}` {made}")
    return table


def batch_runs(spark: SparkSession, name: str, table: Path, work: Work) -> dict[str, Run]:
    """Return the runs of batches, which must have the same number of rows."""
    make = readers(spark, table)
    counts = {kind: work(frame()).count() for kind, frame in make.items()}
    if len({*counts.values()}) != 1:
        sys.exit(f"{name}: not the same rows: {counts}")

    def run(kind: str) -> None:
        work(make[kind]()).write.format("noop").mode("overwrite").save()

    return {kind: partial(run, kind) for kind in make}


def stream_runs(spark: SparkSession, table: Path, folder: Path) -> dict[str, Run]:
    """Return the runs of streams, each from its start to its end."""
    make = streams(spark, table)

    def run(kind: str) -> None:
        checkpoint = Path(tempfile.mkdtemp(dir=folder))
        make[kind](checkpoint).trigger(availableNow=True).start().awaitTermination()

    return {kind: partial(run, kind) for kind in make}


def compare(name: str, runs: dict[str, Run], rounds: int) -> dict[str, Cost]:
    """Print and return all contenders' medians."""
    found: dict[str, list[Cost]] = {kind: [] for kind in runs}
    for number in range(rounds + 1):
        for kind, costs in found.items():
            cpu, busy, start = cpu_s(), busy_s(), time.perf_counter()
            runs[kind]()
            wall, used = time.perf_counter() - start, cpu_s() - cpu
            others = max(0.0, (busy_s() - busy - used) / wall)
            if number or not rounds:  # the first one warms up
                costs.append(Cost(wall, used, 0.0, others))
    medians = {
        kind: Cost(*(median(part) for part in zip(*map(_parts, costs), strict=True)))
        for kind, costs in found.items()
    }
    print_costs(medians, name)
    return medians


def _parts(cost: Cost) -> tuple[float, float, float, float]:
    return cost.wall_s, cost.cpu_s, cost.peak_mib, cost.others


def main() -> None:
    """Measure, show, and end with 1 where a bound is not kept."""
    asked = options(__doc__).parse_args()
    results, rounds = Results(asked.quick), 0 if asked.quick else asked.rounds
    os.environ.update(environment())
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    feed = bench_table("tiny" if asked.quick else "small").path
    spark = registered(sys.executable)
    with tempfile.TemporaryDirectory(prefix="tailer-bench-") as folder:
        small, last = Path(folder) / "small", VERSIONS_QUICK if asked.quick else VERSIONS
        write = python("tests.benchmarks.runs_contenders", "write", small, last)
        subprocess.run(write, check=True)
        vectors = vectors_table(spark, Path(folder), *(VECTORS_QUICK if asked.quick else VECTORS))
        parts = partitioned(spark, Path(folder), *(PARTS_QUICK if asked.quick else PARTS))
        for name, table, work in (
            ("spark-count", feed, counted),
            ("spark-version", small, where(f"_commit_version = {last // 2}")),
            ("spark-partition", parts, where("part = 7")),
        ):
            compare(name, batch_runs(spark, name, table, work), rounds)
        for name, table, work in (
            ("spark-batch", feed, whole),
            ("spark-columns", feed, few),
            ("spark-backlog", small, whole),
            ("spark-vectors", vectors, whole),
        ):
            found = compare(name, batch_runs(spark, name, table, work), rounds)
            results.ratio(name, found["changes()"], found["readChangeFeed"], by_wall=True)
        for name, table in (("spark-stream", feed), ("spark-backlog-stream", small)):
            found = compare(name, stream_runs(spark, table, Path(folder)), rounds)
            results.ratio(name, found["foreach_batch()"], found["readChangeFeed"], by_wall=True)
    spark.stop()
    results.end()


if __name__ == "__main__":
    main()
