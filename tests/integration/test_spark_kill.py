"""kill -9 of Spark's driver and of an executor, on a real standalone cluster of two workers.

A writer changes a table all the while. The query mirrors it by MERGE, and another one writes every
change to files; what is killed is started again, the driver from its checkpoint. Then both must be
exact.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tailer.spark.source import TailerSource
from tailer.testing.table import TableBuilder
from tests.components import DELTA_PACKAGE, java_major, require

ROUNDS = int(os.environ.get("TAILER_TORTURE_ROUNDS", "0"))
START_S = 300.0  # of Java and Python under load; no assertion is about time
COLUMNS = pa.schema([("id", pa.int64()), ("amount", pa.int64())])

DRIVER = """
import sys
from pyspark.sql import SparkSession
from tailer.spark.mirror import mirror_into
from tailer.spark.source import TailerSource

table, out, master, package = sys.argv[1:]
spark = (
    SparkSession.builder.master(master)
    .config("spark.jars.packages", package)
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "1")
    .config("spark.databricks.delta.snapshotPartitions", "1")
    .config("spark.executor.memory", "512m").config("spark.driver.memory", "1g")
    .config("spark.executor.cores", "1").config("spark.task.maxFailures", "20")
    .getOrCreate()
)
spark.dataSource.register(TailerSource)
def changes():
    reader = spark.readStream.format("tailer").option("startingVersion", 0)
    return reader.option("maxFilesPerTrigger", 3).load(table).writeStream
changes().foreachBatch(mirror_into(out + "/mirror", ["id"], "mirror")).option(
    "checkpointLocation", out + "/checkpoints/mirror").start()
changes().format("parquet").option("path", out + "/files").option(
    "checkpointLocation", out + "/checkpoints/files").start()
print("started", flush=True)
spark.streams.awaitAnyTermination()
"""


class Writer:
    """Changes a table that keeps no change data, and knows what should be in it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.table = TableBuilder(folder, COLUMNS)
        self.table.create()
        self.random = random.Random(seed)
        self.live: dict[str, tuple[dict[str, Any], list[dict[str, int]]]] = {}
        self.next_id = 0

    def step(self) -> None:
        """Insert a file of rows, or rewrite or delete one."""
        actions = []
        if len(self.live) > 3 and self.random.random() < 0.6:
            path = self.random.choice(sorted(self.live))
            add, rows = self.live.pop(path)
            actions.append(self.table.remove(add))
            kept = [r for r in rows if self.random.random() < 0.7]
            rows = [{**r, "amount": r["amount"] + (self.random.random() < 0.5)} for r in kept]
        else:
            rows = [{"id": self.next_id + i, "amount": 0} for i in range(20)]
            self.next_id += 20
        if rows:
            add = self.table.add(rows)
            self.live[str(add["add"]["path"])] = (add, rows)
            actions.append(add)
        self.table.commit(*actions)

    def rows(self) -> list[tuple[int, int]]:
        """What is in the table now."""
        return sorted((r["id"], r["amount"]) for _, rows in self.live.values() for r in rows)


def spark_class(name: str, *arguments: str, log: Path) -> subprocess.Popen[bytes]:
    import pyspark

    home = Path(pyspark.__file__).parent
    environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1",
                   "PYSPARK_PYTHON": sys.executable, "SPARK_NO_DAEMONIZE": "1"}  # fmt: skip
    with log.open("ab") as out:
        return subprocess.Popen(
            [str(home / "bin" / "spark-class"), name, *arguments],
            stdout=out, stderr=out, env=environment,
        )  # fmt: skip


def wait_for(log: Path, text: str, count: int = 1) -> None:
    deadline = time.monotonic() + START_S
    while not log.exists() or log.read_text(errors="replace").count(text) < count:
        assert time.monotonic() < deadline, log.read_text(errors="replace")[-3000:]
        time.sleep(0.1)


