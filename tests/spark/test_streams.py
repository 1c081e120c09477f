"""`tailer.spark.foreach_batch`: exactly once from Spark's checkpoint."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tailer.cli.checkpoint import read_checkpoint
from tailer.spark import foreach_batch
from tailer.spark.error_sentence import TailerSourceError
from tailer.spark.frames import compiled
from tailer.spark.source import TailerSource
from tailer.store.local import LocalStore
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


def by_batch(
    spark: SparkSession, table: Path, checkpoint: Path | str, sink: Any, **options: Any
) -> Any:
    """The writer of the frames that Spark reads."""
    options = {"startingVersion": 0, **options}
    return foreach_batch(spark, str(table), str(checkpoint), sink, **options)


def failed(query: StreamingQuery, sentence: str) -> None:
    """Wait for the end of a query, by an error that says this."""
    with pytest.raises(PySparkException, match=sentence):
        query.awaitTermination(200)


def continues_at(checkpoint: Path) -> int:
    """The version that a feed continues with which takes over from a query."""
    (place,) = anyio.run(read_checkpoint, LocalStore(str(checkpoint))).places
    return place.version


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
    assert continues_at(checkpoint) == 4


def test_a_batch_that_was_begun_is_replayed_by_its_offsets(
    spark: SparkSession, table: TableBuilder, tmp_path: Path
) -> None:
    checkpoint, sink = tmp_path / "checkpoint", Sink()
    finished(started(by_batch(spark, table.folder, checkpoint, sink, maxVersionsPerTrigger=2)))
    assert sink.batches == {0: [1, 2, 3], 1: [4]}
    # Killed before Spark noted the last batch's end; and a commit has come since.
    for file in (checkpoint / "commits" / "1", checkpoint / "commits" / ".1.crc"):
        file.unlink()
    table.insert(rows(5))
    again = Sink()
    finished(started(by_batch(spark, table.folder, checkpoint, again)))
    assert again.batches == {1: [4], 2: [5]}
    assert continues_at(checkpoint) == 4


def test_commits_that_wait_are_one_batch(
    spark: SparkSession, table: TableBuilder, tmp_path: Path
) -> None:
    found: list[list[int]] = []

    def work(frame: DataFrame, _: int) -> None:
        found.append(sorted(row.id for row in frame.collect()))
        if len(found) == 1:
            for number in range(5, 15):
                table.insert(rows(number))

    writer = by_batch(spark, table.folder, tmp_path / "checkpoint", work)
    query = started(writer, processingTime="0 seconds")
    eventually(lambda: sum(map(len, found)) == 14, why=query.exception)
    query.stop()
    assert found == [[1, 2, 3, 4], [*range(5, 15)]]


def test_the_progress_has_offsets_and_rows(
    spark: SparkSession, table: TableBuilder, tmp_path: Path
) -> None:
    gone = table.add(rows(5, 6))
    table.commit(gone)
    cdc = [{**row, "_change_type": "delete"} for row in rows(5)]
    table.commit(table.cdc(cdc), table.remove(gone), table.add(rows(6)))
    writer = by_batch(spark, table.folder, tmp_path / "c", Sink(), maxVersionsPerTrigger=3)
    query = started(writer)
    finished(query)
    progress = [batch for batch in query.recentProgress if batch.numInputRows]
    assert [batch.numInputRows for batch in progress] == [4, 3]
    source = progress[-1].sources[0]
    assert str(table.folder) in source.description
    assert json.loads(source.startOffset)["version"] == 3
    assert json.loads(source.endOffset)["version"] == 5
    assert json.loads(source.latestOffset)["version"] == 5


def test_a_writer_that_is_started_again_has_the_schema_of_its_time(
    spark: SparkSession, table: TableBuilder, tmp_path: Path
) -> None:
    columns = []
    writer = by_batch(
        spark, table.folder, tmp_path / "checkpoint", lambda f, _: columns.append(f.columns[:-3])
    )
    finished(started(writer))
    table.schema = pa.schema([*SCHEMA, ("size", pa.int32())])
    table.commit(table.metadata(), table.add([{"id": 6, "name": "6", "size": 1}]))
    finished(started(writer))
    assert columns == [["id", "name"], ["id", "name", "size"]]


def test_a_schema_that_changes_within_a_backlog_ends_the_batch_before_it(
    spark: SparkSession, table: TableBuilder, tmp_path: Path
) -> None:
    checkpoint, sink = tmp_path / "checkpoint", Sink()
    query = started(by_batch(spark, table.folder, checkpoint, sink), processingTime="1 hour")
    eventually(lambda: sink.ids == [1, 2, 3, 4], why=query.exception)
    query.stop()
    writer = by_batch(spark, table.folder, checkpoint, sink)  # with the schema that it has now
    table.insert(rows(5))
    table.schema = pa.schema([*SCHEMA, ("size", pa.int32())])
    table.commit(table.metadata(), table.add([{"id": 6, "name": "6", "size": 1}]))
    failed(started(writer), r"\[schema\].* version 4.*it adds size; restart the query")
    assert sink.batches == {0: [1, 2, 3, 4], 1: [5]}
    finished(started(writer))
    assert sink.batches == {0: [1, 2, 3, 4], 1: [5], 2: [6]}


def test_a_query_that_begins_with_a_snapshot_goes_on_behind_it(
    spark: SparkSession, table: TableBuilder, tmp_path: Path
) -> None:
    checkpoint, sink = tmp_path / "checkpoint", Sink()
    for number in (5, 6):
        writer = by_batch(spark, table.folder, checkpoint, sink, startingVersion="snapshot")
        finished(started(writer))
        table.insert(rows(number))
    finished(started(writer))
    assert sink.batches == {0: [], 1: [1, 2, 3, 4], 2: [5], 3: [6]}


def test_a_checkpoint_is_anywhere_and_is_the_sources(
    spark: SparkSession, table: TableBuilder, tmp_path: Path
) -> None:
    spark.dataSource.register(TailerSource)
    checkpoint, sink = f"file://{tmp_path}/a %26 [checkpoint]", Sink()
    finished(started(by_batch(spark, table.folder, checkpoint, sink)))
    table.insert(rows(5))
    source = spark.readStream.format("tailer").option("startingVersion", 0)
    writer = source.load(str(table.folder)).writeStream.foreachBatch(sink)
    finished(started(writer.option("checkpointLocation", checkpoint)))
    table.insert(rows(6))
    finished(started(by_batch(spark, table.folder, checkpoint, sink)))
    assert sink.batches == {0: [1, 2, 3, 4], 1: [5], 2: [6]}


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


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingVersoin": 0}, r"\[config\].*startingversoin"),
        ({"spark_reader": "sometimes"}, r"\[config\].*spark_reader.*auto or never"),
    ],
)
def test_what_is_wrong_is_said_before_the_query_starts(
    options: dict[str, Any], expected: str, spark: SparkSession, table: TableBuilder
) -> None:
    with pytest.raises(TailerSourceError, match=expected):
        foreach_batch(spark, str(table.folder), "/nowhere", lambda *_: None, **options)


def test_a_place_that_the_table_lacks_ends_the_query(
    spark: SparkSession, table: TableBuilder, tmp_path: Path
) -> None:
    writer = by_batch(spark, table.folder, tmp_path / "c", Sink(), startingVersion=9)
    failed(started(writer), "the starting version is 9, and the newest is 2")


def test_java_is_compiled_once_for_all_threads(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Py4J would call a method of one class for an object of another one of that name."""
    made: list[str] = []

    @lru_cache
    def compile_slowly(_: Any, name: str) -> object:
        made.append(name)
        time.sleep(0.05)
        return object()

    monkeypatch.setattr(compiled, "_compile_maker", compile_slowly)
    with ThreadPoolExecutor(8) as threads:
        makers = {*threads.map(lambda _: compiled.maker_of(spark, "PlannedFiles"), range(8))}
    assert (len(makers), made) == (1, ["PlannedFiles"])
