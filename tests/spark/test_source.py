"""`format("tailer")` in a real Spark: which versions a frame has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tailer.spark.source import TailerSource
from tailer.testing.table import TableBuilder
from tests.support.pages import blocks

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


@pytest.fixture
def plain(spark: SparkSession) -> Iterator[SparkSession]:
    """The session with Spark's own catalog: beside Delta's, Spark reads no table of a source in
    Python."""
    name = "spark.sql.catalog.spark_catalog"
    delta = str(spark.conf.get(name))
    spark.conf.set(name, "builtin")
    yield spark
    spark.conf.set(name, delta)


def test_a_table_of_the_catalog_gives_sql_the_changes(
    plain: SparkSession, table: TableBuilder
) -> None:
    """It outlives the query that made it, takes options of a query, and drops nothing."""
    made = f"CREATE TABLE feed USING tailer OPTIONS (path '{table.folder}', startingVersion '0'"
    plain.sql(f"{made}) COMMENT 'the feed' TBLPROPERTIES ('team' = 'sales')")
    plain.sql(made.replace("feed", "part") + ", onSchemaChange 'cast', columns 'id')")
    named = f"OPTIONS (table '{table.folder}', startingVersion '1')"
    plain.sql(f"CREATE TABLE named USING tailer {named}")
    try:
        count = "SELECT count(*), max(id) FROM "
        assert plain.sql(f"{count} feed").first() == (2, 2)
        assert plain.sql(f"{count} named WHERE _change_type = 'insert'").first() == (2, 2)
        assert plain.sql(f"{count} feed WITH (endingVersion = 1)").first() == (1, 1)
        assert plain.sql("SELECT * FROM part").columns[:2] == ["id", "_change_type"]
        table.insert([{"id": 3, "name": "n3"}])
        assert plain.sql(f"{count} feed").first() == (3, 3)
        assert plain.table("feed").where("_commit_version = 3").first().name == "n3"  # type: ignore[union-attr]
        table.schema = pa.schema([*SCHEMA, ("size", pa.int32())])
        table.commit(table.metadata(), table.add([{"id": 4, "name": "n4", "size": 1}]))
        with pytest.raises(PySparkException, match=r"it does not have size; .* .DROP TABLE"):
            plain.sql(f"{count} feed").collect()
        assert plain.sql(f"{count} part").first() == (4, 4)
        plain.sql("DROP TABLE feed")
        assert (table.folder / "_delta_log").is_dir()
    finally:
        for name in ("feed", "part", "named"):
            plain.sql(f"DROP TABLE IF EXISTS {name}")


def test_the_statements_of_the_guide(plain: SparkSession, table: TableBuilder) -> None:
    (block,) = blocks("docs/spark.md", "sql")
    text = block.text.replace("/data/orders", str(table.folder))
    # Versions that the table has.
    text = text.replace("> 41", "> 0").replace("endingVersion = 50", "endingVersion = 1")
    text = text.replace("2026-01-31 12:00:00", "1970-01-01 00:00:00")
    made, counted, ended, view = text.removesuffix(";\n").split(";\n")
    plain.sql(made)
    try:
        assert [tuple(row) for row in plain.sql(counted).collect()] == [("insert", 2)]
        assert plain.sql(ended).count() == 1
        plain.sql(view)
        assert plain.table("recent").count() == 2
    finally:
        plain.sql("DROP TABLE IF EXISTS order_changes")
        plain.sql("DROP VIEW IF EXISTS recent")


def test_what_a_catalog_is_not_to_keep_and_what_it_has_not_kept(
    plain: SparkSession, table: TableBuilder
) -> None:
    secret = "OPTIONS (table 's3://lake/t', `store.secret_access_key` 'hush')"
    with pytest.raises(PySparkException, match="the catalog would show the option") as refused:
        plain.sql(f"CREATE TABLE secret USING tailer {secret}")
    assert "hush" not in str(refused.value)
    plain.sql(f"CREATE TABLE bare (id BIGINT) USING tailer OPTIONS (path '{table.folder}')")
    try:
        with pytest.raises(PySparkException, match="leave the columns out"):
            plain.sql("SELECT * FROM bare").collect()
    finally:
        plain.sql("DROP TABLE bare")
