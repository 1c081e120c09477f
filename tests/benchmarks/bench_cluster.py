"""The Spark source on a standalone cluster of two workers with one core each.

    python -m tests.benchmarks.bench_cluster [--rounds 3] [--table large]

Two figures. From one worker to two: all changes of the table to `noop`, at least 1.6 times as fast.
The driver and both workers share the machine, so that two cores are the least that shows it; beside
the wall time stands what the workers' load alone would allow, the processor time of one worker by
that of the busier of two. And a MERGE that rewrites 3 million rows of a table without a change data
feed: the same changes as `tailer read`, with the peak memory of a task beside the daemon's.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import psutil

from tests.benchmarks.measure import POLL_S, measure
from tests.benchmarks.tables import ROW, SCHEMA, STARTING_VERSION, bench_folder, bench_table
from tests.components import start_spark
from tests.spark.cluster import Cluster, cluster_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SPEEDUP_MIN = 1.6
MERGED_ROWS = 3_000_000
MERGE_VERSION = 2
TASK_MIB_MAX = 1024.0


class Workers(threading.Thread):
    """Watches the Python processes of each worker: the peak of one, the processor time of all."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(daemon=True)
        self.cluster = cluster
        self.peak_bytes = 0
        self._end = threading.Event()

    def run(self) -> None:
        while not self._end.wait(POLL_S):
            for executor in self.cluster.executors():
                with suppress(psutil.NoSuchProcess):
                    for process in executor.children(recursive=True):
                        self.peak_bytes = max(self.peak_bytes, process.memory_info().rss)

    def stop(self) -> None:
        """End the watch."""
        self._end.set()
        self.join()


@contextmanager
def watched(cluster: Cluster) -> Iterator[Workers]:
    """The watch, while the block runs."""
    workers = Workers(cluster)
    workers.start()
    try:
        yield workers
    finally:
        workers.stop()


