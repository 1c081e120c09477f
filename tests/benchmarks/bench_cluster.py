"""The Spark source on a standalone cluster of two workers with one core each.

    python -m tests.benchmarks.bench_cluster [--rounds 3] [--quick]

Two figures. From one worker to two: all changes of the table to `noop`, 1.6 times as fast. For that
each worker, with its executor and Python processes, is pinned to one processor of its own, so that
they are two machines of one core each; the driver is not pinned, and takes what it needs from
either of them. Where the platform can't pin, or has one processor, a worker's Java and Python run
side by side on what there is, and the output says so. Beside the wall time stands where it goes:
the processor time of the busiest worker, of the driver, and of all else on the machine.

And a MERGE that rewrites 3 million rows of a table without a change data feed: the same changes as
`tailer read`, with the peak memory of a task beside the daemon's.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import deltalake
import psutil
import pyarrow as pa
import pyarrow.compute as pc

from tests.benchmarks.measure import POLL_S, Cost, busy_s, measure, tree_s
from tests.benchmarks.results import Results, options
from tests.benchmarks.tables import STARTING_VERSION, bench_folder, bench_table
from tests.spark.cluster import Cluster, can_pin, cluster_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


PART_BYTES = 8 * 1024 * 1024
TASKS = 20
MERGED_ROWS, MERGED_ROWS_QUICK = 3_000_000, 3000
FILES = 4
MERGE_VERSION = FILES  # the first file creates the table


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


def timed(cluster: Cluster, cores: int, table: Path, rounds: int) -> Read:
    """A read on so many workers: the median of each figure."""
    with cluster_session(cluster, {"spark.cores.max": str(cores)}) as spark:
        read_all(spark, bench_table("tiny").path, cores)
        for _ in range(
            3 * cores if rounds > 1 else 1
        ):  # code is compiled, by as many tasks of each
            read_all(spark, table, TASKS)
        assert len(cluster.executors()) == cores
        reads = [timed_read(spark, cluster, table) for _ in range(rounds)]
    return Read(
        wall=median(read.wall for read in reads),
        busiest=median(read.busiest for read in reads),
        driver=median(read.driver for read in reads),
        others=median(read.others for read in reads),
    )


def timed_read(spark: SparkSession, cluster: Cluster, table: Path) -> Read:
    """One read, timed."""
    executors = cluster.executors()

    def now() -> list[float]:
        # Those that have ended, too: a driver starts a process for each plan.
        daemons, driver, *workers = (
            sum(tree_s(process, ended=True) for process in some)
            for some in (cluster.processes(), [psutil.Process()], *([e] for e in executors))
        )
        # This process has started the daemons, too.
        return [time.perf_counter(), busy_s(), daemons, driver - daemons, *workers]

    before = now()
    read_all(spark, table, TASKS)
    wall, machine, daemons, driver, *workers = (b - a for a, b in zip(before, now(), strict=True))
    return Read(wall, max(workers), driver, max(0.0, machine - daemons - driver))


def speedup(results: Results, table: Path, rounds: int) -> None:
    """From one worker to two."""
    with tempfile.TemporaryDirectory() as folder:
        pinned = can_pin(2)
        with Cluster(Path(folder), pinned=pinned) as cluster:
            one, two = (timed(cluster, cores, table, rounds) for cores in (1, 2))
    alone = "each worker pinned to a processor of its own" if pinned else "workers NOT pinned"
    print(f"{alone}:\n  one worker  {one}\n  two workers {two}", flush=True)
    results.ratio("cluster-workers", _cost(two), _cost(one), by_wall=True)


def _cost(read: Read) -> Cost:
    return Cost(read.wall, read.busiest + read.driver, 0.0, read.others / read.wall)


def merged_table(rows: int) -> Path:
    """A table without a change data feed whose last version is a copy-on-write MERGE, made once."""
    folder = bench_folder() / f"merged-{rows}"
    done = folder / "done"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _merge(folder / "table", rows)
        done.touch()
    return folder / "table"


def _merge(table: Path, rows: int) -> None:
    """Of each 20 rows update one and delete one, and insert as many as were deleted."""
    for part in range(FILES):
        ids = pa.array(range(part, rows, FILES), pa.int64())
        deltalake.write_deltalake(str(table), _rows(ids, 1), mode="append")
    more = range(rows, rows + rows // 20)
    ids = pa.array([*range(0, rows, 10), *more], pa.int64())
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


def derived(results: Results, cluster: Cluster, table: Path) -> None:
    """A MERGE's changes, derived by a task and by `tailer read`."""
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
    kinds = ", ".join(f"{count:,} {kind}" for kind, count, _ in found)
    print(
        f"a MERGE, derived: {kinds}\n"
        f"  tailer read {cost.wall_s:.2f} s, cpu {cost.cpu_s:.2f} s, {cost.peak_mib:.0f} MiB\n"
        f"  the source  {wall:.2f} s"
    )
    if found != wanted:
        sys.exit(f"not the same changes: {found}, {wanted}")
    results.value("cluster-memory", workers.peak_bytes / 2**20)


def main() -> None:
    """Run both, and end with 1 where one is beyond its bound."""
    asked = options(__doc__, 3).parse_args()
    results, rounds = Results(asked.quick), 1 if asked.quick else asked.rounds
    merged = merged_table(MERGED_ROWS_QUICK if asked.quick else MERGED_ROWS)
    table = bench_table("tiny" if asked.quick else "large")
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder)) as cluster:
        derived(results, cluster, merged)
    speedup(results, table.path, rounds)
    results.end()


if __name__ == "__main__":
    main()
