"""What tests need from the machine, and what becomes of them where it is missing.

A user who has no Java still gets a run of everything else, with the rest named as skipped. Where
``CI=true`` the same absence is a failure: there, nothing is skipped unseen.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.source import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "DELTA_VERSION",
    "delta_package",
    "free_port",
    "free_ports",
    "java_major",
    "making",
    "require",
    "start_spark",
]

# The Delta that goes with the pyspark of pyproject.toml, and with the older ones; they change
# together.
DELTA_VERSION = "4.4.0"

# `java -version` says 1.8.0 for Java 8, 17.0.15 for Java 17 and 25 for the first Java 25.
JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def require(component: str, present: bool) -> None:  # noqa: FBT001 - reads as one sentence
    """Skip the test that needs ``component`` where it is not ``present``; with CI=true, fail."""
    if present:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"{component} is missing, and with CI=true no test is skipped", pytrace=False)
    pytest.skip(f"{component} is missing")


@contextmanager
def making(name: str) -> Iterator[Path]:
    """The folder ``.cache``, while nobody else makes ``name`` in it: who comes later waits, and
    finds it made."""
    folder = ROOT / ".cache"
    folder.mkdir(exist_ok=True)
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on: see :func:`free_ports`."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """So many ports of 127.0.0.1 that nobody listens on.

    They lie below those that the system gives to connections: none of these takes one before it is
    used, nor while a server that was killed is away. Not by ``random``, whose numbers may be the
    same in every part of a run.
    """
    ports: list[int] = []
    with ExitStack() as held:
        while len(ports) < count:
            port = 20_000 + secrets.randbelow(12_000)
            with suppress(OSError):
                held.enter_context(socket.socket()).bind(("127.0.0.1", port))
                ports.append(port)
    return ports


def java_major() -> int:
    """The major version of the Java that Spark would start; 0 where there is none."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home, "bin"))) if home else shutil.which("java")
    if java is None:
        return 0
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    found = JAVA_VERSION.search(answer.stderr)
    return int(found[1]) if found else 0


def delta_package() -> str:
    """Delta for the Spark that is installed, as Maven knows it."""
    line = ".".join(version("pyspark").split(".")[:2])
    return f"io.delta:delta-spark_{line}_2.13:{DELTA_VERSION}"


def start_spark(folder: Path, python: str = sys.executable) -> SparkSession:
    """A small local Spark with Delta, which keeps whatever it writes in ``folder``; its Python
    processes are begun by ``python``.

    A machine needs the network for the first one, to get Delta's jars.
    """
    from pyspark.sql import SparkSession

    # Workers would otherwise take the first python3 of the PATH.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = python
    builder = SparkSession.builder.appName("delta-tailer tests")
    for key, value in _settings(folder).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _settings(folder: Path) -> dict[str, str]:
    delta = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
    return {
        "spark.master": "local[2]",
        "spark.jars.packages": delta_package(),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": delta,
        # Time zones of the machine must not reach what is compared.
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.extraJavaOptions": f"-Duser.timezone=UTC -Dderby.system.home={folder}",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        # Nothing is reachable from outside the machine, nor depends on its name.
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Test tables are small: more partitions only cost tasks.
        "spark.sql.shuffle.partitions": "1",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.driver.memory": "1g",
    }
