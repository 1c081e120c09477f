"""What a query's own process does before its first batch: Spark starts one for each query."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadMaxFiles

from tailer.spark.error_sentence import TailerSourceError
from tailer.spark.source import TailerSource
from tailer.spark.source.limited_stream import LimitedStreamReader
from tailer.testing.table import TableBuilder

SCHEMA = pa.schema([("id", pa.int64())])

# Plans a batch of the table that is named, as Spark's process of the source does.
PLAN = """
import sys
from pyspark.sql.streaming.datasource import ReadMaxFiles
from tailer.spark.source import TailerSource

source = TailerSource({"path": sys.argv[1], "startingVersion": "0"})
reader = source.streamReader(source.schema())
reader.prepareForTriggerAvailableNow()
start = reader.initialOffset()
end = reader.latestOffset(start, ReadMaxFiles(1000))
assert reader.partitions(start, end)
# And forgets to end it: the process ends all the same.
print(*sorted(sys.modules))
"""


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    built = TableBuilder(tmp_path / "orders", SCHEMA, cdf=True)
    built.create()
    built.insert([{"id": 1}])
    built.insert([{"id": 2}])
    return built


def reader(table: TableBuilder) -> LimitedStreamReader:
    source = TailerSource({"path": str(table.folder), "startingVersion": "0"})
    found = source.streamReader(source.schema())
    assert isinstance(found, LimitedStreamReader)
    return found


def ids(stream: LimitedStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    batches = (batch for task in stream.partitions(start, end) for batch in stream.read(task))
    return sorted(row["id"] for batch in batches for row in batch.to_pylist())


def test_planning_loads_nothing_that_only_executors_need(table: TableBuilder) -> None:
    planned = [sys.executable, "-c", PLAN, str(table.folder)]
    done = subprocess.run(planned, capture_output=True, text=True, check=True, timeout=500)
    loaded = done.stdout.split()
    assert "tailer.plan.rules" in loaded
    heavy = {"duckdb", "aiobotocore", "aiohttp", "pandas", "pyarrow.parquet"}
    assert heavy.isdisjoint(loaded)
    decoders = ("decode.rows", "decode.tracking", "decode.vectors", "decode.variant")
    for name in (*decoders, "compare.diff", "compare.engine"):
        assert importlib.util.find_spec(f"tailer.{name}"), "what is not there is never loaded"
        assert f"tailer.{name}" not in loaded


def test_a_batch_is_planned_once_and_after_a_restart_again(table: TableBuilder) -> None:
    stream, limit = reader(table), ReadMaxFiles(1000)
    end = stream.latestOffset(stream.initialOffset(), limit)
    table.commit_path(1).rename(table.folder / "aside")
    assert ids(stream, stream.initialOffset(), end) == [1, 2]
    # What was kept is used once: whoever asks again reads the log.
    with pytest.raises(TailerSourceError, match=r"\[data_loss\].* the commit is missing"):
        stream.partitions(stream.initialOffset(), end)
    (table.folder / "aside").rename(table.commit_path(1))
    assert ids(reader(table), stream.initialOffset(), end) == [1, 2]


def test_a_plan_is_only_used_for_its_own_batch(table: TableBuilder) -> None:
    stream = reader(table)
    start = stream.initialOffset()
    first = stream.latestOffset(start, ReadMaxFiles(1))
    second = stream.latestOffset(first, ReadMaxFiles(1))
    for place, end, wanted in ((start, second, [1, 2]), (first, second, [2]), (start, first, [1])):
        assert ids(stream, place, end) == wanted


def test_the_lag_is_told_from_the_listing_of_the_same_trigger(table: TableBuilder) -> None:
    stream = reader(table)
    stream.latestOffset(stream.initialOffset(), ReadMaxFiles(1))
    table.insert([{"id": 3}])
    assert stream.reportLatestOffset()["version"] == 3
    assert stream.reportLatestOffset()["version"] == 4
