"""`tailer.spark.changes`: which files Spark reads itself, and that the rows do not depend on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tailer.spark import changes
from tailer.spark.error_sentence import TailerSourceError
from tailer.spark.frames import spark_reader
from tailer.spark.source import TailerSource
from tailer.testing.table import TableBuilder
from tests.golden.compare import difference
from tests.golden.test_golden import hold
from tests.support.components import require_crate

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("amount", pa.float64())])


def rows(*numbers: int) -> list[dict[str, Any]]:
    return [{"id": n, "name": f"row {n}", "amount": n / 2} for n in numbers]


def plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def files_read(frame: DataFrame) -> int:
    """The files that the frame's only scan has read."""
    frame.collect()
    leaves = frame._jdf.queryExecution().executedPlan().collectLeaves()
    assert leaves.size() == 1
    return int(leaves.apply(0).metrics().apply("numFiles").value())


def hold_alike(spark: SparkSession, table: Path, **options: Any) -> pa.Table:
    """The rows, which must be those of the decoder alone; some of them Spark reads itself."""
    options = {"startingVersion": 0, **options}
    frame = changes(spark, str(table), **options)
    assert "FileScan parquet" in plan(frame)
    decoded = changes(spark, str(table), spark_reader="never", **options)
    assert "FileScan parquet" not in plan(decoded)
    assert [(f.name, f.dataType) for f in frame.schema] == [
        (f.name, f.dataType) for f in decoded.schema
    ]
    got = frame.toArrow()
    hold(difference(decoded.toArrow(), got))
    return got


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    built = TableBuilder(tmp_path / "orders", SCHEMA, cdf=True)
    built.create()
    built.insert(rows(1, 2, 3))
    built.insert(rows(4))
    return built


def test_columns_and_conditions_reach_parquet(spark: SparkSession, table: TableBuilder) -> None:
    frame = changes(spark, str(table.folder), startingVersion=0)
    planned = plan(frame.where("amount > 1").select("id", "_commit_version"))
    assert "MapInArrow" not in planned
    assert "PushedFilters: [IsNotNull(amount), GreaterThan(amount,1.0)]" in planned
    assert "ReadSchema: struct<id:bigint,amount:double>" in planned


def test_a_condition_on_the_version_leaves_out_files(
    spark: SparkSession, table: TableBuilder
) -> None:
    frame = changes(spark, str(table.folder), startingVersion=0)
    assert files_read(frame) == 2
    only = frame.where("_commit_version = 2")
    assert files_read(only) == 1
    assert [row.id for row in only.collect()] == [4]


def test_a_row_of_a_whole_file_costs_no_expression(
    spark: SparkSession, table: TableBuilder
) -> None:
    planned = plan(changes(spark, str(table.folder), startingVersion=0))
    assert "Project" not in planned
    assert "row_index" not in planned


def test_conditions_on_partitions_and_times_leave_out_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    built = TableBuilder(tmp_path / "orders", SCHEMA, cdf=True, partition_by=["name"])
    built.create()
    for name in ("a", "b", None):
        built.commit(built.add(rows(1), partition={"name": name}))
    frame = changes(spark, str(built.folder), startingVersion=0)
    assert files_read(frame.where("name = 'b'")) == 1
    assert files_read(frame.where("name IS NULL")) == 1
    times = [row[0] for row in frame.select("_commit_timestamp").distinct().collect()]
    assert files_read(frame.where(f.col("_commit_timestamp") == min(times))) == 1


def test_a_column_with_the_name_of_sparks_hidden_one_is_a_column(
    spark: SparkSession, tmp_path: Path
) -> None:
    built = TableBuilder(tmp_path / "t", pa.schema([("_metadata", pa.int64())]), cdf=True)
    built.create()
    built.insert([{"_metadata": 5}])
    assert hold_alike(spark, built.folder)["_metadata"].to_pylist() == [5]


def test_an_empty_file_is_an_error(spark: SparkSession, table: TableBuilder) -> None:
    emptied = next(table.folder.glob("*.parquet"))
    emptied.write_bytes(b"")
    with pytest.raises(PySparkException, match=emptied.name):
        changes(spark, str(table.folder), startingVersion=0).collect()


def test_files_of_every_kind_are_one_scan(spark: SparkSession, tmp_path: Path) -> None:
    built = TableBuilder(tmp_path / "orders", SCHEMA, cdf=True, partition_by=["name"])
    built.create()
    first = built.add(rows(1), partition={"name": "row 1"})
    built.commit(first)
    cdc = [{"id": 1, "amount": 0.5, "_change_type": "update_preimage"},
           {"id": 1, "amount": 3.5, "_change_type": "update_postimage"}]  # fmt: skip
    built.commit(built.cdc(cdc, partition={"name": "row 1"}), built.remove(first))
    built.commit(built.add(rows(2), partition={"name": None}))
    got = hold_alike(spark, built.folder)
    found = [(r["_commit_version"], r["_change_type"], r["name"]) for r in got.to_pylist()]
    assert sorted(found, key=str) == [
        (1, "insert", "row 1"), (2, "update_postimage", "row 1"), (2, "update_preimage", "row 1"),
        (3, "insert", None),
    ]  # fmt: skip
    frame = changes(spark, str(built.folder), startingVersion=0)
    assert plan(frame).count("FileScan parquet") == 1


