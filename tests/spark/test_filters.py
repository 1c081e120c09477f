"""Conditions that Spark offers a Python source, one by one: pushed down or not, the rows are those
that Spark itself keeps of all rows."""

from __future__ import annotations

import datetime as dt
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import datasource as ds
from pyspark.sql import functions as f

from tailer.changes import COMMIT_VERSION
from tailer.delta.segment import commit_name
from tailer.spark.source import FilteringReader, TailerSource

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("part", pa.string()),
        ("day", pa.date32()),
        ("flag", pa.bool_()),
        ("tiny", pa.int8()),
        ("small", pa.int16()),
        ("number", pa.int32()),
        ("single", pa.float32()),
        ("double", pa.float64()),
        ("exact", pa.decimal128(20, 4)),
        ("word", pa.string()),
        ("bytes", pa.binary()),
        ("moment", pa.timestamp("us", "UTC")),
        ("plain", pa.timestamp("us")),
        ("inner", pa.struct([("x", pa.int64()), ("deep", pa.struct([("y.z", pa.string())]))])),
    ]
)
Row = tuple[Any, ...]
NAMES = ("id", "part", "_change_type", "_commit_version")
DAY = dt.date(2024, 2, 29)
MOMENT = dt.datetime(2024, 2, 29, 12, 30, 15, 123456)  # noqa: DTZ001 - one without a zone


def row(i: int) -> dict[str, Any]:
    """A row of values that grow with their number; every third is null, and one is not a number."""
    values: dict[str, Any] = {"id": i, "part": [None, "a", "b c"][i % 3]}
    if i % 3 == 2:
        return {**dict.fromkeys(SCHEMA.names), **values}
    moment = MOMENT + dt.timedelta(hours=i)
    return {
        **values,
        "day": DAY + dt.timedelta(i),
        "flag": i % 2 == 0,
        "tiny": i - 4,
        "small": i - 4,
        "number": i - 4,
        "single": float("nan") if i == 3 else i / 4,
        "double": float("nan") if i == 3 else -0.0 if i == 0 else i / 4,
        "exact": Decimal(i) / 4,
        "word": ["", "one 100%", "one_two", "_été"][i % 4],
        "bytes": bytes([i]),
        "moment": moment.replace(tzinfo=dt.UTC),
        "plain": moment,
        "inner": None if i == 4 else {"x": i, "deep": {"y.z": f"v{i}"}},
    }


