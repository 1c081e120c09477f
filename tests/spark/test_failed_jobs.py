"""What the failure of a job of Spark says: the cause, and what to do about it."""

from __future__ import annotations

import sys
from pathlib import Path

import py4j  # type: ignore[import-untyped]
import pyspark
import pytest

from tests.spark.test_pipeline import one_feed, run_spark
from tests.support.components import java_major, require

#: A Python that has Spark's package and not this one.
BARE = """#!/bin/sh
PYTHONPATH={spark} exec {python} -S "$@"
"""


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
