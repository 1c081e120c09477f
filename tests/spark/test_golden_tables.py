"""The data source against the golden tables: Spark's own answers, and `tailer read`.

The usual run takes tables of every kind; with TAILER_TORTURE_ROUNDS set, all of them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from tailer.spark.source import TailerSource
from tests.golden.compare import difference, read_folder
from tests.golden.test_golden import CASES, GoldenCase, Reader, golden, hold, reader

__all__ = ["golden", "reader"]  # fixtures

# Copy on write, deletion vectors, row ids, column mapping, types, times, cleaned logs, variants.
BATCH = (
    "cdf_dv",
    "cdf_ict_midway",
    "cdf_log_cleaned",
    "cdf_overwrite_schema",
    "cdf_partition_strings",
    "cdf_types",
    "mapping_name_cdf",
    "rowtracking_dv",
    "type_widening",
    "variant",
)
STREAMS = ("cdf_write_shapes", "plain_dv", "cdf_schema_evolution", "rowtracking")

ALL = "TAILER_TORTURE_ROUNDS" in os.environ
# A stream stops where another table takes the place; that has a test of its own.
STREAMABLE = tuple(name for name in CASES if name != "cdf_replaced")


def collected(frame: DataFrame, folder: Path) -> pa.Table:
    """All rows; by way of a file where there is a variant, for Spark's `toArrow` fails on nulls."""
    if "variant" not in frame.schema.simpleString():
        return frame.toArrow()
    frame.coalesce(1).write.parquet(str(folder / "rows"))
    return read_folder(folder / "rows")


def changes_of(spark: SparkSession, table: Path, start: int, folder: Path) -> pa.Table:
    """The changes by `spark.read`."""
    spark.dataSource.register(TailerSource)
    frame = spark.read.format("tailer").option("startingVersion", start).load(str(table))
    return collected(frame, folder)


def streamed(spark: SparkSession, table: Path, start: int, checkpoint: Path) -> pa.Table:
    """The changes by one file at a time, in as many batches as that takes."""
    spark.dataSource.register(TailerSource)
    frame = (
        spark.readStream.format("tailer")
        .option("startingVersion", start)
        .option("maxFilesPerTrigger", 1)
        .load(str(table))
    )
    query = (
        frame.writeStream.format("memory")
        .queryName("streamed")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(200)
    assert query.exception() is None
    rows = collected(spark.table("streamed"), checkpoint)
    spark.catalog.dropTempView("streamed")
    return rows


@pytest.mark.parametrize("name", CASES if ALL else BATCH)
def test_a_batch_has_the_rows_of_tailer_read_and_of_spark(
    name: str,
    spark: SparkSession,
    golden: GoldenCase,
    reader: Reader,
    tmp_path: Path,
) -> None:
    case = golden(name)
    start = case.summary.get("changes", {}).get("startingVersion", 1)
    got = changes_of(spark, case.table, start, tmp_path)
    hold(difference(reader.changes(case.table, start, case.summary["versions"][1], "auto"), got))
    if "changes" in case.summary:
        hold(difference(case.changes(), got))


@pytest.mark.parametrize("name", STREAMABLE if ALL else STREAMS)
def test_a_stream_of_small_batches_has_the_same_rows(
    name: str,
    spark: SparkSession,
    golden: GoldenCase,
    reader: Reader,
    tmp_path: Path,
) -> None:
    case = golden(name)
    start = case.summary.get("changes", {}).get("startingVersion", 1)
    got = streamed(spark, case.table, start, tmp_path / "checkpoint")
    hold(difference(reader.changes(case.table, start, case.summary["versions"][1], "auto"), got))