# Conditions on the version, which are used to read fewer of them.
VERSIONS = (
    "_commit_version = 2",
    "_commit_version <=> 2",
    "_commit_version > 1",
    "_commit_version >= 2",
    "_commit_version < 2",
    "_commit_version <= 1",
    "_commit_version BETWEEN 2 AND 2",
    "_commit_version > 2 AND _commit_version < 1",
    "_commit_version = -1",
    "_commit_version < 0",
    "_commit_version > 9223372036854775806",
    "_commit_version IS NOT NULL",
    "2 <= _commit_version",
    "_commit_version IN (1, 3)",
    "_commit_version IN (2, 7)",
    "_commit_version IS NULL",
    "_commit_version <=> NULL",
    "_commit_version NOT IN (1, 3)",
    "_commit_version != 2",
)
# Other columns, other operators, parts of an OR, literals of every type.
OTHERS = (
    "_commit_version IN (2, 3) AND id > 2",
    "NOT (_commit_version <=> 2)",
    "NOT (_commit_version > 1)",
    "_commit_version = 2 OR id = 1",
    "_commit_version = 2 AND (id = 1 OR part = 'a')",
    "_commit_version > 1.5",
    "_commit_version = id",
    "_change_type = 'delete'",
    "_change_type IN ('insert', 'update_postimage')",
    "_change_type LIKE 'del%'",
    "_commit_timestamp >= TIMESTAMP '1970-01-01 00:00:02'",
    "_commit_timestamp = TIMESTAMP '1970-01-01 00:00:01'",
    "_commit_timestamp IS NOT NULL",
    "part = 'a'",
    "part <=> NULL",
    "part IS NULL",
    "part IS NOT NULL",
    "part != 'a'",
    "part > 'a'",
    "part IN ('a', 'b c', NULL)",
    "id IN (1, 5)",
    "id <=> 3",
    "NOT (id <=> 3)",
    "day = DATE '2024-03-01'",
    "day IN (DATE '2024-02-29', DATE '2024-03-04')",
    "flag",
    "NOT flag",
    "flag <=> false",
    "tiny <= CAST(-3 AS TINYINT)",
    "small > CAST(-3 AS SMALLINT)",
    "number < -2",
    "number NOT IN (-4, 0)",
    "single = CAST('NaN' AS FLOAT)",
    "single < CAST(1 AS FLOAT)",
    "double = CAST('NaN' AS DOUBLE)",
    "double <=> CAST('NaN' AS DOUBLE)",
    "double > 0.5D",
    "double = 0.0D",
    "double < CAST('Infinity' AS DOUBLE)",
    "exact = CAST(0.75 AS DECIMAL(20, 4))",
    "exact >= CAST(1 AS DECIMAL(20, 4))",
    "word LIKE 'one%'",
    "word LIKE '%two'",
    "word LIKE '%e%'",
    "NOT (word LIKE '%e%')",
    "startswith(word, 'one_')",
    "contains(word, '%')",
    "endswith(word, 'té')",
    "word = ''",
    "bytes = X'03'",
    "bytes > X'01'",
    "moment > TIMESTAMP '2024-02-29 14:30:15.123456Z'",
    "moment = TIMESTAMP '2024-02-29 15:30:15.123456Z'",
    "plain <= TIMESTAMP_NTZ '2024-02-29 14:30:15.123456'",
    "inner IS NULL",
    "inner.x = 3",
    "inner.x IN (0, 7)",
    "inner.deep.`y.z` = 'v1'",
    "inner.deep.`y.z` IS NOT NULL",
)


# Of each kind of condition on version 2 of 0 to 3: whether Spark need not look, and what is read.
BOUNDS = (
    (True, (2, 2)),
    (True, (2, 2)),
    (True, (3, 3)),
    (True, (2, 3)),
    (True, (0, 1)),
    (True, (0, 2)),
    (False, (0, 3)),
    (False, (0, 3)),
    (False, (0, 3)),
    (False, (2, 2)),
    (False, (0, 3)),
    (True, (0, 3)),
)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Versions 0 and 1 are of no rows; 1 and 3 add some, and 2 deletes two of them."""
    folder = tmp_path_factory.mktemp("filters") / "t"
    deltalake.DeltaTable.create(str(folder), SCHEMA, partition_by=["part"])
    rows = [row(i) for i in range(9)]
    write(folder, rows[:5])
    deltalake.DeltaTable(str(folder)).delete("id IN (1, 2)")
    write(folder, rows[5:])
    for version in range(4):
        os.utime(folder / "_delta_log" / commit_name(version), (version, version))
    return folder


def write(folder: Path, rows: list[dict[str, Any]]) -> None:
    """Append rows, a version."""
    deltalake.write_deltalake(str(folder), pa.Table.from_pylist(rows, SCHEMA), mode="append")


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, in which Python sources are offered conditions."""
    spark.dataSource.register(TailerSource)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield spark
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def changes(spark: SparkSession, table: Path) -> DataFrame:
    """All changes, by a source that asks for conditions."""
    reader = spark.read.format("tailer").option("startingVersion", 0).option("minPartitions", 1)
    return reader.option("filterPushdown", "true").load(str(table))


