"""The declarative pipeline of docs/spark-details.md, by Spark's own ``spark-pipelines``.

It needs packages that only Spark Connect uses, and a minute; so it is for `make torture`.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailer.testing.table import TableBuilder
from tests.spark.others import OWN, required_python
from tests.support.source import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2400),
    pytest.mark.needs("pyspark-pipelines-4.2.0"),
]

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
COMMAND = ["spark-pipelines", "run", "--conf", "spark.sql.catalogImplementation=hive"]
HEADING = "\n## In a declarative pipeline\n"


@pytest.fixture(scope="module")
def python() -> Path:
    """Python with the tests' own PySpark and what its pipelines need."""
    return required_python(OWN, "pipelines")


def project(folder: Path) -> None:
    """The guide's two files, with its /data in the folder."""
    guide = (ROOT / "docs" / "spark-details.md").read_text(encoding="utf-8")
    section = guide.split(HEADING)[1].split("\n## ")[0]
    spec, code, _ = re.findall(r"```\w*\n(.*?)```", section, re.DOTALL)
    assert " ".join(COMMAND) in section
    (folder / "transformations").mkdir()
    for name, text in (("spark-pipeline.yaml", spec), ("transformations/orders.py", code)):
        (folder / name).write_text(text.replace("/data/", f"{folder}/"), encoding="utf-8")


def run(python: Path, folder: Path) -> str:
    """One run of the pipeline; what it said."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PY", "SPARK_"))}
    environment = {
        **inherited,
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": str(python),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    finished = subprocess.run(
        [*COMMAND, "--conf", "spark.ui.enabled=false", "--remote", "local[2]"],
        cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    told = finished.stdout + finished.stderr
    assert finished.returncode == 0, told[-3000:]
    return told


def test_the_guides_pipeline_goes_on_where_it_ended(python: Path, tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "orders", SCHEMA, cdf=True)
    table.create()
    table.insert([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    project(tmp_path)
    assert "Run is COMPLETED" in run(python, tmp_path)
    table.insert([{"id": 3, "name": "c"}])
    assert "Run is COMPLETED" in run(python, tmp_path)
    found = pq.read_table(tmp_path / "spark-warehouse" / "order_changes")
    rows = zip(*(found[name].to_pylist() for name in ("_commit_version", "id")), strict=True)
    assert sorted(rows) == [(1, 1), (1, 2), (2, 3)], "each change once, by two runs"
    counted = pq.read_table(tmp_path / "spark-warehouse" / "changes_by_type").to_pylist()
    assert counted == [{"_change_type": "insert", "rows": 3}]
