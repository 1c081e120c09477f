"""The data source against the golden tables: Spark's own answers, and `tailer read`.

The usual run takes tables of every kind; with TAILER_TORTURE_ROUNDS set, all of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import anyio
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tailer.spark import changes, foreach_batch
from tailer.spark.source import TailerSource
from tests.golden.answers import ANSWER_SETTINGS
from tests.golden.compare import difference, read_folder
from tests.golden.test_golden import CASES, Golden, GoldenCase, Reader, hold
from tests.support.feeds import table_log

# Copy on write, deletion vectors, row ids, column mapping, types, times, cleaned logs, variants.
BATCH = (
    "cdf_dv",
    "cdf_ict_midway",
    "cdf_log_cleaned",
    "cdf_overwrite_schema",
    "cdf_partition_strings",
    "cdf_types",
    "mapping_back",
    "mapping_name_cdf",
    "rowtracking_dv",
    "type_widening",
    "variant",
)
STREAMS = ("cdf_write_shapes", "plain_dv", "cdf_schema_evolution", "mapping_back", "rowtracking")
# Frames: cdc files, data files, both ways in one frame, partitions, odd paths, types.
FRAMES = (
    "cdf_dv",
    "cdf_overwrite_schema",
    "cdf_partition_strings",
    "cdf_partition_types",
    "cdf_types",
    "cdf_write_shapes",
    "mapping_back",
    "type_widening",
    "variant",
)

ALL = "TAILER_TORTURE_ROUNDS" in os.environ
# Rows of one column in two types that do not go together have no common schema.
READABLE = tuple(name for name in CASES if name != "overwrite_schema")
# A stream stops where another table takes the place, and at a column that was dropped since; these
# have tests of their own.
STREAMABLE = tuple(name for name in READABLE if name not in ("cdf_replaced", "mapping_name_cdf"))


def collected(frame: DataFrame, folder: Path) -> pa.Table:
    """All rows; by way of a file where there is a variant, for Spark's `toArrow` fails on nulls."""
    if "variant" not in frame.schema.simpleString():
        return frame.toArrow()
    for key, value in ANSWER_SETTINGS.items():
        frame.sparkSession.conf.set(key, value)
    frame.coalesce(1).write.parquet(str(folder / "rows"))
    for key in ANSWER_SETTINGS:
        frame.sparkSession.conf.unset(key)
    return read_folder(folder / "rows")


def first_version(case: Golden) -> int:
    """Where the changes begin that can be read: as Spark's answers, if it has any."""
    if "changes" in case.summary:
        return int(case.summary["changes"]["startingVersion"])
    return anyio.run(table_log(case.table).earliest_version)


def changes_of(spark: SparkSession, table: Path, start: int, folder: Path) -> pa.Table:
    """The changes by `spark.read`."""
    spark.dataSource.register(TailerSource)
    frame = spark.read.format("tailer").option("startingVersion", start).load(str(table))
    return collected(frame, folder)


def streamed(
    spark: SparkSession, table: Path, start: int, checkpoint: Path, **options: str
) -> pa.Table:
    """The changes by one file at a time, in as many batches as that takes."""
    spark.dataSource.register(TailerSource)
    frame = (
        spark.readStream.format("tailer")
        .option("startingVersion", start)
        .option("maxFilesPerTrigger", 1)
        .options(**options)
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


def by_frames(spark: SparkSession, table: Path, start: int, checkpoint: Path) -> pa.Table:
    """The changes of a stream that is interrupted in its first batch, each batch as a frame that
    Spark reads itself where it can."""
    options = {"startingVersion": start, "maxFilesPerTrigger": 2}
    return interrupted(
        lambda keep: foreach_batch(spark, str(table), str(checkpoint), keep, **options), checkpoint
    )


def interrupted(
    writer: Callable[[Callable[[DataFrame, int], None]], DataStreamWriter], folder: Path
) -> pa.Table:
    """All rows of a stream, from a query that failed in mid-batch and another one."""
    found: dict[int, pa.Table] = {}

    def keep(frame: DataFrame, batch: int) -> None:
        rows = collected(frame, folder / f"{batch}-{len(failed)}")  # each attempt its own
        if not failed:
            failed.append(batch)
            raise RuntimeError("in mid-batch")
        found[batch] = rows

    failed: list[int] = []
    for _ in range(2):
        query = writer(keep).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(200)
        except PySparkException as e:
            assert "in mid-batch" in str(e)  # noqa: PT017  # others are not expected
        else:
            break
    assert failed
    # Which columns may be null differs: a value that all rows share is never null.
    return pa.concat_tables(found.values(), promote_options="permissive")


def framed(spark: SparkSession, table: Path, start: int, folder: Path) -> pa.Table:
    """The changes by the frame that is planned here."""
    return collected(changes(spark, str(table), startingVersion=start), folder)


#: Each stream takes ten seconds of a processor.
QUICK = ((streamed, "cdf_schema_evolution"), (by_frames, "mapping_back"))


@pytest.mark.parametrize(
    ("read", "name"),
    [
        *((changes_of, name) for name in (READABLE if ALL else BATCH)),
        *((framed, name) for name in (READABLE if ALL else FRAMES)),
    ],
)
def test_a_batch_has_the_rows_of_tailer_read_and_of_spark(
    read: Callable[[SparkSession, Path, int, Path], pa.Table],
    name: str,
    spark: SparkSession,
    golden: GoldenCase,
    reader: Reader,
    tmp_path: Path,
) -> None:
    case = golden(name)
    start, last = first_version(case), case.summary["versions"][1]
    got = read(spark, case.table, start, tmp_path)
    hold(difference(reader.changes(case.table, start, last, "auto"), got))
    if "changes" in case.summary:
        hold(difference(case.changes(), got))


@pytest.mark.parametrize(
    ("read", "name"),
    [
        pytest.param(read, name, marks=[] if (read, name) in QUICK else pytest.mark.slow)
        for read in (streamed, by_frames)
        for name in (STREAMABLE if ALL else STREAMS)
    ],
)
def test_a_stream_of_small_batches_has_the_same_rows(
    read: Callable[[SparkSession, Path, int, Path], pa.Table],
    name: str,
    spark: SparkSession,
    golden: GoldenCase,
    reader: Reader,
    tmp_path: Path,
) -> None:
    case = golden(name)
    start, last = first_version(case), case.summary["versions"][1]
    got = read(spark, case.table, start, tmp_path / "checkpoint")
    hold(difference(reader.changes(case.table, start, last, "auto"), got))


def test_what_has_no_common_schema_is_refused_in_one_sentence(
    spark: SparkSession, golden: GoldenCase, tmp_path: Path
) -> None:
    with pytest.raises(PySparkException) as refused:
        changes_of(spark, golden("overwrite_schema").table, 0, tmp_path)
    told = str(refused.value)
    assert "[schema]" in told
    assert "columns of other types than the query" in told
    assert "Traceback" not in told


@pytest.mark.slow
def test_a_stream_stops_by_name_where_another_table_takes_the_place(
    spark: SparkSession, golden: GoldenCase, tmp_path: Path
) -> None:
    table = golden("cdf_replaced").table
    with pytest.raises(PySparkException) as refused:
        streamed(spark, table, 0, tmp_path / "refused")
    told = re.search(r"once with endingVersion (\d+)", str(refused.value))
    assert told is not None
    assert streamed(spark, table, 0, tmp_path / "ended", endingVersion=told[1]).num_rows
    with pytest.raises(PySparkException, match=r"\[replaced\].*the table was replaced by another"):
        streamed(spark, table, int(told[1]) + 1, tmp_path / "replaced")
