"""A driver and executors of a real standalone cluster are killed in mid-batch while the table is
written; started again from their checkpoints, Delta mirrors and a Parquet sink have every change
once, by each way to stream.

Every 25 of ``TAILER_TORTURE_ROUNDS`` are a round of both kills (one); ``--randomly-seed`` repeats
the moments.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import deltalake
import psutil
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.cluster import ROOT, Cluster
from tests.spark.cluster_program import QUERIES
from tests.support.components import SMALL_TABLES, delta_jars, with_byte_code
from tests.support.waiting import eventually

ROUNDS = max(1, int(os.environ.get("TAILER_TORTURE_ROUNDS", "0")) // 25)
CHECKED_EVERY = 5
PATIENCE_S = 500.0
VERSIONS = 8
VERSION_ROWS = 300
DELTA = ("delta-spark", "delta-storage", "delta-kernel", "unitycatalog", "RoaringBitmap", "jts")


class Orders:
    """A table with a change data feed, and its writer."""

    def __init__(self, folder: Path, dice: random.Random) -> None:
        self.path = str(folder / "orders")
        self.dice = dice
        self.next_id = 0
        schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("amount", pa.float64())])
        self.table = deltalake.DeltaTable.create(
            self.path, schema, configuration={"delta.enableChangeDataFeed": "true"}
        )

    def grow(self, versions: int) -> None:
        """Appends, updates and deletes, each a version."""
        for number in range(versions):
            part = self.dice.randrange(10)
            if number % 3 == 0:
                self._append()
            elif number % 3 == 1:
                self.table.update(predicate=f"id % 10 = {part}", updates={"amount": "amount + 1.0"})
            else:
                self.table.delete(f"id % 20 = {part}")
            self.table.update_incremental()

    @contextmanager
    def growing(self, versions: int) -> Iterator[None]:
        """The same beside the block; it ends when they are written."""
        with ThreadPoolExecutor(1) as threads:
            writing = threads.submit(self.grow, versions)
            yield
            writing.result()

    def _append(self) -> None:
        ids = list(range(self.next_id, self.next_id + VERSION_ROWS))
        amounts = [self.dice.uniform(-1, 1) for _ in ids]
        rows = pa.table({"id": ids, "name": [f"name {i}" for i in ids], "amount": amounts})
        deltalake.write_deltalake(self.table, rows, mode="append")
        self.next_id += VERSION_ROWS


class SparkGaveUp(Exception):
    """Spark could not read a task that it has written itself, as happens on idle machines: a
    collection changed while it was written. The program failed, and is started again."""


class Driver:
    """The program with the queries, on the cluster."""

    def __init__(self, cluster: Cluster, folder: Path, jars: str) -> None:
        self.cluster = cluster
        self.folder = folder
        self.log = folder / "driver.log"
        self.python = with_byte_code(folder)
        self.settings = folder / "settings.json"
        settings = {
            **cluster.settings(),
            "spark.driver.extraClassPath": jars,
            "spark.executor.extraClassPath": jars,
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.sql.session.timeZone": "UTC",
            **SMALL_TABLES,
            "spark.sql.shuffle.partitions": "2",
            # A task whose Python process starts too slowly is tried again.
            "spark.task.maxFailures": "20",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.driver.memory": "1g",
        }
        self.settings.write_text(json.dumps(settings))

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        """The program: Python and its Java are one group, and end together."""
        program = ["-m", "tests.spark.cluster_program", str(self.settings), str(self.folder)]
        with self.log.open("ab") as log:
            self.begun = log.tell()
            process = subprocess.Popen(
                [sys.executable, *program], stdout=log, stderr=log, cwd=ROOT,
                env=self.cluster.environment(self.python), start_new_session=True,
            )  # fmt: skip
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def batches(self) -> list[tuple[int, int]]:
        """How many batches each query has begun, and how many it has done. Spark removes the files
        of old ones, so their numbers say it."""
        found = []
        for query in QUERIES:
            checkpoint = self.folder / "checkpoints" / query
            begun, done = (
                max((int(file.name) for file in (checkpoint / part).glob("[0-9]*")), default=-1)
                for part in ("offsets", "commits")
            )
            found.append((begun + 1, done + 1))
        return found

    def open_batches(self) -> int:
        """How many queries are in the midst of a batch."""
        return sum(begun > done for begun, done in self.batches())

    def wait_for_batches(self, process: subprocess.Popen[bytes], count: int) -> bool:
        """Until a batch more is done, and so many queries are in the midst of one; False if all is
        read before that was seen."""
        before = sum(done for _, done in self.batches())

        def so_far() -> bool:
            if process.poll() is not None:
                return True
            done = sum(done for _, done in self.batches())
            return self.open_batches() >= count and done > before

        eventually(so_far, PATIENCE_S, lambda: f"{self.batches()}\n{self.said()}", pause_s=0.005)
        self._check(process)
        return process.poll() is None

    def finish(self, process: subprocess.Popen[bytes]) -> None:
        """Until the program has read all there is, and ended well."""
        eventually(lambda: process.poll() is not None, PATIENCE_S, self.said)
        self._check(process)

    def complete(self) -> None:
        """Start the program again until it has read all there is."""
        for _ in range(10):
            with suppress(SparkGaveUp), self.running() as process:
                self.finish(process)
                return
        raise AssertionError(self.said())

    def _check(self, process: subprocess.Popen[bytes]) -> None:
        """Raise for a program that has failed."""
        if process.poll():
            if b"java.io.OptionalDataException" in self.log.read_bytes()[self.begun :]:
                raise SparkGaveUp
            raise AssertionError(self.said())

    def said(self) -> str:
        """The causes in the driver's log, its end, and those of the cluster's logs."""
        log = self.log.read_text(errors="replace")
        causes = [line for line in log.splitlines() if "Exception: " in line or "Error: " in line]
        return "\n".join([*causes[-20:], log[-4000:], self.cluster.said()])


def kill_driver(driver: Driver, pause_s: float) -> int | None:
    """Kill a driver in mid-batch; how many queries had a batch open. None: it was not killed."""
    with driver.running() as process:
        if not driver.wait_for_batches(process, 2):
            return None
        time.sleep(pause_s)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    # Its executors hold the workers' cores until they miss it; the next victim must be another's.
    eventually(lambda: not driver.cluster.executors(), PATIENCE_S, driver.said)
    return driver.open_batches()


def kill_executor(driver: Driver, pause_s: float) -> psutil.Process | None:
    """Kill an executor in mid-batch and let the queries come to their end; returns the dead one.
    None: none was killed."""
    with driver.running() as process:
        if not driver.wait_for_batches(process, 1):
            return None
        time.sleep(pause_s)
        victim = eventually(driver.cluster.executors, PATIENCE_S, driver.said)[0]
        victim.kill()
        driver.finish(process)
    return victim


def own_jars() -> str:
    """Delta's own jars; Spark brings the others."""
    own = (jar for jar in delta_jars().split(",") if any(name in Path(jar).name for name in DELTA))
    return ":".join(own)


