"""`format("tailer")` in a real Spark: which versions a frame has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tailer.spark.source import TailerSource
from tailer.testing.table import TableBuilder

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.fixture
def table(tmp_path: Path, spark: SparkSession) -> TableBuilder:
    """Versions 1 and 2 add a row each."""
    spark.dataSource.register(TailerSource)
    built = TableBuilder(tmp_path / "t", SCHEMA)
    built.create()
    for number in (1, 2):
        built.insert([{"id": number, "name": f"n{number}"}])
    return built


def frame(spark: SparkSession, table: TableBuilder, **options: Any) -> DataFrame:
    given = {"startingVersion": 0, **options}
    return spark.read.format("tailer").options(**given).load(str(table.folder))


def ids(found: DataFrame) -> list[int]:
    return sorted(row.id for row in found.select("id").collect())


def test_a_frame_and_a_view_follow_the_table(spark: SparkSession, table: TableBuilder) -> None:
    whole, bounded = frame(spark, table), frame(spark, table, endingVersion=2)
    further, ahead = frame(spark, table, endingVersion=4), frame(spark, table, startingVersion=2)
    whole.createOrReplaceTempView("following")
    for found in (whole, bounded, further):
        assert ids(found) == [1, 2]
    assert ids(ahead) == [2]
    for number in (3, 4, 5):
        table.insert([{"id": number, "name": f"n{number}"}])
    assert ids(whole) == ids(whole.where("id > 0")) == [1, 2, 3, 4, 5]
    assert spark.sql("SELECT count(*) FROM following").first() == (5,)
    assert ids(bounded) == [1, 2]
    assert ids(further) == [1, 2, 3, 4]
    assert ids(ahead) == [2, 3, 4, 5]
    assert whole.unionAll(whole.where("_commit_version = 1")).count() == 6


def test_a_frame_whose_schema_is_no_longer_the_tables_says_so(
    spark: SparkSession, table: TableBuilder
) -> None:
    old, cast = frame(spark, table), frame(spark, table, onSchemaChange="cast")
    assert ids(old) == ids(cast) == [1, 2]
    table.schema = pa.schema([*SCHEMA, ("size", pa.int32())])
    table.commit(table.metadata(), table.add([{"id": 3, "name": "n3", "size": 1}]))
    with pytest.raises(PySparkException, match=r"version 3.*it adds size; make the frame again"):
        old.collect()
    assert ids(cast) == [1, 2, 3]
    assert cast.columns[:3] == ["id", "name", "_change_type"]
    assert [row.size for row in frame(spark, table).orderBy("id").collect()] == [None, None, 1]