def free_port() -> int:
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """One master and two workers of one core each, as processes; gives the master's URL."""
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    log = folder / "cluster.log"
    deploy = "org.apache.spark.deploy"
    processes = [
        spark_class(f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port),
                    "--webui-port", "0", log=log)
    ]  # fmt: skip
    try:
        wait_for(log, "I have been elected leader")
        for number in range(2):
            arguments = ("--webui-port", "0", "--cores", "1", "--memory", "600m", "--host",
                         "127.0.0.1", "--work-dir", str(folder / f"work{number}"), url)  # fmt: skip
            processes.append(spark_class(f"{deploy}.worker.Worker", *arguments, log=log))
        wait_for(log, "Successfully registered with master", 2)
        yield url
    finally:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
            process.kill()
            process.wait()


class Driver:
    """The driver program, in a session of processes of its own."""

    def __init__(self, folder: Path, table: Path, master: str) -> None:
        self.log = folder / "driver.log"
        self.out = folder / "out"
        script = folder / "driver.py"
        script.write_text(DRIVER)
        self.command = [sys.executable, str(script), str(table), str(self.out), master,
                        DELTA_PACKAGE]  # fmt: skip
        self.starts = 0

    def start(self) -> None:
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                self.command, stdout=out, stderr=out, env=environment, start_new_session=True
            )
        self.starts += 1
        wait_for(self.log, "started\n", self.starts)

    def kill(self) -> None:
        """kill -9 of the whole session: Python, Java and the planner's processes."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def batches(self) -> int:
        """How many batches are committed, of both queries."""
        return sum(1 for _ in self.out.glob("checkpoints/*/commits/[0-9]*"))

    def wait_for_batches(self, count: int) -> None:
        deadline, until = time.monotonic() + START_S, self.batches() + count
        while self.batches() < until:
            assert self.process.poll() is None, self.log.read_text(errors="replace")[-3000:]
            assert time.monotonic() < deadline, self.log.read_text(errors="replace")[-3000:]
            time.sleep(0.05)


def executors() -> list[psutil.Process]:
    """The executors of this machine that we started."""
    ours = psutil.Process().children(recursive=True)
    return [p for p in ours if "CoarseGrainedExecutorBackend" in " ".join(_command(p))]


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


@pytest.mark.slow
@pytest.mark.timeout(1800 + 300 * ROUNDS)
@pytest.mark.skipif(not ROUNDS, reason="minutes a round: set TAILER_TORTURE_ROUNDS")
def test_mirror_and_files_are_exact_when_driver_and_executors_are_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    require("Java 17 or newer", java_major() >= 17)
    seed = random.randrange(2**32)
    moments = random.Random(seed)
    writer = Writer(tmp_path / "orders", seed)
    for _ in range(10):
        writer.step()
    with cluster(tmp_path) as master:
        driver = Driver(tmp_path, tmp_path / "orders", master)
        driver.start()
        try:
            for number in range(max(2, min(ROUNDS, 20))):
                for _ in range(10):
                    writer.step()
                driver.wait_for_batches(2)
                time.sleep(moments.uniform(0.0, 1.5))  # somewhere in the next batch
                if number % 2:
                    driver.kill()
                    driver.start()
                else:
                    moments.choice(executors()).kill()
            _wait_for_end(driver, writer.table.version)
        finally:
            driver.kill()
    spark.dataSource.register(TailerSource)
    mirror = spark.read.format("delta").load(str(driver.out / "mirror")).collect()
    assert sorted((row.id, row.amount) for row in mirror) == writer.rows(), f"seed {seed}"
    files = spark.read.parquet(str(driver.out / "files")).collect()
    found = sorted((r._commit_version, r._change_type, r.id, r.amount) for r in files)
    direct = spark.read.format("tailer").option("startingVersion", 0).load(str(tmp_path / "orders"))
    wanted = sorted((r._commit_version, r._change_type, r.id, r.amount) for r in direct.collect())
    assert found == wanted, f"seed {seed}"


def _wait_for_end(driver: Driver, version: int) -> None:
    """Until both queries have committed a batch that ends behind the table's newest version."""
    from tailer.cluster import checkpoint_offset

    deadline = time.monotonic() + START_S + 60
    for name in ("mirror", "files"):
        folder = driver.out / "checkpoints" / name
        while checkpoint_offset(folder).version <= version:
            assert driver.process.poll() is None, driver.log.read_text(errors="replace")[-3000:]
            assert time.monotonic() < deadline, driver.log.read_text(errors="replace")[-3000:]
            time.sleep(0.2)
