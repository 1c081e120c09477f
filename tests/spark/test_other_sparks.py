"""The source on the older PySparks, and on Spark Connect: real ones, each in its own environment.

They take minutes and hundreds of megabytes, so they are for `make torture`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailer.testing.table import TableBuilder
from tests.components import java_major, require
from tests.golden.test_golden import GoldenCase, golden
from tests.spark.others import OLDER, pyspark_python, run_python

__all__ = ["golden"]  # a fixture

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
PROGRAM = str(Path(__file__).parent / "other_program.py")
# Types, deletion vectors, column mapping, row ids, variants; and what is refused.
SOME = (
    "cdf_types or cdf_dv or mapping_name_cdf or rowtracking or variant or write_shapes or refused"
)


def python_of(version: str, extra: str = "") -> Path:
    require("Java 17 or newer", java_major() >= 17)
    python = pyspark_python(version, extra)
    require(f"pip with an index that has PySpark {version}", python is not None)
    assert python is not None
    return python


def steps(python: Path, kind: str, *wanted: dict[str, Any]) -> list[dict[str, Any]]:
    finished = run_python(python, PROGRAM, kind, json.dumps(wanted))
    assert finished.returncode == 0, finished.stderr[-3000:]
    found: list[dict[str, Any]] = json.loads(finished.stdout.splitlines()[-1])
    return found


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    built = TableBuilder(tmp_path / "t", SCHEMA, cdf=True)
    built.create()
    built.insert([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    return built


@pytest.mark.parametrize("version", OLDER)
def test_the_sources_own_tests_pass_on_older_sparks(version: str) -> None:
    python = python_of(version)
    # Older ones leave sockets to the garbage collector, which is theirs to know.
    leaks = ["ResourceWarning", "pytest.PytestUnraisableExceptionWarning"]
    ignored = [part for leak in leaks for part in ("-W", f"ignore::{leak}")]
    tests = ["tests/spark/test_golden_tables.py", "tests/spark/test_docs.py"]
    options = ["-q", "-p", "no:randomly", "-p", "no:cacheprovider", "--timeout=900", *ignored]
    for test, chosen in zip(tests, (SOME, "not pushed"), strict=True):
        finished = run_python(python, "-m", "pytest", *options, "-k", chosen, test, timeout_s=1100)
        told = finished.stdout[-3000:]
        assert finished.returncode == 0, told
        assert " passed" in told
        assert "skipped" not in told


@pytest.mark.parametrize("version", OLDER)
@pytest.mark.parametrize("start", [{"startingVersion": "0"}, {}], ids=["changes", "snapshot"])
def test_a_query_moves_to_a_newer_spark_and_back(
    version: str, start: dict[str, str], table: TableBuilder, tmp_path: Path
) -> None:
    older, newer = python_of(version), Path(sys.executable)
    step: dict[str, Any] = {
        "options": {"path": str(table.folder), "maxFilesPerTrigger": "1", **start},
        "to": str(tmp_path / "out"),
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    for number, python in enumerate((older, newer, older), 3):
        (found,) = steps(python, "local", step)
        assert "told" not in found, found
        table.insert([{"id": number, "name": "c"}])
    ids = pq.read_table(tmp_path / "out")["id"].to_pylist()
    assert sorted(ids) == [1, 2, 3, 4]


def test_spark_connect_reads_batches_and_streams_and_is_told_one_sentence(
    table: TableBuilder, golden: GoldenCase, tmp_path: Path
) -> None:
    python = python_of("4.2.0", "connect")
    case = golden("types")
    path = str(table.folder)
    query = {
        "options": {"path": path, "startingVersion": "0", "maxFilesPerTrigger": "1"},
        "to": str(tmp_path / "out"),
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    table.insert([{"id": 3, "name": "c"}])
    found = steps(
        python,
        "connect",
        {"options": {"path": path, "startingVersion": "0"}},
        {"options": {"path": str(case.table), "startingVersion": "0"}},
        query,
        query,
        {"options": {"path": path, "startingVersion": "9"}},
    )
    batch, types, first, again, refused = found
    assert batch["ids"] == [1, 2, 3]
    assert batch["columns"][2:] == ["_change_type", "_commit_version", "_commit_timestamp"]
    assert types["rows"] > 10
    assert first["batches"] >= 2
    assert "told" not in again, "it goes on from its checkpoint"
    assert sorted(pq.read_table(tmp_path / "out")["id"].to_pylist()) == [1, 2, 3]
    assert "the starting version is 9, and the newest is 2" in refused["told"].splitlines()[0]
    assert "Traceback" not in refused["told"]