def test_many_versions_are_one_scan(spark: SparkSession, table: TableBuilder) -> None:
    for number in range(5, 40):
        table.insert(rows(number))
    frame = changes(spark, str(table.folder), startingVersion=0)
    planned = plan(frame)
    assert planned.count("FileScan parquet") == 1
    assert "Join" not in planned
    assert files_read(frame.where("_commit_version > 30")) == 7
    assert len(hold_alike(spark, table.folder)) == 39


def test_hundreds_of_small_files_are_the_decoders(
    spark: SparkSession, table: TableBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_crate()
    monkeypatch.setattr(spark_reader, "_SMALL_FILES_MAX", 20)
    for number in range(5, 40):
        table.insert(rows(number))
    frame = changes(spark, str(table.folder), startingVersion=0)
    assert "FileScan parquet" not in plan(frame)
    assert sorted(row.id for row in frame.collect()) == [*range(1, 40)]
    ids = changes(spark, str(table.folder), startingVersion=0, withIds=True)
    hold(difference(frame.toArrow(), ids.select(*frame.columns).toArrow()))


def test_a_small_file_that_is_damaged_is_named(spark: SparkSession, table: TableBuilder) -> None:
    table.insert(rows(5))
    damaged = next(action["add"]["path"] for action in table.actions()[::-1] if "add" in action)
    file = table.folder / damaged
    file.write_bytes(file.read_bytes()[:-40] + bytes(40))
    frame = changes(spark, str(table.folder), spark_reader="never", startingVersion=0)
    with pytest.raises(PySparkException, match=damaged):
        frame.collect()


@pytest.mark.parametrize("more", [0, 20], ids=["few facts", "many"])
def test_a_file_that_comes_and_goes_is_read_for_both(
    more: int, spark: SparkSession, table: TableBuilder
) -> None:
    added = table.add(rows(10, 11))
    table.commit(added)
    table.commit(table.remove(added))
    for number in range(more):
        table.insert(rows(100 + number))
    got = hold_alike(spark, table.folder).to_pylist()
    assert sorted(r["_change_type"] for r in got if r["id"] == 10) == ["delete", "insert"]


def test_files_of_one_name_in_two_folders_are_not_taken_for_each_other(
    spark: SparkSession, table: TableBuilder
) -> None:
    for number in range(10):
        table.commit(table.add(rows(100 + number), path=f"{number}/part.parquet"))
    assert len(hold_alike(spark, table.folder)) == 14


def test_a_lost_file_is_named_before_anything_is_read(
    spark: SparkSession, table: TableBuilder
) -> None:
    lost = next(table.folder.glob("*.parquet"))
    lost.unlink()
    with pytest.raises(TailerSourceError, match=f"{lost.name}: the data file is gone"):
        changes(spark, str(table.folder), startingVersion=0)


def test_a_file_that_is_lost_later_is_an_error_whatever_the_session_says(
    spark: SparkSession, table: TableBuilder
) -> None:
    frame = changes(spark, str(table.folder), startingVersion=0)
    lost = next(table.folder.glob("*.parquet"))
    lost.unlink()
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    try:
        with pytest.raises(Exception, match=lost.name):
            frame.collect()
    finally:
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")


def test_ids_are_the_decoders(spark: SparkSession, table: TableBuilder) -> None:
    frame = changes(spark, str(table.folder), startingVersion=0, withIds=True)
    assert "FileScan parquet" not in plan(frame)
    assert frame.columns[-2:] == ["_event_id", "_origin"]
    assert frame.select("_event_id").distinct().count() == 4


def test_a_range_without_changes_has_no_rows(spark: SparkSession, table: TableBuilder) -> None:
    frame = changes(spark, str(table.folder), startingVersion=0, endingVersion=0)
    assert frame.columns[:3] == SCHEMA.names
    assert frame.count() == 0


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"spark_reader": "sometimes"}, r"\[config\].*spark_reader.*auto or never"),
        ({"startingVersoin": 0}, r"\[config\].*startingversoin"),
        ({}, r"\[config\].*startingVersion"),
    ],
)
def test_a_wrong_option_is_one_sentence(
    options: dict[str, Any], expected: str, spark: SparkSession, table: TableBuilder
) -> None:
    with pytest.raises(TailerSourceError, match=expected):
        changes(spark, str(table.folder), **options)


def test_a_stream_that_is_refused_says_why(
    spark: SparkSession, table: TableBuilder, tmp_path: Path
) -> None:
    spark.dataSource.register(TailerSource)
    reader = spark.readStream.format("tailer").option("startingVersion", 99)
    writer = reader.load(str(table.folder)).writeStream.format("noop")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        with pytest.raises(PySparkException, match=r"99.*the newest is 2"):
            query.awaitTermination(250)
    finally:
        query.stop()
