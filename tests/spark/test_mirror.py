"""`mirror_into`: any names and any case, columns that are added, and one sentence for the rest."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tailer.errors import ConfigError, SinkRejected
from tailer.spark import foreach_batch
from tailer.spark.error_sentence import TailerSourceError
from tailer.spark.mirror import mirror_into
from tailer.spark.source import TailerSource
from tailer.testing.table import TableBuilder

OURS = "_change_type STRING, _commit_version LONG, _commit_timestamp TIMESTAMP"
NOW = dt.datetime(2026, 1, 31, tzinfo=dt.UTC)


def changes(spark: SparkSession, columns: str, *rows: tuple[Any, ...]) -> DataFrame:
    """A batch of changes; each row begins with its change type and version."""
    found = [(*values, kind, version, NOW) for kind, version, *values in rows]
    return spark.createDataFrame(found, f"{columns}, {OURS}")


def rows_of(spark: SparkSession, mirror: Path) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in spark.read.format("delta").load(str(mirror)).collect())


def test_no_name_of_a_column_is_one_of_ours(spark: SparkSession, tmp_path: Path) -> None:
    """Nor is a view of the user's, and the key is found in any case."""
    names = ("Id", "leaves", "rank", "_leaves", "_rank", "_event_id", "Rank_", "a`b")
    columns = ", ".join(f"`{name.replace('`', '``')}` STRING" for name in names)
    merge = mirror_into(tmp_path / "mirror", key="ID", app="a")
    spark.range(1).createOrReplaceTempView("tailer_changes")
    one, two, more = (tuple(f"{n}{i}" for i in range(7)) for n in "otm")
    merge(changes(spark, columns, ("insert", 1, "1", *one), ("insert", 1, "2", *two)), 0)
    second = changes(
        spark, columns, ("update_preimage", 2, "1", *one), ("update_postimage", 2, "1", *more),
        ("delete", 3, "2", *two), ("insert", 3, "3", *two),
    )  # fmt: skip
    merge(second, 1)
    assert rows_of(spark, tmp_path / "mirror") == [("1", *more), ("3", *two)]
    assert spark.table("tailer_changes").count() == 1
    views = [row.viewName for row in spark.sql("SHOW VIEWS").collect()]
    assert [name for name in views if "tailer_changes" in name] == ["tailer_changes"]


def test_columns_and_fields_that_are_added_are_added_to_the_mirror(
    spark: SparkSession, tmp_path: Path
) -> None:
    merge = mirror_into(str(tmp_path), ["id"], "a")
    merge(changes(spark, "id INT, s STRUCT<a: INT>", ("insert", 1, 1, (1,))), 0)
    wider = changes(
        spark, "id INT, s STRUCT<a: INT, b: INT>, Size LONG",
        ("insert", 2, 2, (2, 3), 4),
    )  # fmt: skip
    for _ in range(2):  # and when the batch comes again
        merge(wider, 1)
        assert rows_of(spark, tmp_path) == [(1, (1, None), None), (2, (2, 3), 4)]
    # Again without the column, and a narrower type: the mirror holds both.
    merge(changes(spark, "id INT, Size INT", ("insert", 3, 5, 6)), 2)
    assert rows_of(spark, tmp_path)[-1] == (5, None, 6)


@pytest.mark.slow
def test_what_the_mirror_can_not_hold_is_refused_with_the_statement(
    spark: SparkSession, tmp_path: Path
) -> None:
    merge, table = mirror_into(tmp_path, "id", "a"), f"delta.`{tmp_path}`"
    merge(changes(spark, "id INT, name STRING", ("insert", 1, 1, "a")), 0)
    renamed = changes(spark, "id INT, label STRING", ("insert", 2, 2, "b"))
    with pytest.raises(TailerSourceError) as refused:
        merge(renamed, 1)
    assert f"run ALTER TABLE {table} RENAME COLUMN `name` TO `label`" in str(refused.value)
    assert f"ALTER TABLE {table} ADD COLUMNS (`label` string)" in str(refused.value)
    spark.sql(str(refused.value).partition(" or ")[2].removesuffix(" if it is another one"))
    merge(renamed, 1)
    assert rows_of(spark, tmp_path) == [(1, "a", None), (2, None, "b")]
    wider = changes(spark, "id LONG, name STRING, label STRING", ("insert", 3, 2**40, "c", "c"))
    with pytest.raises(TailerSourceError, match=r"'id' is bigint .* and int in the mirror; run AL"):
        merge(wider, 2)


def test_what_is_no_mirror_of_changes_is_said(spark: SparkSession, tmp_path: Path) -> None:
    keys: list[str | list[str]] = ["", [], "id,"]
    for key in keys:
        with pytest.raises(ConfigError, match="a mirror needs the key columns"):
            mirror_into(tmp_path, key, "a")
    with pytest.raises(TailerSourceError, match=r"\[config\] a mirror is made of changes"):
        mirror_into(tmp_path, "id", "a")(spark.range(1), 0)
    frame = changes(spark, "id INT", ("insert", 1, 1))
    with pytest.raises(TailerSourceError, match="no column 'no' to be the mirror's key; they have"):
        mirror_into(tmp_path, "id, no", "a")(frame, 0)


def first_line(writer: DataStreamWriter) -> str:
    query = writer.trigger(availableNow=True).start()
    with pytest.raises(PySparkException) as refused:
        query.awaitTermination(200)
    return str(refused.value).splitlines()[0]


@pytest.mark.slow
def test_an_error_in_a_batch_is_on_the_first_line_of_sparks(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.dataSource.register(TailerSource)
    table = TableBuilder(tmp_path / "orders", pa.schema([("id", pa.int64())]))
    table.create()
    table.insert([{"id": 1}])
    folder = str(table.folder)
    source = spark.readStream.format("tailer").option("startingVersion", 0).load(folder)

    def refuse(frame: DataFrame, _: int) -> None:
        raise SinkRejected(f"not these {frame.count()}")

    def read(frame: DataFrame, _: int) -> None:
        frame.collect()

    merge = mirror_into(tmp_path / "mirror", "nope", "a")
    told = first_line(
        source.writeStream.foreachBatch(merge).option("checkpointLocation", str(tmp_path / "0"))
    )
    assert "[config] the changes have no column 'nope'" in told
    told = first_line(foreach_batch(spark, folder, tmp_path / "1", refuse, startingVersion=0))
    assert "[sink] not these 1" in told
    for file in table.folder.glob("*.parquet"):
        file.unlink()
    by_decoder = foreach_batch(
        spark, table.folder, tmp_path / "3", read, startingVersion=0, spark_reader="never"
    )
    merge = mirror_into(tmp_path / "mirror", "id", "a")
    for writer in (
        foreach_batch(spark, table.folder, tmp_path / "2", read, startingVersion=0),
        by_decoder,
        source.writeStream.foreachBatch(merge).option("checkpointLocation", str(tmp_path / "4")),
    ):
        assert "[data_loss]" in (told := first_line(writer))
        assert "the data file is gone" in told
