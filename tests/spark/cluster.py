"""A standalone Spark cluster of one master and two workers, as processes on this machine.

    with Cluster(folder) as cluster:
        settings = cluster.settings()  # for the driver's session
        cluster.executors()            # the processes that run its tasks

The jars are those that pyspark brings. Each worker has one core and one executor. With ``pinned``
it also has one of the machine's processors for itself and all that it starts, as if it were a
machine of its own; master and driver run wherever there is room.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import psutil
import pyspark

from tests.support.components import SPARK_PATIENCE, free_port, quick_java
from tests.support.waiting import PATIENCE_S, eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
# After this silence a process counts as dead. Spark's one and two minutes are too few on a busy
# machine.
PATIENT = {"spark.network.timeout": "600s", "spark.worker.timeout": "600"}
START_S = 400.0
JAVA_OPTIONS = quick_java()


class Cluster:
    """A master and its workers, which live as long as the block. ``url`` is the master's.

    ``pinned`` gives each worker a processor of its own, where :func:`can_pin` says so.
    """

    def __init__(self, folder: Path, workers: int = 2, *, pinned: bool = False) -> None:
        self.folder = folder
        self.url = ""
        assert not pinned or can_pin(workers), "no processors to pin the workers to"
        self._pinned = pinned
        self._count = workers
        self._launched: list[subprocess.Popen[bytes]] = []  # the master, then the workers
        self._running = ExitStack()

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._running:
            self._start()
            self._running = self._running.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._running.close()

    def _start(self) -> None:
        port = free_port()
        # An address of its own: the name of the machine may resolve to one that is not reachable.
        self._launch("master", "master.Master", "--port", str(port), "--webui-port", "0")
        self.url = f"spark://127.0.0.1:{port}"
        self._wait_for("master", r"New state: ALIVE", 1)
        for number in range(self._count):
            arguments = ["--cores", "1", "--memory", "1g", "--webui-port", "0"]
            folder = ["--work-dir", str(self.folder / f"work-{number}")]
            with _on_processor(number) if self._pinned else nullcontext():
                self._launch(f"worker-{number}", "worker.Worker", *arguments, *folder, self.url)
        self._wait_for("master", "Registering worker", self._count)

    def _launch(self, name: str, kind: str, *arguments: str) -> None:
        spark_home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
        environment = {
            **os.environ,
            "SPARK_HOME": str(spark_home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{JAVA_OPTIONS} -Dspark.master.rest.enabled=false "
            + " ".join(f"-D{name}={value}" for name, value in PATIENT.items()),
        }
        command = [str(spark_home / "bin/spark-class"), f"org.apache.spark.deploy.{kind}"]
        with self._log(name).open("wb") as log:
            process = subprocess.Popen(
                [*command, "--host", "127.0.0.1", *arguments],
                stdout=log, stderr=subprocess.STDOUT, env=environment,
                cwd=self.folder, start_new_session=True,
            )  # fmt: skip
        self._running.callback(_end, process)
        self._launched.append(process)

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _wait_for(self, name: str, what: str, count: int) -> None:
        log = self._log(name)
        eventually(
            lambda: len(re.findall(what, log.read_text())) >= count,
            START_S,
            self.said,
        )

    def said(self) -> str:
        """The ends of the logs of master, workers and executors."""
        logs = [*self.folder.glob("*.log"), *self.folder.glob("work-*/*/*/stderr")]
        ends = {log.relative_to(self.folder): log.read_text(errors="replace") for log in logs}
        return "\n".join(f"--- {log}:\n{text[-2000:]}" for log, text in sorted(ends.items()))

    def settings(self, *, short_lived: bool = True) -> dict[str, str]:
        """What a driver's session is built with, besides what it wants for itself.

        ``short_lived`` leaves Java's code as it is rather than compiling it well.
        """
        java = {f"spark.{part}.extraJavaOptions": JAVA_OPTIONS for part in ("driver", "executor")}
        return {
            **(java if short_lived else {}),
            **PATIENT,
            "spark.master": self.url,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            # The workers' Python must find this package, wherever the driver's has it from.
            "spark.executorEnv.PYTHONPATH": str(ROOT),
            "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
            # A killed executor's blocks are asked for again and again otherwise.
            "spark.shuffle.io.maxRetries": "1",
            "spark.shuffle.io.retryWait": "100ms",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }

    def environment(self, python: str | Path = sys.executable) -> dict[str, str]:
        """What a driver's process is started with, if ``python`` starts that of Spark."""
        own = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT)}
        own |= SPARK_PATIENCE
        # Of the driver, as its own Python; the executors are told to use the same.
        return {**own, "PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": sys.executable}

    def processes(self) -> list[psutil.Process]:
        """Master and workers, with whose ends all that they have started ends."""
        return [psutil.Process(process.pid) for process in self._launched]

    def executors(self) -> list[psutil.Process]:
        """The executors' Java processes, as far as they run now."""
        found = []
        for worker in self._launched[1:]:
            with_children = psutil.Process(worker.pid).children(recursive=True)
            found += [child for child in with_children if _is_executor(child)]
        return found


@contextmanager
def cluster_session(cluster: Cluster, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """A session of this process on the cluster, with the source registered."""
    from pyspark.sql import SparkSession

    from tailer.spark.source import TailerSource

    os.environ.update(cluster.environment())
    builder = SparkSession.builder.appName("tailer on a cluster")
    for name, value in {**cluster.settings(short_lived=False), **settings}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    session.dataSource.register(TailerSource)
    try:
        yield session
    finally:
        session.stop()


def can_pin(count: int) -> bool:
    """Whether this platform can give so many processes a processor each."""
    return hasattr(os, "sched_setaffinity") and len(os.sched_getaffinity(0)) >= count


@contextmanager
def _on_processor(number: int) -> Iterator[None]:
    """What is started in the block, and what that starts, has this processor and no other."""
    own = os.sched_getaffinity(0)  # of this thread, which is what a child inherits
    os.sched_setaffinity(0, {sorted(own)[number]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


def _is_executor(process: psutil.Process) -> bool:
    try:
        return any("CoarseGrainedExecutorBackend" in part for part in process.cmdline())
    except psutil.NoSuchProcess:
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it has started."""
    try:
        family = [*psutil.Process(process.pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        family = []
    process.kill()
    process.wait()
    for child in family:
        if child.is_running():
            child.kill()
    psutil.wait_procs(family, timeout=PATIENCE_S)
