"""A Spark Connect server with Delta: a process of its own, on a free port of this machine."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.support.components import delta_jars, free_port, with_byte_code
from tests.support.source import ROOT
from tests.support.waiting import eventually

PATIENCE_S = 300.0
SETTINGS = {
    "spark.master": "local[2]",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.ui.enabled": "false",
}


@contextmanager
def connect_server(python: Path, folder: Path) -> Iterator[str]:
    """Its address; ``python`` is that of its workers, which has PySpark's own packages too."""
    (home,) = python.parent.parent.glob("lib/python*/site-packages/pyspark")
    port = free_port()
    settings = {
        **SETTINGS,
        "spark.jars": delta_jars(),
        "spark.connect.grpc.binding.port": str(port),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    confs = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("PY", "SPARK_"))},
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": str(with_byte_code(folder, python)),
        "PYTHONPATH": str(ROOT),
    }
    server = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    with (folder / "server.log").open("wb") as log:
        process = psutil.Popen(
            [str(home / "bin/spark-submit"), *server, *confs, "spark-internal"],
            stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=folder,
        )  # fmt: skip
    try:
        _wait_for(process, port, folder / "server.log")
        yield f"sc://127.0.0.1:{port}"
    finally:
        family = [process, *process.children(recursive=True)]
        process.terminate()
        for left in psutil.wait_procs(family, timeout=30)[1]:
            left.kill()
        process.wait()


def _wait_for(process: psutil.Popen, port: int, log: Path) -> None:
    def listens() -> bool:
        assert process.poll() is None, log.read_text()[-3000:]
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    eventually(listens, PATIENCE_S, lambda: log.read_text()[-3000:], pause_s=0.2)