def truths(plain: DataFrame) -> dict[Row, set[str]]:
    """Of each row, the conditions that hold: by Spark, over rows that it was given as they are."""
    conditions = (*VERSIONS, *OTHERS)
    asked = [f.expr(c).alias(f"c{i}") for i, c in enumerate(conditions)]
    return {
        tuple(found[: len(NAMES)]): {
            c for c, holds in zip(conditions, found[len(NAMES) :], strict=True) if holds
        }
        for found in plain.select(*NAMES, *asked).collect()
    }


def together(held: Iterable[set[str]]) -> list[tuple[str, ...]]:
    """Few sets of the other conditions, each of which holds for some row, that have them all."""
    rows = [some & set(OTHERS) for some in held]
    left, found = set[str]().union(*rows), []
    while left:
        most = max(rows, key=lambda some: len(some & left))
        found.append(tuple(sorted(most & left)))
        left -= most
    return found


def test_rows_with_conditions_are_those_that_spark_keeps_of_all(
    pushing: SparkSession, table: Path
) -> None:
    """Each on the version alone; of the others, those that go together in one query, for Spark
    offers a source whatever is joined by AND."""
    all_rows = changes(pushing, table).toArrow()
    assert all_rows.num_rows == 5 + 2 + 4
    held = truths(pushing.createDataFrame(all_rows))
    sets = [*((c,) for c in VERSIONS), *together(held.values())]
    assert {c for some in sets for c in some} == {*VERSIONS, *OTHERS}
    frames = []
    for number, some in enumerate(sets):
        frame = changes(pushing, table).where(" AND ".join(f"({c})" for c in some))
        frames.append(frame.select(f.lit(number), *NAMES))
    found = Counter(tuple(row) for row in reduce(DataFrame.unionAll, frames).collect())
    assert found == Counter(
        (number, *row)
        for number, some in enumerate(sets)
        for row, holds in held.items()
        if set(some) <= holds
    )


def offered(column: str, value: Any) -> list[ds.Filter]:
    """A condition of each kind that Spark has for sources."""
    name = (column,)
    kinds = (ds.EqualTo, ds.EqualNullSafe, ds.GreaterThan, ds.GreaterThanOrEqual, ds.LessThan)
    binary: list[ds.Filter] = [kind(name, value) for kind in (*kinds, ds.LessThanOrEqual)]
    words = (ds.StringStartsWith, ds.StringEndsWith, ds.StringContains)
    found: list[ds.Filter] = [
        *binary,
        *(kind(name, str(value)) for kind in words),
        ds.In(name, (value, None)),
    ]
    found += [ds.IsNull(name), ds.IsNotNull(name)]
    return [*found, *(ds.Not(each) for each in found)]


def test_conditions_on_the_version_alone_are_taken_off_sparks_hands(table: Path) -> None:
    def taken(conditions: Sequence[ds.Filter]) -> tuple[list[str], int, int]:
        asked = {"path": str(table), "startingVersion": "0", "filterPushdown": "true"}
        source = TailerSource(asked)
        reader = source.reader(source.schema())
        assert isinstance(reader, FilteringReader)
        left = [*reader.pushFilters([*conditions])]
        kinds = [type(c).__name__ for c in conditions if all(c is not other for other in left)]
        return kinds, reader.first, reader.last

    for condition, bounds in zip(offered(COMMIT_VERSION, 2), BOUNDS, strict=False):
        kinds, *found = taken([condition])
        assert (bool(kinds), tuple(found)) == bounds, condition
    assert taken(offered(COMMIT_VERSION, 2)[len(BOUNDS) :]) == ([], 0, 3), "none that is negated"
    assert taken(offered(COMMIT_VERSION, None)) == (["IsNotNull"], 0, 3)
    others = [*offered("id", 2), *offered("_change_type", "delete"), *offered("inner", None)]
    assert taken([*others, ds.EqualTo(("inner", COMMIT_VERSION), 2)]) == ([], 0, 3)
    both = [ds.GreaterThan((COMMIT_VERSION,), 0), ds.LessThan((COMMIT_VERSION,), 3)]
    assert taken(both) == (["GreaterThan", "LessThan"], 1, 2)
