"""The source on other PySparks: real ones, each in its own environment.

They take minutes and hundreds of megabytes, so they are for `make torture`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailer.testing.table import TableBuilder
from tests.spark.others import OTHER_LINES, done_by, required_python, run_python

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2400),
    pytest.mark.needs("pyspark-4.0.5", "pyspark-4.1.4", "pyspark-4.2.1"),
]

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
# Types, deletion vectors, column mapping, row ids, variants; and what is refused.
SOME = (
    "cdf_types or cdf_dv or mapping_name_cdf or rowtracking or variant or write_shapes or refused"
)


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    built = TableBuilder(tmp_path / "t", SCHEMA, cdf=True)
    built.create()
    built.insert([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    return built


@pytest.mark.parametrize("version", OTHER_LINES)
def test_the_sources_own_tests_pass_on_other_sparks(version: str) -> None:
    python = required_python(version)
    # Older ones leave sockets to the garbage collector, which is theirs to know.
    leaks = ["ResourceWarning", "pytest.PytestUnraisableExceptionWarning"]
    ignored = [part for leak in leaks for part in ("-W", f"ignore::{leak}")]
    tests = ["tests/spark/test_golden_tables.py", "tests/spark/test_docs.py"]
    options = ["-q", "-p", "no:randomly", "-p", "no:cacheprovider", "--timeout=900", *ignored]
    for test, some in zip(tests, (f"({SOME})", "test"), strict=True):
        finished = run_python(python, "-m", "pytest", *options, "-k", some, test, timeout_s=1100)
        told = finished.stdout[-3000:]
        assert finished.returncode == 0, told
        assert " passed" in told
        assert "skipped" not in told


@pytest.mark.parametrize("version", OTHER_LINES)
@pytest.mark.parametrize("start", [{"startingVersion": "0"}, {}], ids=["changes", "snapshot"])
def test_a_query_moves_to_another_spark_and_back(
    version: str, start: dict[str, str], table: TableBuilder, tmp_path: Path
) -> None:
    other, own = required_python(version), Path(sys.executable)
    step: dict[str, Any] = {
        "options": {"path": str(table.folder), "maxFilesPerTrigger": "1", **start},
        "to": str(tmp_path / "out"),
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    for number, python in enumerate((other, own, other), 3):
        (found,) = done_by(python, "local", step)
        assert "told" not in found, found
        table.insert([{"id": number, "name": "c"}])
    ids = pq.read_table(tmp_path / "out")["id"].to_pylist()
    assert sorted(ids) == [1, 2, 3, 4]


@pytest.mark.parametrize("version", OTHER_LINES)
def test_foreach_batch_has_limits_on_other_sparks(
    version: str, table: TableBuilder, tmp_path: Path
) -> None:
    step: dict[str, Any] = {
        "each": str(table.folder),
        "options": {"startingVersion": 0, "maxVersionsPerTrigger": 2},
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    table.insert([{"id": 3, "name": "c"}])
    python = required_python(version)
    assert done_by(python, "local", step, step) == [{"batches": [[1, 2], [3]]}, {"batches": []}]
