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
        # foreach_batch needs PySpark 4.2.
        chosen = some if version >= "4.2" else f"{some} and not by_frames and not mirror_history"
        finished = run_python(python, "-m", "pytest", *options, "-k", chosen, test, timeout_s=1100)
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
    if version < "4.2":
        ahead = {"ahead": str(table.folder), "checkpoint": str(tmp_path / "ahead")}
        (found,) = done_by(other, "local", ahead)
        assert found["told"].startswith(
            f"[config] foreach_batch needs PySpark 4.2, and this is {version}"
        )
