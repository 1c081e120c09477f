"""The Spark source on a standalone cluster of two workers with one core each.

    python -m tests.benchmarks.bench_cluster [--rounds 3] [--table large]

Two figures. From one worker to two: all changes of the table to `noop`, at least 1.6 times as fast.
For that each worker, with its executor and Python processes, is pinned to one processor of its own,
so that they are two machines of one core each; the driver is not pinned, and takes what it needs
from either of them. Where the platform can't pin, or has one processor, a worker's Java and Python
run side by side on what there is, and the output says so. Beside the wall time stands where it
goes: the processor time of the busiest worker, of the driver, and of all else on the machine.

And a MERGE that rewrites 3 million rows of a table without a change data feed: the same changes as
`tailer read`, with the peak memory of a task beside the daemon's.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import deltalake
import psutil
import pyarrow as pa
import pyarrow.compute as pc

from tests.benchmarks.measure import POLL_S, measure
from tests.benchmarks.tables import STARTING_VERSION, bench_folder, bench_table
from tests.spark.cluster import Cluster, can_pin, cluster_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    Work = Callable[[SparkSession, Path, int], None]

SPEEDUP_MIN = 1.6
PART_BYTES = 8 * 1024 * 1024
TASKS = 20
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


def cpu_of(process: psutil.Process) -> float:
    """Processor seconds of a process with all that it has started, so far."""
    total = 0.0
    for one in [process, *process.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            # Those of children that have ended, too: a driver starts a process for each plan.
            total += times.user + times.system + times.children_user + times.children_system
    return total


def machine_cpu() -> float:
    """Processor seconds of the whole machine, so far."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - times.guest)


@dataclass(frozen=True, slots=True)
class Read:
    """One read: wall seconds; the processor seconds of the busiest worker, of the driver, and of
    whatever else ran on the machine."""

    wall: float
    busiest: float
    driver: float
    others: float

    def __str__(self) -> str:
        return (
            f"{self.wall:.2f} s, cpu of the busiest worker {self.busiest:.2f} s, of the driver "
            f"{self.driver:.2f} s, of what else ran {self.others:.2f} s"
        )


def read_all(spark: SparkSession, table: Path, tasks: int) -> None:
    """All changes to noop."""
    reader = spark.read.format("tailer").option("startingVersion", STARTING_VERSION)
    frame = reader.option("minPartitions", tasks).load(str(table))
    frame.write.format("noop").mode("overwrite").save()


def timed(cluster: Cluster, cores: int, table: Path, rounds: int, work: Work) -> Read:
    """A read on so many workers: the median of each figure."""
    with cluster_session(cluster, {"spark.cores.max": str(cores)}) as spark:
        read_all(spark, bench_table("tiny").path, cores)
        for _ in range(3 * cores):  # code is compiled, by as many tasks of each as one alone has
            work(spark, table, TASKS)
        assert len(cluster.executors()) == cores
        reads = [timed_read(spark, cluster, table, work) for _ in range(rounds)]
    return Read(
        wall=median(read.wall for read in reads),
        busiest=median(read.busiest for read in reads),
        driver=median(read.driver for read in reads),
        others=median(read.others for read in reads),
    )


def timed_read(spark: SparkSession, cluster: Cluster, table: Path, work: Work) -> Read:
    """One read, timed."""
    executors = cluster.executors()

    def now() -> list[float]:
        daemons = sum(map(cpu_of, cluster.processes()))  # which this process has started, too
        driver = cpu_of(psutil.Process()) - daemons
        return [time.perf_counter(), machine_cpu(), daemons, driver, *map(cpu_of, executors)]

    before = now()
    work(spark, table, TASKS)
    wall, machine, daemons, driver, *workers = (b - a for a, b in zip(before, now(), strict=True))
    return Read(wall, max(workers), driver, max(0.0, machine - daemons - driver))


def speedup(what: str, table: Path, rounds: int, work: Work) -> bool:
    """From one worker to two."""
    with tempfile.TemporaryDirectory() as folder:
        pinned = can_pin(2)
        with Cluster(Path(folder), pinned=pinned) as cluster:
            one = timed(cluster, 1, table, rounds, work)
            two = timed(cluster, 2, table, rounds, work)
    alone = "each worker pinned to a processor of its own" if pinned else "workers NOT pinned"
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    print(
        f"{what}, {alone}, load {load:.1f}:\n"
        f"  one worker  {one}\n"
        f"  two workers {two}\n"
        f"  {one.wall / two.wall:.2f} times as fast (at least {SPEEDUP_MIN})",
        flush=True,
    )
    return one.wall / two.wall >= SPEEDUP_MIN


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
        read = ["-m", "tailer", "read", str(table), "--from", str(MERGE_VERSION)]
        cost = measure([sys.executable, *read, "--key", "id", "--output", str(output)])
        wanted = digest(spark.read.parquet(str(output)))
        reader = spark.read.format("tailer").option("startingVersion", MERGE_VERSION)
        frame = reader.option("key", "id").load(str(table))
        with watched(cluster) as workers:
            start = time.perf_counter()
            found = digest(frame)
            wall = time.perf_counter() - start
    peak, equal = workers.peak_bytes / 2**20, found == wanted
    kinds = ", ".join(f"{count:,} {kind}" for kind, count, _ in found)
    print(
        f"MERGE of {MERGED_ROWS:,} rows, derived: {kinds}\n"
        f"  tailer read {cost.wall_s:.2f} s, cpu {cost.cpu_s:.2f} s, {cost.peak_mib:.0f} MiB\n"
        f"  the source  {wall:.2f} s, the largest Python process {peak:.0f} MiB "
        f"(at most {TASK_MIB_MAX:.0f}), {'the same changes' if equal else 'NOT EQUAL'}"
    )
    return equal and peak <= TASK_MIB_MAX


def main() -> None:
    """Run both and end with 1 where one is beyond its bound."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--table", default="large")
    arguments = parser.parse_args()
    merged_table(), bench_table(arguments.table), bench_table("tiny")
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder)) as cluster:
        good = derived(cluster)
    table, rounds = bench_table(arguments.table), arguments.rounds
    good &= speedup(f"{table.rows:,} changes", table.path, rounds, read_all)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
