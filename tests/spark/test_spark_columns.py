"""Spark's own reader for every kind of column: its rows are those of the decoder, which has them
from elsewhere, and with which the answers of Spark's change data feed are compared."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from tailer.spark import changes
from tailer.testing.table import TableBuilder
from tests.clouds.copies import unpacked
from tests.golden.compare import difference
from tests.golden.test_golden import hold
from tests.spark.test_frames import files_read, hold_alike, plan
from tests.support.extent import rest_slow
from tests.support.source import ROOT

ARCHIVES = ROOT / "tests" / "golden" / "data"
#: Tables that Spark made, and whether it reads all of their rows itself.
TABLES = {
    "cdf_overwrite_schema": True,
    "cdf_partition_types": False,
    "cdf_schema_evolution": False,
    "cdf_types": True,
    "iceberg_compat": False,
    "legacy_format": False,
    "mapping_back": True,
    "mapping_id_cdf": True,
    "mapping_name_cdf": True,
    "mapping_nested": False,
    "mapping_removed": True,
    "mapping_upgraded": False,
    "partition_widened": True,
    "rowtracking_cdf": True,
    "special_columns": False,
    "type_widening_cdf": True,
}
QUICK = {"cdf_partition_types", "cdf_types", "mapping_back", "mapping_nested", "special_columns"}


@pytest.mark.parametrize("name", rest_slow(TABLES, *QUICK))
def test_the_rows_of_every_kind_of_table_are_the_decoders(
    name: str, spark: SparkSession, tmp_path: Path
) -> None:
    original = unpacked(ARCHIVES / f"{name}.tar.gz", tmp_path)
    options = {"startingVersion": original.first, "onSchemaChange": "cast"}
    hold_alike(spark, original.table, **options)
    planned = plan(changes(spark, original.table, **options))
    assert ("MapInArrow" not in planned) == TABLES[name]


def made(folder: Path, *schemas: pa.Schema, **options: Any) -> TableBuilder:
    """A table whose schema has changed; each version but the first has a row of its schema."""
    built = TableBuilder(folder / "t", schemas[0], cdf=True, **options)
    built.create()
    for number, schema in enumerate(schemas):
        built.schema = schema
        row = {name: value_of(schema.field(name).type, number) for name in schema.names}
        built.commit(*([built.metadata()] if number else []), built.add([row]))
    return built


def value_of(kind: pa.DataType, number: int) -> Any:
    if pa.types.is_struct(kind):
        return {field.name: value_of(field.type, number) for field in kind}
    if pa.types.is_list(kind):
        return [value_of(kind.value_type, number)] * 2
    if pa.types.is_map(kind):
        return [("k", value_of(kind.item_type, number))]
    return f"text {number}" if pa.types.is_string(kind) else number


def by_spark_alone(spark: SparkSession, table: TableBuilder, **options: Any) -> pa.Table:
    """The rows, which must be the decoder's, and all of them Spark's."""
    found = hold_alike(spark, table.folder, **options)
    assert "MapInArrow" not in plan(changes(spark, table.folder, startingVersion=0, **options))
    return found


INT, TEXT = pa.int64(), pa.string()
NESTED = pa.struct([("x", INT), ("y", TEXT)])


def test_a_column_that_came_later_is_null(spark: SparkSession, tmp_path: Path) -> None:
    narrow = pa.schema([("id", INT)])
    wide = pa.schema([("id", INT), ("name", TEXT), ("inner", NESTED), ("tags", pa.list_(INT))])
    found = by_spark_alone(spark, made(tmp_path, narrow, wide))
    assert sorted(found["name"].to_pylist(), key=str) == [None, "text 1"]


def test_nested_columns_and_what_is_chosen_of_them(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([
        ("id", INT), ("inner", NESTED), ("tags", pa.list_(NESTED)), ("by", pa.map_(TEXT, NESTED)),
    ])  # fmt: skip
    table = made(tmp_path, schema, schema)
    by_spark_alone(spark, table)
    frame = changes(spark, table.folder, startingVersion=0).where("id = 1").select("inner.y")
    assert "ReadSchema: struct<id:bigint,inner:struct<y:string>>" in plan(frame)
    assert [row.y for row in frame.collect()] == ["text 1"]


def test_a_struct_that_lacks_a_field_is_the_decoders(spark: SparkSession, tmp_path: Path) -> None:
    """Spark can't tell a struct without the wanted fields from none."""
    narrow = pa.schema([("id", INT), ("inner", pa.struct([("x", INT)]))])
    table = made(tmp_path, narrow, pa.schema([("id", INT), ("inner", NESTED)]))
    hold_alike(spark, table.folder)
    frame = changes(spark, table.folder, startingVersion=0)
    chosen = frame.where("inner IS NOT NULL").select("inner.y")
    assert sorted((row.y for row in chosen.collect()), key=str) == [None, "text 1"]


