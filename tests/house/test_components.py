"""The helpers that other tests rest on are themselves tested."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.components import free_ports, java_major, require
from tests.support.source import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_present_component_lets_the_test_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    require("Java 17", present=True)


def test_a_missing_component_is_skipped_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="Java 17 is missing"):
        require("Java 17", present=False)


def test_a_missing_component_fails_where_ci_is_true(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="Java 17 is missing"):
        require("Java 17", present=False)


@pytest.mark.parametrize(
    ("answer", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ("Error: could not find libjava.so", 0),
    ],
)
def test_java_is_known_by_what_it_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: str, major: int
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{answer}' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java_major() == major


def test_no_java_is_version_zero(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java_major() == 0


def test_spark_writes_delta_and_its_change_feed(spark: SparkSession, tmp_path: Path) -> None:
    table = f"delta.`{tmp_path / 'table'}`"
    spark.sql(
        f"CREATE TABLE {table} (id BIGINT) USING delta "
        "TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"
    )
    spark.sql(f"INSERT INTO {table} VALUES (1), (2)")
    spark.sql(f"DELETE FROM {table} WHERE id = 1")
    changes = (
        spark.read.format("delta")
        .option("readChangeFeed", "true")
        .option("startingVersion", 1)
        .load(str(tmp_path / "table"))
        .orderBy("_commit_version", "id")
    )
    found = [(row["id"], row["_change_type"]) for row in changes.collect()]
    assert found == [(1, "insert"), (2, "insert"), (1, "delete")]
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_a_port_is_given_once_on_this_machine() -> None:
    program = "from tests.support.components import free_ports; print(*free_ports(200)); input()"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        theirs = {int(port) for port in other.stdout.readline().split()}
        ours = free_ports(200)
        other.communicate("\n")
    assert len(theirs) == 200
    assert len(set(ours)) == 200
    assert not theirs & set(ours)
