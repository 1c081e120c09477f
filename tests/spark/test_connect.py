"""Batches, streams and a mirror by Spark Connect: a client, and a server of its own.

The packages that Connect needs come with an environment of their own; so it is for `make torture`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailer.testing.table import TableBuilder
from tests.golden.test_golden import GoldenCase
from tests.spark.connect import connect_server
from tests.spark.others import OWN, done_by, required_python

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2400),
    pytest.mark.needs("pyspark-pipelines-4.2.0"),
]

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.fixture(scope="module")
def python() -> Path:
    """Python with the tests' own PySpark, and what its client needs."""
    return required_python(OWN, "pipelines")


@pytest.fixture(scope="module")
def server(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server's address."""
    with connect_server(python, tmp_path_factory.mktemp("connect")) as url:
        yield url


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    built = TableBuilder(tmp_path / "t", SCHEMA, cdf=True)
    built.create()
    built.insert([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    built.insert([{"id": 3, "name": "c"}])
    return built


def test_batches_and_streams_are_as_in_classic_sessions(
    python: Path, server: str, table: TableBuilder, golden: GoldenCase, tmp_path: Path
) -> None:
    case = golden("types")
    path = str(table.folder)
    query = {
        "options": {"path": path, "startingVersion": "0", "maxFilesPerTrigger": "1"},
        "to": str(tmp_path / "out"),
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    found = done_by(
        python,
        server,
        {"options": {"path": path, "startingVersion": "0"}},
        {"options": {"path": str(case.table), "startingVersion": "0"}},
        query,
        query,
        {"options": {"path": path, "startingVersion": "9"}},
        {"each": path, "options": {}, "checkpoint": str(tmp_path / "each")},
    )
    batch, types, first, again, refused, each = found
    assert batch["ids"] == [1, 2, 3]
    assert batch["columns"][2:] == ["_change_type", "_commit_version", "_commit_timestamp"]
    assert types["rows"] > 10
    assert first["batches"] >= 2
    assert "told" not in again, "it goes on from its checkpoint"
    assert sorted(pq.read_table(tmp_path / "out")["id"].to_pylist()) == [1, 2, 3]
    assert "the starting version is 9, and the newest is 2" in refused["told"].splitlines()[0]
    assert "Traceback" not in refused["told"]
    assert each["told"].startswith("[config] foreach_batch plans beside Spark, which Spark Connect")
    assert not (tmp_path / "each").exists()


def test_a_mirror_follows_by_foreach_batch(
    python: Path, server: str, table: TableBuilder, tmp_path: Path
) -> None:
    mirror = str(tmp_path / "mirror")
    follow = {
        "options": {"path": str(table.folder), "maxFilesPerTrigger": "1"},
        "mirror": mirror,
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    (first,) = done_by(python, server, follow)
    assert "told" not in first, first
    table.insert([{"id": 4, "name": "d"}])
    again, rows = done_by(
        python, server, follow, {"options": {"path": mirror, "startingVersion": "snapshot"}}
    )
    assert "told" not in again, again
    assert rows["ids"] == [1, 2, 3, 4]