def test_texts_of_a_fixed_length_are_padded(spark: SparkSession, tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", pa.schema([("id", INT), ("code", TEXT)]), cdf=True)
    metadata = table.metadata()
    declared = '"metadata":{"__CHAR_VARCHAR_TYPE_STRING":"char(4)"}'
    text = metadata["metaData"]["schemaString"].replace(" ", "")
    at = text.index('"code"')
    metadata["metaData"]["schemaString"] = text[:at] + text[at:].replace(
        '"metadata":{}', declared, 1
    )
    table.commit(table.protocol(), metadata)
    table.commit(table.add([{"id": 1, "code": "ab"}, {"id": 2, "code": "abcd"}]))
    found = by_spark_alone(spark, table)
    assert found["code"].to_pylist() == ["ab  ", "abcd"]
    frame = changes(spark, table.folder, startingVersion=0).where("code = 'ab  '")
    assert frame.count() == 1


def test_times_without_a_zone(spark: SparkSession, tmp_path: Path) -> None:
    archive = unpacked(ARCHIVES / "cdf_types.tar.gz", tmp_path)
    frame = changes(spark, archive.table, startingVersion=archive.first)
    assert "timestamp_ntz" in frame.schema.simpleString()
    assert "MapInArrow" not in plan(frame)


def mapped(spark: SparkSession, folder: Path, mode: str) -> str:
    """A table of Spark's whose two columns have swapped their names."""
    table = f"delta.`{folder}/mapped`"
    spark.sql(
        f"CREATE TABLE {table} (a BIGINT, b BIGINT, inner STRUCT<x: BIGINT, y: STRING>) "
        f"USING delta TBLPROPERTIES (delta.columnMapping.mode = '{mode}', "
        "delta.enableChangeDataFeed = true)"
    )
    values = "(1, 10, named_struct('x', 1, 'y', 'one')), (2, 20, named_struct('x', 2, 'y', 'two'))"
    spark.sql(f"INSERT INTO {table} VALUES {values}")
    for old, new in (("a", "c"), ("b", "a"), ("c", "b"), ("inner.y", "z")):
        spark.sql(f"ALTER TABLE {table} RENAME COLUMN {old} TO {new}")
    spark.sql(f"INSERT INTO {table} VALUES (30, 3, named_struct('x', 3, 'z', 'three'))")
    return f"{folder}/mapped"


@pytest.mark.parametrize("mode", ["name", pytest.param("id", marks=pytest.mark.slow)])
def test_conditions_and_columns_of_renamed_columns(
    mode: str, spark: SparkSession, tmp_path: Path
) -> None:
    table = mapped(spark, tmp_path, mode)
    hold_alike(spark, Path(table))
    frame = changes(spark, table, startingVersion=0)
    assert "MapInArrow" not in plan(frame)
    # Under the old names, the first condition holds for no row of the first files.
    for condition in ("a >= 10", "a IN (10, 20, 30)", "NOT (b > 3 OR a < 10)", "a = 10 OR b = 30"):
        found = frame.where(condition).select("b", "inner.z")
        wanted = changes(spark, table, startingVersion=0, spark_reader="never").where(condition)
        hold(difference(wanted.select("b", "inner.z").toArrow(), found.toArrow()))
        assert found.count() > 1
    assert "ReadSchema: struct<a:bigint,inner:struct<z:string>>" in plan(
        frame.where("a > 10").select("inner.z")
    )


def test_a_condition_on_a_mapped_column_leaves_out_row_groups(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = mapped(spark, tmp_path, "name")
    spark.conf.set("spark.sql.parquet.aggregatePushdown", "false")
    frame = changes(spark, table, startingVersion=0).where("a = 10000")
    assert rows_scanned(frame) == 0
    assert rows_scanned(changes(spark, table, startingVersion=0)) == 3


def rows_scanned(frame: DataFrame) -> int:
    frame.collect()
    leaves = frame._jdf.queryExecution().executedPlan().collectLeaves()
    return sum(
        int(leaves.apply(number).metrics().apply("numOutputRows").value())
        for number in range(leaves.size())
    )


def test_partition_columns_keep_their_values_under_new_names(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = f"delta.`{tmp_path}/mapped`"
    spark.sql(
        f"CREATE TABLE {table} (id BIGINT, day DATE, at TIMESTAMP_NTZ) USING delta "
        "PARTITIONED BY (day, at) TBLPROPERTIES (delta.columnMapping.mode = 'name')"
    )
    spark.sql(
        f"INSERT INTO {table} VALUES (1, DATE'2026-01-02', TIMESTAMP_NTZ'2026-01-02 03:04:05')"
    )
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN day TO date")
    hold_alike(spark, tmp_path / "mapped")
    frame = changes(spark, f"{tmp_path}/mapped", startingVersion=0)
    assert files_read(frame.where("date = DATE'2026-01-02'")) == 1
    (row,) = frame.collect()
    assert (row.date, row.at.isoformat()) == (dt.date(2026, 1, 2), "2026-01-02T03:04:05")


def test_a_column_that_was_dropped_and_made_again_is_not_the_old_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = f"delta.`{tmp_path}/mapped`"
    spark.sql(
        f"CREATE TABLE {table} (id BIGINT, x BIGINT) USING delta "
        "TBLPROPERTIES (delta.columnMapping.mode = 'name')"
    )
    spark.sql(f"INSERT INTO {table} VALUES (1, 10)")
    spark.sql(f"ALTER TABLE {table} DROP COLUMN x")
    spark.sql(f"ALTER TABLE {table} ADD COLUMN x STRING")
    hold_alike(spark, tmp_path / "mapped", onSchemaChange="cast")
    frame = changes(spark, f"{tmp_path}/mapped", startingVersion=0, onSchemaChange="cast")
    assert [row.x for row in frame.collect()] == [None]