def cpu_of(executor: psutil.Process) -> float:
    """Processor seconds of an executor with its Python processes, so far."""
    total = 0.0
    for process in [executor, *executor.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def read_all(spark: SparkSession, table: Path, tasks: int) -> None:
    """All changes to noop."""
    reader = spark.read.format("tailer").option("startingVersion", STARTING_VERSION)
    frame = reader.option("minPartitions", tasks).load(str(table))
    frame.write.format("noop").mode("overwrite").save()


def timed(cluster: Cluster, cores: int, table: Path, rounds: int) -> tuple[float, float]:
    """Median seconds of a read on so many workers, and the processor seconds of the busiest."""
    walls, busiest = [], []
    with cluster_session(cluster, {"spark.cores.max": str(cores)}) as spark:
        read_all(spark, bench_table("tiny").path, cores)
        read_all(spark, table, 20)  # code is compiled
        executors = cluster.executors()
        assert len(executors) == cores
        for _ in range(rounds):
            before, start = [*map(cpu_of, executors)], time.perf_counter()
            read_all(spark, table, 20)
            walls.append(time.perf_counter() - start)
            after = map(cpu_of, executors)
            busiest.append(max(b - a for a, b in zip(before, after, strict=True)))
    return median(walls), median(busiest)


def speedup(cluster: Cluster, name: str, rounds: int) -> bool:
    """From one worker to two."""
    table = bench_table(name)
    one, one_cpu = timed(cluster, 1, table.path, rounds)
    two, two_cpu = timed(cluster, 2, table.path, rounds)
    print(
        f"{table.rows:,} changes: one worker {one:.2f} s, cpu {one_cpu:.2f} s; two {two:.2f} s, "
        f"cpu of the busier {two_cpu:.2f} s; {one / two:.2f} times as fast (at least "
        f"{SPEEDUP_MIN}), by processor time {one_cpu / two_cpu:.2f}",
        flush=True,
    )
    return one / two >= SPEEDUP_MIN


def merged_table() -> Path:
    """A table without a change data feed whose version 2 is a copy-on-write MERGE, made once."""
    folder = bench_folder() / "merged"
    done = folder / "done"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        spark = start_spark(bench_folder() / "spark")
        try:
            _merge(spark, folder / "table")
        finally:
            spark.stop()
        done.touch()
    return folder / "table"


def _merge(spark: SparkSession, table: Path) -> None:
    """Of each 100 rows update 5 and delete 5, and insert as many as were deleted."""
    spark.conf.set("spark.sql.files.maxPartitionBytes", "256m")
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    spark.conf.set("spark.sql.shuffle.partitions", "4")
    spark.sql(
        f"CREATE TABLE delta.`{table}` ({SCHEMA}) USING delta "
        "TBLPROPERTIES (delta.enableDeletionVectors = false)"
    )
    more = MERGED_ROWS // 20
    spark.range(0, MERGED_ROWS, 1, 4).createOrReplaceTempView("ids")
    spark.sql(f"INSERT INTO delta.`{table}` SELECT {ROW.format(salt=1)} FROM ids")
    spark.range(0, MERGED_ROWS + more, 1, 4).createOrReplaceTempView("ids")
    spark.sql(
        f"MERGE INTO delta.`{table}` AS t USING (SELECT {ROW.format(salt=3)} FROM ids "
        f"WHERE id >= {MERGED_ROWS} OR id % 10 = 0) AS s ON t.id = s.id "
        "WHEN MATCHED AND s.id % 20 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET * "
        "WHEN NOT MATCHED THEN INSERT *"
    )


def digest(frame: DataFrame) -> list[tuple[object, ...]]:
    """Of each kind of change how many there are, and a sum over all of their columns."""
    from pyspark.sql import functions as f

    rows = f.xxhash64(*(c for c in frame.columns if c != "_change_type")).cast("decimal(38,0)")
    found = frame.groupBy("_change_type").agg(f.count("*"), f.sum(rows)).collect()
    return sorted(tuple(row) for row in found)


def derived(cluster: Cluster) -> bool:
    """A MERGE's changes, derived by a task and by `tailer read`."""
    table = merged_table()
    settings = {"spark.driver.memory": "1g"}
    with tempfile.TemporaryDirectory() as folder, cluster_session(cluster, settings) as spark:
        output = Path(folder) / "changes.parquet"
        read = ["-m", "tailer", "read", str(table), "--starting-version", str(MERGE_VERSION)]
        cost = measure([sys.executable, *read, "--key", "id", "--output", str(output)])
        wanted = digest(spark.read.parquet(str(output)))
        reader = spark.read.format("tailer").option("startingVersion", MERGE_VERSION)
        frame = reader.option("key", "id").load(str(table))
        with watched(cluster) as workers:
            start = time.perf_counter()
            found = digest(frame)
            wall = time.perf_counter() - start
    peak = workers.peak_bytes / 2**20
    kinds = ", ".join(f"{count:,} {kind}" for kind, count, _ in found)
    print(
        f"MERGE of {MERGED_ROWS:,} rows, derived: {kinds}\n"
        f"  tailer read {cost.wall_s:.2f} s, cpu {cost.cpu_s:.2f} s, {cost.peak_mib:.0f} MiB\n"
        f"  the source  {wall:.2f} s, the largest Python process {peak:.0f} MiB "
        f"(at most {TASK_MIB_MAX:.0f}), {'the same changes' if found == wanted else 'NOT EQUAL'}"
    )
    return found == wanted and peak <= TASK_MIB_MAX


def main() -> None:
    """Run both and end with 1 where one is beyond its bound."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--table", default="large")
    arguments = parser.parse_args()
    merged_table(), bench_table(arguments.table), bench_table("tiny")
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder)) as cluster:
        good = derived(cluster)
        good &= speedup(cluster, arguments.table, arguments.rounds)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
