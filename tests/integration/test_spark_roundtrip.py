"""A real Spark writes while a real `tailer tail` follows; both must say the same."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.programs import started

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = ("id", "name", "amount", "country", "_change_type", "_commit_version")


def spark_changes(spark: SparkSession, path: Path) -> list[dict[str, Any]]:
    """Spark's own answer; what a version does not have yet is null."""
    frame = (
        spark.read.format("delta")
        .option("readChangeFeed", "true")
        .option("startingVersion", 0)
        .load(str(path))
        .withColumnRenamed("_commit_timestamp", "time")
        .selectExpr("*", "date_format(time, \"yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'\") AS text")
    )
    rows = [row.asDict() for row in frame.drop("time").collect()]
    return [{**row, "_commit_timestamp": row.pop("text")} for row in rows]


def as_bag(events: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    names = (*COLUMNS, "_commit_timestamp")
    return Counter(tuple(event.get(name) for name in names) for event in events)


def work(spark: SparkSession, table: str) -> None:
    """What people do to a table: insert, update, delete, merge, overwrite, a new column."""
    spark.sql(f"INSERT INTO {table} SELECT id, concat('row ', id), id / 4 FROM range(100)")
    spark.sql(f"UPDATE {table} SET amount = amount * 2 WHERE id % 10 = 3")
    spark.sql(f"DELETE FROM {table} WHERE id BETWEEN 40 AND 49")
    spark.sql(
        f"MERGE INTO {table} t USING (SELECT id, 'merged' AS name FROM range(95, 110)) s "
        "ON t.id = s.id WHEN MATCHED AND t.id = 96 THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET name = s.name "
        "WHEN NOT MATCHED THEN INSERT (id, name, amount) VALUES (s.id, s.name, NULL)"
    )
    spark.sql(f"ALTER TABLE {table} ADD COLUMNS (country STRING)")
    spark.sql(f"INSERT INTO {table} VALUES (200, 'größe \"x\"', NULL, 'DE')")
    spark.sql(f"UPDATE {table} SET country = 'FR' WHERE id < 3")
    spark.sql(f"INSERT OVERWRITE {table} SELECT * FROM {table} WHERE id >= 100")
    spark.sql(f"OPTIMIZE {table}")
    spark.sql(f"DELETE FROM {table}")


@pytest.mark.slow
def test_tail_says_what_spark_says(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "table"
    table = f"delta.`{path}`"
    spark.sql(
        f"CREATE TABLE {table} (id BIGINT, name STRING, amount DOUBLE) USING delta "
        "TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"
    )
    with started("tail", path, "--from", "earliest", "--with-ids") as program:
        work(spark, table)
        expected = spark_changes(spark, path)
        program.wait_for_events(len(expected))
        assert program.stop() == 0
    events = [json.loads(line) for line in program.lines]
    assert as_bag(events) == as_bag(expected)
    versions = [event["_commit_version"] for event in events]
    assert versions == sorted(versions)
    assert len({event["_event_id"] for event in events}) == len(events)
    assert {event["_change_type"] for event in events} == {
        "insert",
        "update_preimage",
        "update_postimage",
        "delete",
    }
