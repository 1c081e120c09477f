"""What the failure of a job of Spark says: the cause, and what to do about it."""

from __future__ import annotations

import sys
from pathlib import Path

import py4j  # type: ignore[import-untyped]
import pyspark
import pytest
from pyspark.errors import PySparkException

from tailer.errors import TransientError
from tailer.spark.pipeline.cluster import convert_error
from tests.spark.test_pipeline import one_feed, run_spark
from tests.support.components import java_major, require

#: What Java says of a job, before the reason.
FAILED = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 4.0 failed 1 \
times, most recent failure: Lost task 0.0 in stage 4.0 (TID 5) (127.0.0.1 executor driver): """
PYTHON = "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
#: A worker that was killed, or a Java, as different threads of Java and Python meet it.
PASSING = [
    "java.io.IOException: Stream closed",
    "java.io.IOException: Broken pipe",
    "java.net.SocketException: Connection reset",
    "java.io.EOFException",
    "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)",
    "ExecutorLostFailure (executor 1 exited caused by one of the running tasks)",
    "java.util.ConcurrentModificationException",
    'java.io.IOException: Cannot run program "python3": error=12, Cannot allocate memory',
    f"{PYTHON}EOFError",
    f"{PYTHON}ConnectionResetError: [Errno 104] Connection reset by peer",
    f"{PYTHON}BrokenPipeError: [Errno 32] Broken pipe",
]
#: What somebody must do something about, or what is a fault of this project.
LASTING = [
    'java.io.IOException: Cannot run program "python3": error=2, No such file or directory',
    "java.lang.OutOfMemoryError: Java heap space",
    f"{PYTHON}ModuleNotFoundError: No module named 'tailer'",
    f"{PYTHON}TypeError: unsupported operand type(s)",
    "Serialized task 3:0 was 200000000 bytes, which exceeds max allowed: spark.rpc.message.maxSize",
]
#: A Python that has Spark's package and not this one.
BARE = """#!/bin/sh
PYTHONPATH={spark} exec {python} -S "$@"
"""


@pytest.mark.parametrize("reason", PASSING)
def test_a_worker_that_is_gone_is_tried_again(reason: str) -> None:
    assert isinstance(convert_error(PySparkException(FAILED + reason)), TransientError)


@pytest.mark.parametrize("reason", LASTING)
def test_what_does_not_pass_ends_the_feed(reason: str) -> None:
    assert not isinstance(convert_error(PySparkException(FAILED + reason)), TransientError)


def test_a_fault_in_the_driver_ends_the_feed() -> None:
    assert not isinstance(convert_error(TypeError("no such thing")), TransientError)
    assert isinstance(convert_error(MemoryError()), TransientError)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_executors_without_the_package_are_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require("Java 17 or newer", java_major() >= 17)
    spark, bare = tmp_path / "spark", tmp_path / "python"
    spark.mkdir()
    for package in (pyspark, py4j):
        folder = Path(package.__path__[0])
        (spark / folder.name).symlink_to(folder)
    bare.write_text(BARE.format(spark=spark, python=sys.executable))
    bare.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(bare))
    ended = run_spark(one_feed(tmp_path))
    assert ended.returncode == 1
    assert "; the executors' Python must have this package: install it there" in ended.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_results_that_are_too_large_name_the_setting(tmp_path: Path) -> None:
    require("Java 17 or newer", java_major() >= 17)
    ended = run_spark(one_feed(tmp_path), "--conf", "spark.driver.maxResultSize=1b")
    assert ended.returncode == 1
    assert "maxResultSize (1.0 B); lower --partition-bytes-max" in ended.stdout