def rows(frame: DataFrame) -> Counter[tuple[Any, ...]]:
    columns = ("id", "name", "amount", "_change_type", "_commit_version", "_commit_timestamp")
    return Counter(tuple(row) for row in frame.select(*columns).collect())


def check(spark: SparkSession, folder: Path, orders: Orders) -> None:
    """All outputs are exact."""
    expected = orders.table.to_pyarrow_table().sort_by("id")
    for name in ("mirror", "frames"):
        path = str(folder / f"{name}-mirror")
        mirror = deltalake.DeltaTable(path).to_pyarrow_table().sort_by("id")
        assert mirror.equals(expected.select(mirror.schema.names)), name
    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0)
    assert rows(spark.read.parquet(str(folder / "files"))) == rows(feed.load(orders.path))


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    with Cluster(tmp_path / "cluster") as cluster:
        yield Driver(cluster, tmp_path, own_jars())


@pytest.mark.slow
@pytest.mark.timeout(1800 * ROUNDS)
def test_a_driver_and_an_executor_killed_in_mid_batch_leave_exact_tables(
    spark: SparkSession, tmp_path: Path, driver: Driver, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = random.randrange(2**32)
    dice = random.Random(seed)
    orders = Orders(tmp_path, dice)
    seen = Counter[str]()
    # A program that is done before its moment is no failure; one that always is, would be.
    while seen["executors killed"] < ROUNDS and seen["rounds"] <= 2 * ROUNDS:
        orders.grow(VERSIONS)
        # The first of all is at once, for sure in mid-batch; later ones are whenever it may be.
        pauses = [dice.uniform(0.0, 1.0) if seen else 0.0 for _ in range(2)]
        try:
            with orders.growing(VERSIONS // 2):
                opened = kill_driver(driver, pauses[0])
            if opened is not None:
                seen["drivers killed"] += 1
                seen["batches open when the driver died"] += opened
                # A driver that died late has left too few batches for another death.
                orders.grow(VERSIONS)
                victim = kill_executor(driver, pauses[1])
                assert victim is None or not victim.is_running()
                seen["executors killed"] += victim is not None
        except SparkGaveUp:
            seen["given up by Spark"] += 1
            assert seen["given up by Spark"] <= 5 * ROUNDS, driver.said()
            driver.complete()
            continue
        seen["rounds"] += 1
        if seen["rounds"] % CHECKED_EVERY == 0:
            check(spark, tmp_path, orders)
    check(spark, tmp_path, orders)
    assert seen["executors killed"] >= ROUNDS, seen
    assert seen["batches open when the driver died"] >= ROUNDS / 2, seen
    with capsys.disabled():
        print(f"\nseed {seed}: {dict(seen)}")
