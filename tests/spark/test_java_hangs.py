"""`tailer spark` while its Java hangs or ends: it answers, obeys, goes on, and ends."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import psutil
import pytest

from tests.spark.test_pipeline import CONFS, lines, one_feed
from tests.support.components import free_port, java_major, require
from tests.support.programs import started
from tests.support.waiting import PATIENCE_S

TOKEN = "a token of this test"


def ask(port: int, method: str, path: str) -> dict[str, str]:
    """What the daemon answers."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)) as client:
        client.request(method, path, headers={"Authorization": f"Bearer {TOKEN}"})
        found: dict[str, str] = json.loads(client.getresponse().read())
        return found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_java_that_hangs_stops_no_order_and_no_end(tmp_path: Path) -> None:
    require("Java 17 or newer", java_major() >= 17)
    config, port = one_feed(tmp_path), free_port()
    control = f'http = "127.0.0.1:{port}"\ntoken = "{TOKEN}"'
    config.write_text(config.read_text().replace('http = ""', control))
    confs = [part for conf in CONFS for part in ("--conf", conf)]
    jobs = ("--driver-bytes-max", "0", "--master", "local[1]", *confs)
    with started("spark", config, *jobs) as running:
        running.wait_until(lambda: any(" runs as local-" in line for line in running.errors))
        (java,) = psutil.Process(running.process.pid).children()
        java.suspend()
        try:
            assert ask(port, "GET", "/api/v1/feeds/o")["state"] != "stopped"
            ask(port, "POST", "/api/v1/feeds/o/stop")
            running.wait_for(lambda: ask(port, "GET", "/api/v1/feeds/o")["state"] == "stopped")
            running.process.terminate()
            assert running.process.wait(PATIENCE_S) == 0
        finally:
            java.kill()  # which has the pipes of the program's output
        assert running.wait() == 0
    assert "Spark's Java has not answered for 10 s" in running.errors[-1]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_java_that_is_killed_while_spark_starts_is_started_again(tmp_path: Path) -> None:
    require("Java 17 or newer", java_major() >= 17)
    config = one_feed(tmp_path)
    confs = [part for conf in CONFS for part in ("--conf", conf)]
    jobs = ("--driver-bytes-max", "0", "--master", "local[1]", *confs)
    with started("spark", config, *jobs) as running:
        children = psutil.Process(running.process.pid).children
        running.wait_for(children)
        children()[0].kill()
        running.wait_for(lambda: lines(config, "o"))
        assert running.stop() == 0
    assert any("its Java may have been killed" in line for line in running.errors)


#: A session whose Java is killed while no job runs.
KILLED = """
import sys

import anyio
import psutil

from tailer.errors import TailerError, TransientError
from tailer.spark.hadoop_store import HadoopStore
from tailer.spark.pipeline.cluster import ClusterOptions, SparkCluster


async def main() -> None:
    conf = dict(each.split("=", 1) for each in sys.argv[1:])
    cluster = SparkCluster(ClusterOptions(master="local[2]", conf=conf))
    assert await cluster.warm_up() == 2
    store = HadoopStore(await cluster.ensure_session(), "file:/tmp")
    await store.entries("file:/tmp")
    (java,) = psutil.Process().children()
    java.kill()
    java.wait()
    try:
        await store.entries("file:/tmp")
    except TailerError as e:
        print(e)
    try:
        await cluster.warm_up()
    except TransientError as e:
        print(e)
    print(await cluster.warm_up(), await cluster.aclose())


anyio.run(main)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_java_that_is_killed_between_two_jobs_is_started_again() -> None:
    require("Java 17 or newer", java_major() >= 17)
    found = subprocess.run(
        [sys.executable, "-c", KILLED, *CONFS], text=True, capture_output=True, check=False
    )
    assert found.returncode == 0, found.stderr
    of_store, of_cluster, after = found.stdout.splitlines()
    assert "the Java of the Spark session has ended" in of_store
    assert of_cluster.startswith("Spark's session is gone (")
    assert after == "2 True"
