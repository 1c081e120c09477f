"""What docs/comparison.md says of delta-rs and of Spark, tried on them. Where one of these fails
with a newer version, the page is to be corrected."""

from __future__ import annotations

import tarfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

from tests.golden.compare import read_folder
from tests.support.source import ROOT

# They are of others' software, which changes when its version does.
pytestmark = pytest.mark.slow

GOLDEN = ROOT / "tests" / "golden" / "data"
CHANGELOG = "spark.databricks.delta.changelogV2.enabled"


def golden(name: str, folder: Path) -> Path:
    with tarfile.open(GOLDEN / f"{name}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / name


def load_cdf(table: Path) -> pa.Table:
    return pa.table(DeltaTable(table).load_cdf(starting_version=0))


def test_load_cdf_takes_the_deleted_rows_for_the_others_where_a_file_with_a_vector_leaves(
    tmp_path: Path,
) -> None:
    case = golden("cdf_dv", tmp_path)
    spark_says = read_folder(case / "expected" / "changes")
    columns = [name for name in spark_says.schema.names if name != "_commit_timestamp"]
    found, wanted = (
        Counter(tuple(row.values()) for row in rows.select(columns).to_pylist())
        for rows in (load_cdf(case / "table"), spark_says)
    )
    assert {row[-1] for row in (found - wanted) + (wanted - found)} == {10}, "it overwrites"
    assert (found - wanted).total() == 3
    assert (wanted - found).total() == 30


def test_load_cdf_refuses_column_mapping_and_tables_without_a_feed(tmp_path: Path) -> None:
    with pytest.raises(DeltaError, match="Column mapping is not supported"):
        load_cdf(golden("mapping_name_cdf", tmp_path) / "table")
    with pytest.raises(DeltaError, match="does not have change data enabled"):
        load_cdf(golden("rowtracking", tmp_path) / "table")


def test_load_cdf_gives_all_rows_in_the_newest_schema(tmp_path: Path) -> None:
    table = golden("cdf_schema_evolution", tmp_path) / "table"
    newest = DeltaTable(table).schema().to_arrow().names
    assert set(newest) < set(load_cdf(table).schema.names)
    assert set(DeltaTable(table, version=0).schema().to_arrow().names) < set(newest)


def test_spark_derives_changes_in_a_batch_with_row_tracking_behind_a_flag(
    spark: SparkSession, tmp_path: Path
) -> None:
    for name, tracked in (("tracked", "true"), ("untracked", "false")):
        spark.sql(
            f"CREATE TABLE comparison_{name} (id BIGINT, name STRING) USING delta "
            f"LOCATION '{tmp_path}/{name}' TBLPROPERTIES (delta.enableRowTracking = {tracked})"
        )
        spark.sql(f"INSERT INTO comparison_{name} VALUES (1, 'a'), (2, 'b')")
        spark.sql(f"UPDATE comparison_{name} SET name = 'c' WHERE id = 1")
    try:
        asked = spark.read.option("startingVersion", 2).option("endingVersion", 2)
        with pytest.raises(AnalysisException, match="does not support Change Data Capture"):
            asked.changes("comparison_tracked").collect()
        spark.conf.set(CHANGELOG, "true")
        rows = asked.changes("comparison_tracked").select("_change_type", "id", "name").collect()
        assert sorted(map(tuple, rows)) == [("delete", 1, "a"), ("insert", 1, "c")]
        with pytest.raises(AnalysisException, match="ow tracking"):
            asked.changes("comparison_untracked").collect()
    finally:
        spark.conf.unset(CHANGELOG)
        for name in ("tracked", "untracked"):
            spark.sql(f"DROP TABLE comparison_{name}")


def test_a_stream_of_spark_s_stops_at_an_added_column_and_a_batch_has_one_schema(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = f"delta.`{tmp_path}/orders`"
    spark.sql(
        f"CREATE TABLE {table} (id BIGINT) USING delta "
        "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
    )
    spark.sql(f"INSERT INTO {table} VALUES (1)")
    feed = {"readChangeFeed": "true", "startingVersion": "0"}
    stream = spark.readStream.format("delta").options(**feed).load(f"{tmp_path}/orders")
    query = (
        stream.writeStream.format("noop").option("checkpointLocation", f"{tmp_path}/points").start()
    )
    try:
        query.processAllAvailable()
        spark.sql(f"ALTER TABLE {table} ADD COLUMNS (name STRING)")
        spark.sql(f"INSERT INTO {table} VALUES (2, 'b')")
        with pytest.raises(StreamingQueryException, match="Please try restarting the query"):
            query.processAllAvailable()
    finally:
        query.stop()
    batch = spark.read.format("delta").options(**feed).load(f"{tmp_path}/orders")
    assert sorted((row.id, row.name) for row in batch.collect()) == [(1, None), (2, "b")]


def test_spark_refuses_a_batch_over_a_renamed_column(spark: SparkSession, tmp_path: Path) -> None:
    case = golden("mapping_name_cdf", tmp_path)
    # Or Delta refuses its first version for its age.
    names = ("delta.logRetentionDuration", "delta.deletedFileRetentionDuration")
    kept = ", ".join(f"'{name}' = 'interval 36500 days'" for name in names)
    spark.sql(f"ALTER TABLE delta.`{case}/table` SET TBLPROPERTIES ({kept})")
    feed = {"readChangeFeed": "true", "startingVersion": "0"}
    with pytest.raises(PySparkException, match="DELTA_CHANGE_DATA_FEED_INCOMPATIBLE_SCHEMA"):
        spark.read.format("delta").options(**feed).load(str(case / "table")).collect()
