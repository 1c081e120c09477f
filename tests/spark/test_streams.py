"""`tailer.spark.foreach_batch`: exactly once from Spark's checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tailer.cli.spark import checkpoint_offset
from tailer.spark import foreach_batch
from tailer.spark.error_sentence import TailerSourceError
from tailer.testing.table import TableBuilder
from tests.support.waiting import eventually

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def rows(*numbers: int) -> list[dict[str, Any]]:
    return [{"id": n, "name": f"row {n}"} for n in numbers]


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    built = TableBuilder(tmp_path / "orders", SCHEMA, cdf=True)
    built.create()
    built.insert(rows(1, 2, 3))
    built.insert(rows(4))
    return built


class Sink:
    """A function for `foreachBatch` that keeps each batch's ids; ``fail_at`` fails once."""

    def __init__(self, fail_at: int = -1) -> None:
        self.batches: dict[int, list[int]] = {}
        self.fail_at = fail_at

    def __call__(self, frame: DataFrame, batch: int) -> None:
        found = sorted(row.id for row in frame.select("id").collect())
        if batch == self.fail_at:
            self.fail_at = -1
            raise RuntimeError("the sink fails in mid-batch")
        self.batches[batch] = found

    @property
    def ids(self) -> list[int]:
        return [number for _, found in sorted(self.batches.items()) for number in found]


def started(writer: Any, **trigger: Any) -> StreamingQuery:
    """A query for what is there, or with another trigger."""
    query: StreamingQuery = writer.trigger(**(trigger or {"availableNow": True})).start()
    return query


def by_batch(spark: SparkSession, table: Path, checkpoint: Path, sink: Any, **options: Any) -> Any:
    """The writer of the frames that Spark reads."""
    options = {"startingVersion": 0, **options}
    return foreach_batch(spark, str(table), str(checkpoint), sink, **options)


def failed(query: StreamingQuery, sentence: str) -> None:
    """Wait for the end of a query, by an error that says this."""
    with pytest.raises(PySparkException, match=sentence):
        query.awaitTermination(200)


def finished(query: StreamingQuery) -> None:
    assert query.awaitTermination(200)


def test_a_batch_that_failed_comes_again_with_the_same_rows(
    spark: SparkSession, table: TableBuilder, tmp_path: Path
) -> None:
    checkpoint, sink = tmp_path / "checkpoint", Sink(fail_at=1)
    failed(
        started(by_batch(spark, table.folder, checkpoint, sink, maxVersionsPerTrigger=2)),
        "in mid-batch",
    )
    assert sink.batches == {0: [1, 2, 3]}
    table.insert(rows(5))
    # The batch that was begun stays what it was, whatever is asked for now.
    finished(started(by_batch(spark, table.folder, checkpoint, sink, maxFilesPerTrigger=1)))
    assert sink.batches == {0: [1, 2, 3], 1: [4], 2: [5]}
    assert checkpoint_offset(checkpoint).version == 4


def test_spark_may_take_two_files_for_a_batch(
    spark: SparkSession, table: TableBuilder, tmp_path: Path
) -> None:
    checkpoint, sink = tmp_path / "checkpoint", Sink()
    finished(started(by_batch(spark, table.folder, checkpoint, sink, maxFilesPerTrigger=1)))
    assert sink.batches == {0: [1, 2, 3], 1: [4]}
    # Killed between Spark's list of files and its list of batches.
    for place in ("offsets", "commits"):
        for file in (checkpoint / place / "1", checkpoint / place / ".1.crc"):
            file.unlink()
    table.insert(rows(5))
    finished(started(by_batch(spark, table.folder, checkpoint, sink, maxFilesPerTrigger=1)))
    assert sink.batches == {0: [1, 2, 3], 1: [4, 5]}
    assert checkpoint_offset(checkpoint).version == 4


def test_a_running_query_follows_the_table_until_its_schema_changes(
    spark: SparkSession, table: TableBuilder, tmp_path: Path
) -> None:
    checkpoint, sink = tmp_path / "checkpoint", Sink()
    query = started(by_batch(spark, table.folder, checkpoint, sink), processingTime="0 seconds")
    table.insert(rows(5))
    eventually(lambda: sink.ids == [1, 2, 3, 4, 5], why=query.exception)
    table.schema = pa.schema([*SCHEMA, ("size", pa.int32())])
    table.commit(table.metadata(), table.add([{"id": 6, "name": "6", "size": 1}]))
    failed(query, r"\[schema\].* version 4.*it adds size; restart the query to take up")
    finished(started(by_batch(spark, table.folder, checkpoint, sink)))
    assert sink.ids == [1, 2, 3, 4, 5, 6]


def test_each_batch_is_a_frame_that_spark_reads_itself(
    spark: SparkSession, table: TableBuilder, tmp_path: Path
) -> None:
    plans = []

    def keep(frame: DataFrame, _: int) -> None:
        plans.append(plan(frame.where("id > 1").select("name")))

    finished(started(by_batch(spark, table.folder, tmp_path / "checkpoint", keep)))
    writer = by_batch(spark, table.folder, tmp_path / "other", keep, spark_reader="never")
    finished(started(writer))
    assert "PushedFilters: [IsNotNull(id), GreaterThan(id,1)]" in plans[0]
    assert "MapInArrow" not in plans[0]
    assert "FileScan parquet" not in plans[1]


def test_the_query_has_the_id_that_its_checkpoint_was_given(
    spark: SparkSession, table: TableBuilder, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    given = set()
    for _ in range(2):
        writer = foreach_batch(
            spark, str(table.folder), str(checkpoint), lambda *_: None, startingVersion=0
        )
        given.add(json.loads((checkpoint / "metadata").read_text())["id"])
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        given.add(query.id)
    assert len(given) == 1


def test_a_checkpoint_that_has_lost_its_id_gets_no_other_one(
    spark: SparkSession, table: TableBuilder, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    for _ in range(2):
        writer = foreach_batch(
            spark, str(table.folder), str(checkpoint), lambda *_: None, startingVersion=0
        )
        if (checkpoint / "metadata").exists():
            writer.trigger(availableNow=True).start().awaitTermination()
            (checkpoint / "metadata").unlink()
    assert not (checkpoint / "metadata").exists()


@pytest.mark.parametrize(
    ("checkpoint", "options", "expected"),
    [
        ("s3://lake/checkpoint", {}, r"\[config\].*not the path of a local or mounted folder"),
        ("/nowhere/check*", {}, r"\[config\].*without any of"),
        ("dbfs:/check", {}, r"\[config\].*is not the path of a local or mounted folder"),
        ("/nowhere/none", {"startingVersoin": 0}, r"\[config\].*startingversoin"),
    ],
)
def test_what_is_wrong_is_said_before_the_query_starts(
    checkpoint: str,
    options: dict[str, Any],
    expected: str,
    spark: SparkSession,
    table: TableBuilder,
) -> None:
    with pytest.raises(TailerSourceError, match=expected):
        foreach_batch(spark, str(table.folder), checkpoint, lambda *_: None, **options)
