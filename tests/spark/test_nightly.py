"""A nightly job, Trigger.AvailableNow, on a table that people change by day: beside Spark's own
stream it has the same rows, or refuses by name, each time."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tailer.spark.source import TailerSource

Rows = Counter[tuple[tuple[str, Any], ...]]

CDF = "delta.enableChangeDataFeed = true"
MADE = (
    f"CREATE TABLE {{}} (id BIGINT, name STRING) USING delta TBLPROPERTIES ({CDF})",
    "INSERT INTO {} VALUES (1, 'a'), (2, 'b')",
)
MAPPED = (MADE[0].replace(CDF, f"{CDF}, delta.columnMapping.mode = 'name'"), MADE[1])
MORE = ("INSERT INTO {} VALUES (3, 'c')", "UPDATE {} SET name = 'x' WHERE id = 1")
#: `df.write.option("overwriteSchema", "true")`, of these columns.
OVERWRITE = "OVERWRITE "
OTHER = f"{OVERWRITE}SELECT 'k' AS code, 1.5D AS price"
LESS = f"{OVERWRITE}SELECT 9L AS id"
#: The table is deleted.
AGAIN = "AGAIN"


class Case(NamedTuple):
    """What is done to the table by day, and what the job is told at night: nothing, where it has
    Spark's rows, or, with ``ahead``, the rows where Spark's own stream gives up."""

    day: tuple[str, ...]
    told: str | None = None
    ahead: bool = False
    mapped: bool = False


NOT_LEFT = "none of the query's columns"
REPLACED = r"the query has read table .* start a new query with a new checkpoint"
CASES = {
    "a new column": Case(
        (*MORE, "ALTER TABLE {} ADD COLUMNS (size INT)", "INSERT INTO {} VALUES (4, 'd', 5)")
    ),
    "overwritten behind rows": Case((*MORE, OTHER), NOT_LEFT),
    "overwritten": Case((OTHER,), f"the rows removed by this version have {NOT_LEFT}"),
    "a column overwritten": Case((LESS,), ahead=True),
    "dropped behind rows": Case(
        (*MORE, "ALTER TABLE {} DROP COLUMN name"), r"the query lacks \(name\)", mapped=True
    ),
    "renamed behind rows": Case(
        (*MORE, "ALTER TABLE {} RENAME COLUMN name TO label"), ahead=True, mapped=True
    ),
    "made again, as long": Case((AGAIN, *MADE), REPLACED),
    "made again, longer": Case((AGAIN, *MADE, *MORE), REPLACED),
}


@pytest.fixture(scope="module")
def begun(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """A folder with a table, without a column mapping and with one, and the checkpoints of the
    first night."""
    spark.dataSource.register(TailerSource)
    found = {}
    for mapped in (False, True):
        folder = tmp_path_factory.mktemp("first")
        change(spark, folder / "orders", MAPPED if mapped else MADE)
        ours, own = (night(spark, kind, folder) for kind in ("tailer", "delta"))
        assert ours == own
        assert len(ours) == 2
        found[mapped] = folder
    return found


def change(spark: SparkSession, folder: Path, statements: tuple[str, ...]) -> None:
    for statement in statements:
        if statement == AGAIN:
            shutil.rmtree(folder)
            log: Any = getattr(spark._jvm, "org.apache.spark.sql.delta.DeltaLog")
            log.clearCache()  # Delta looks at a table that it knows once a second
        elif statement.startswith(OVERWRITE):
            frame = spark.sql(statement.removeprefix(OVERWRITE)).write.format("delta")
            frame.mode("overwrite").option("overwriteSchema", "true").save(str(folder))
        else:
            spark.sql(statement.format(f"delta.`{folder}`"))


def night(spark: SparkSession, kind: str, folder: Path) -> Rows | str:
    """What one run of the job has read, or the first line of what it was told."""
    found: Rows = Counter()

    def keep(frame: DataFrame, _: int) -> None:
        for row in frame.drop("_commit_timestamp").collect():
            found[tuple(sorted(row.asDict().items()))] += 1

    reader = spark.readStream.format(kind).option("readChangeFeed", "true")
    query = (
        reader.option("startingVersion", 0)
        .load(str(folder / "orders"))
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(folder / kind))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination(200)
    except PySparkException as e:
        return str(e).splitlines()[0]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_each_night_has_sparks_rows_or_a_refusal_by_name(
    name: str, spark: SparkSession, begun: dict[bool, Path], tmp_path: Path
) -> None:
    case, folder = CASES[name], tmp_path / "second"
    shutil.copytree(begun[case.mapped], folder)
    change(spark, folder / "orders", case.day)
    ours, own = (night(spark, kind, folder) for kind in ("tailer", "delta"))
    if case.told is not None:
        assert isinstance(ours, str), f"the night has ended well with {ours}"
        assert re.search(case.told, ours)
    elif case.ahead:
        assert isinstance(own, str), "Spark's own stream goes on, too"
        assert isinstance(ours, Counter), ours
        assert all(any(value is not None for _, value in row) for row in ours)
        assert ours
    else:
        assert ours == own
