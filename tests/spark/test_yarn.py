"""`tailer spark` on YARN in cluster mode, by the command of docs/spark-details.md: the nodes have
nothing but what is sent, and a driver that was killed is started again where the feed was."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from tailer.testing.table import TableBuilder
from tests.spark.test_packages import SPARK_HOME, SUBMIT_S, archived_environment, commands
from tests.support.components import SPARK_PATIENCE, java_major, require
from tests.support.waiting import eventually
from tests.support.yarn import Yarn

pytestmark = [pytest.mark.slow, pytest.mark.timeout(SUBMIT_S + 600)]
CONFIG = """
[daemon]
http = ""
state = "{folder}/state"
[feeds.orders]
table = "{folder}/orders"
from = "earliest"
sink = {{ type = "sqlite", path = "{folder}/copy.db", mode = "log" }}
"""
#: Less than Spark's gigabyte for each, on one machine.
SMALL = "--conf spark.driver.memory=600m --conf spark.executor.memory=600m"


@pytest.fixture(scope="module")
def yarn() -> Iterator[Yarn]:
    """One YARN for the tests of this file."""
    require("Java 17 or newer", java_major() >= 17)
    with Yarn() as running:
        yield running


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    """A table of three rows, and beside it what is sent."""
    made = TableBuilder(tmp_path / "orders", pa.schema([("id", pa.int64())]), cdf=True)
    made.create()
    made.insert([{"id": 1}])
    made.insert([{"id": 2}, {"id": 3}])
    (tmp_path / "tailer.toml").write_text(CONFIG.format(folder=tmp_path))
    archived_environment(tmp_path)
    return made


@contextmanager
def submitted(yarn: Yarn, folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The page's command, with arguments of the pipeline's own."""
    staging = f"--conf spark.yarn.stagingDir=file://{folder}/staging"
    one = "--conf spark.executor.instances=1"
    (command,) = commands("--master yarn --deploy-mode cluster", "")
    command = command.replace("start.py", f"{SMALL} {one} {staging} start.py")
    with (folder / "submit.log").open("w") as log:
        process = subprocess.Popen(
            ["sh", "-c", f"exec {command} {' '.join(arguments)}"],
            cwd=folder, stdout=log, stderr=log, text=True,
            env={
                "HADOOP_CONF_DIR": str(yarn.folder),
                "HOME": str(folder),
                "JAVA_HOME": os.environ.get("JAVA_HOME", ""),
                "PATH": f"{SPARK_HOME / 'bin'}:{os.environ['PATH']}",
                "SPARK_HOME": str(SPARK_HOME),
                "SPARK_LOCAL_IP": "127.0.0.1",
                **SPARK_PATIENCE,
            },
        )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def delivered(folder: Path) -> list[int]:
    """The ids of all events, in order."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(folder / "copy.db")) as copy:
        return [row[0] for row in copy.execute("SELECT id FROM orders ORDER BY id")]
    return []


def drivers() -> list[psutil.Process]:
    """The drivers' Python processes on the node."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if words[:1] != ["sh"] and words[1:] and words[1].endswith("start.py"):
            found.append(process)
    return found


def test_what_there_is_is_delivered_by_what_was_sent(yarn: Yarn, table: TableBuilder) -> None:
    folder = table.folder.parent
    # All is read by the executors, and no more than there is.
    with submitted(yarn, folder, "--available-now", "--driver-bytes-max", "0") as process:
        assert process.wait(SUBMIT_S) == 0, (folder / "submit.log").read_text()[-3000:]
    assert yarn.find_application()["finalStatus"] == "SUCCEEDED"
    assert delivered(folder) == [1, 2, 3]


def test_a_driver_that_was_killed_is_started_again_where_the_feed_was(
    yarn: Yarn, table: TableBuilder
) -> None:
    folder = table.folder.parent
    with submitted(yarn, folder, "--driver-bytes-max", "0"):

        def said() -> str:
            return (folder / "submit.log").read_text()[-3000:]

        eventually(lambda: delivered(folder) == [1, 2, 3], SUBMIT_S, said)
        (driver,) = drivers()
        master = driver.parent()
        assert master is not None
        os.kill(driver.pid, signal.SIGKILL)
        master.kill()
        table.insert([{"id": 4}])
        eventually(lambda: delivered(folder) == [1, 2, 3, 4], SUBMIT_S, said)
        table.insert([{"id": 5}])
        eventually(lambda: delivered(folder) == [1, 2, 3, 4, 5], SUBMIT_S, said)
        application = yarn.find_application()
        assert application["state"] == "RUNNING"
        yarn.kill_application(application["id"])
        eventually(lambda: not drivers(), SUBMIT_S, said)
