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

import deltalake
import psutil
import pyarrow as pa
import pyarrow.compute as pc

from tests.benchmarks.measure import POLL_S, measure
from tests.benchmarks.tables import STARTING_VERSION, bench_folder, bench_table
from tests.spark.cluster import Cluster, cluster_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SPEEDUP_MIN = 1.6
MERGED_ROWS = 3_000_000
FILES = 4
MERGE_VERSION = FILES  # the first file creates the table
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
        _merge(folder / "table")
        done.touch()
    return folder / "table"


def _merge(table: Path) -> None:
    """Of each 20 rows update one and delete one, and insert as many as were deleted."""
    for part in range(FILES):
        ids = pa.array(range(part, MERGED_ROWS, FILES), pa.int64())
        deltalake.write_deltalake(str(table), _rows(ids, 1), mode="append")
    more = range(MERGED_ROWS, MERGED_ROWS + MERGED_ROWS // 20)
    ids = pa.array([*range(0, MERGED_ROWS, 10), *more], pa.int64())
    merger = deltalake.DeltaTable(str(table)).merge(
        _rows(ids, 2), "t.id = s.id", source_alias="s", target_alias="t"
    )
    merger = merger.when_matched_delete("s.id % 20 = 0").when_matched_update_all()
    merger.when_not_matched_insert_all().execute()


def _rows(ids: pa.Array, salt: int) -> pa.Table:
    """Rows of five types, of their ids and a number."""
    mixed = pc.bit_wise_and(pc.multiply(ids, 2_654_435_761 * salt), 2**31 - 1)
    return pa.table(
        {
            "id": ids,
            "quantity": mixed.cast(pa.int32()),
            "score": pc.divide(mixed.cast(pa.float64()), 7.0),
            "token": pc.binary_join_element_wise(mixed.cast(pa.string()), f"token {salt}", "-"),
            "changed_at": mixed.cast(pa.timestamp("us", "UTC")),
        }
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
