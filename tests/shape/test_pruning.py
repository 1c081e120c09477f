"""Files that a condition leaves out have no row that meets it: against DuckDB, type by type."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tailer.changes import ChangeFile
from tailer.delta.parquet_columns import ParquetColumns
from tailer.shape import sql
from tailer.shape.columns import TableColumns
from tailer.shape.expressions import Condition, parse_condition
from tailer.shape.pruning import Pruning
from tailer.testing.batches import change_batch

DAY, MICRO = dt.date(2024, 2, 28), dt.timedelta(microseconds=1)
NOON = dt.datetime(2024, 2, 28, 12)  # noqa: DTZ001  # of the type without a zone
DECIMALS = [Decimal("0.1"), Decimal("1.5"), Decimal(-2)]
#: Each type with values that are near each other, and how statistics and a condition write one.
KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any], Callable[[Any], Any]]] = {
    "byte": (pa.int8(), st.integers(-3, 3), int),
    "integer": (pa.int32(), st.integers(-3, 3), int),
    "long": (pa.int64(), st.integers(2**53, 2**53 + 3), int),
    "double": (pa.float64(), st.sampled_from([-0.0, 0.0, 0.1, 1.5, float("nan")]), float),
    "float": (pa.float32(), st.sampled_from([0.1, 0.5, 1.5]), float),
    "decimal": (pa.decimal128(5, 2), st.sampled_from(DECIMALS), float),
    "wide": (pa.decimal128(38, 37), st.sampled_from(DECIMALS), float),
    "string": (pa.string(), st.sampled_from(["", "a", "ab", "b", "é", "z" * 40]), str),
    "boolean": (pa.bool_(), st.booleans(), bool),
    "date": (pa.date32(), st.integers(0, 4).map(lambda n: DAY + dt.timedelta(n)), str),
    "timestamp_ntz": (pa.timestamp("us"), st.integers(0, 4).map(lambda n: NOON + n * MICRO), str),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        st.integers(0, 4).map(lambda n: (NOON + n * MICRO).replace(tzinfo=dt.UTC)),
        str,
    ),
}  # fmt: skip
LITERALS = [
    "0", "1", "-2", "0.1", "1.50", "1.5000000001", "9007199254740993", "'1'", "' 1 '", "'1_0'",
    "''",
    "'a'", "'ab'", "'é'", "'zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz'", "true", "false",
    "'2024-02-29'", "'2024-02-28'", "'2024-02-28 12:00:00.000002'", "date '2024-02-29'",
    "'2024-02-28 12:00:00.000002+00:00'", "'2024-02-28 14:00:00.000002+02:00'",
    "date '2024-02-28 12:00:00'", "timestamp '2024-02-28 12:00:00.000002'",
    "timestamp '2024-02-28 14:00:00.000002+02:00'",
    "timestamptz '2024-02-28 14:00:00.000002+02:00'",
    "timestamptz '2024-02-28 12:00:00.000002'", "'2024-02-28 12:00:00.0000019'", "null",
]  # fmt: skip
SHAPES = [
    "c = {0}", "c <> {0}", "c < {0}", "c <= {0}", "{0} > c", "{0} <= c", "not c > {0}",
    "c in ({0}, {1})", "c not in ({0}, {1})", "c between {0} and {1}", "c is null",
    "c is not null and c >= {0}", "c < {0} or c > {1}", "not (c = {0} or c is null)",
]  # fmt: skip


CONDITIONS = st.builds(
    lambda shape, one, other: parse_condition(shape.format(one, other)),
    st.sampled_from(SHAPES), st.sampled_from(LITERALS), st.sampled_from(LITERALS),
)  # fmt: skip


def find_wanted(
    database: sql.ExpressionDatabase, rows: pa.RecordBatch, where: Condition
) -> list[bool] | None:
    """Which rows meet a condition; None if it can't be computed for one."""
    try:
        (found,) = database.compute_values(rows, [where.sql])
    except sql.NotComputed:
        return None
    return [v is True for v in found.to_pylist()]


def file_of(schema: pa.Schema, values: list[Any]) -> ChangeFile:
    """A file of inserts with these values."""
    batch = change_batch(schema, [{"c": v} for v in values])
    assert batch.file is not None
    return structs.replace(batch.file, change_type="insert", origin="files")


def _number(value: Any) -> float:
    return value if isinstance(value, float) else 0.0


def statistics(values: list[Any], write: Callable[[Any], Any]) -> str:
    """Statistics as Spark writes them."""
    known: list[Any] = [v for v in values if v is not None and not math.isnan(_number(v))]
    ends = {}
    if known and not isinstance(known[0], bool):  # which have no bounds, as NaN is in none
        ends = {"minValues": {"c": min(known)}, "maxValues": {"c": max(known)}}
    found: dict[str, Any] = {"numRecords": len(values), "nullCount": {"c": values.count(None)}}
    return json.dumps(found | ends, default=write)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_left_out_has_no_row_that_is_wanted(kind: str) -> None:
    data_type, drawn, write = KINDS[kind]
    schema = pa.schema([("c", data_type)])
    database = sql.ExpressionDatabase()

    @given(st.lists(drawn | st.none(), min_size=1, max_size=4), CONDITIONS)
    def check(values: list[Any], where: Condition) -> None:
        rows = pa.record_batch([pa.array(values, data_type)], schema=schema)
        if (wanted := find_wanted(database, rows, where)) is None:
            return
        stats = statistics(values, write)
        file = structs.replace(file_of(schema, values), stats=stats)
        may = Pruning(where, TableColumns()).find_results(file, statistics=True)
        if any(wanted):
            assert may.true, (where.text, values)
        if may.certain:
            assert all(wanted), (where.text, values)

    check()


WHOLE = ("byte", "integer", "long", "date", "timestamp")


@pytest.mark.parametrize("kind", WHOLE)
def test_a_row_group_that_is_left_out_has_no_row_that_is_wanted(kind: str) -> None:
    data_type, drawn, _ = KINDS[kind]
    schema = pa.schema([("c", data_type)])
    database = sql.ExpressionDatabase()

    @given(st.lists(drawn | st.none(), min_size=3, max_size=7), CONDITIONS)
    def check(values: list[Any], where: Condition) -> None:
        rows = pa.record_batch([pa.array(values, data_type)], schema=schema)
        if (wanted := find_wanted(database, rows, where)) is None:
            return
        file = file_of(schema, values)
        groups = Pruning(where, TableColumns()).find_unwanted_groups(file, in_groups(rows, 2))
        for group in groups:
            assert not any(wanted[2 * group : 2 * group + 2]), (where.text, values, group)

    check()


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        ("byte", "c > 1"),
        ("integer", "c in (2, 3)"),
        ("integer", "c is null"),
        ("long", "c between 9007199254740994 and 9007199254740999"),
        ("date", "c >= date '2024-03-01'"),
        ("timestamp", "c > '2024-02-28 13:00:00+00:00'"),
    ],
)
def test_statistics_leave_row_groups_out(kind: str, where: str) -> None:
    low, high = {
        "byte": (1, 2),
        "integer": (1, 2),
        "long": (2**53, 2**53 + 2),
        "date": (DAY, DAY + dt.timedelta(2)),
        "timestamp": (NOON.replace(tzinfo=dt.UTC), NOON.replace(tzinfo=dt.UTC, hour=14)),
    }[kind]
    last = None if "null" in where else high
    rows = pa.record_batch([pa.array([low, low, last], KINDS[kind][0])], names=["c"])
    batch = change_batch(rows.schema, [{"c": low}])
    assert batch.file is not None
    found = Pruning(parse_condition(where), TableColumns())
    assert found.find_unwanted_groups(batch.file, in_groups(rows, 2)) == {0}


def in_groups(rows: pa.RecordBatch, size: int) -> ParquetColumns:
    """A Parquet file with row groups of this size."""
    output = pa.BufferOutputStream()
    pq.write_table(pa.table(rows), output, row_group_size=size)
    return ParquetColumns(pa.BufferReader(output.getvalue()))


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("date", [dt.date(1582, 10, 4), dt.date(1583, 1, 1)]),
        ("timestamp", [dt.datetime(year, 1, 1, tzinfo=dt.UTC) for year in (1, 9999)]),
        ("string", ["a", "b"]),
        ("double", [1.0, 2.0]),
    ],
)  # fmt: skip
def test_statistics_that_readers_read_otherwise_prove_nothing(kind: str, values: list[Any]) -> None:
    data_type = KINDS[kind][0]
    rows = pa.record_batch([pa.array(values, data_type)], names=["c"])
    batch = change_batch(rows.schema, [{"c": v} for v in values])
    assert batch.file is not None
    literal = {"string": "'z'", "double": "9"}.get(kind, "'2024-02-28'")
    where = parse_condition(f"c = {literal}")
    assert not Pruning(where, TableColumns()).find_unwanted_groups(batch.file, in_groups(rows, 1))


@pytest.mark.parametrize(
    ("where", "low", "high"),
    [("c > 5", 1, 5), ("c in (1, 9)", 2, 8), ("c between 7 and 9", 1, 6), ("c is null", 1, 2)],
)
def test_statistics_leave_files_out(where: str, low: int, high: int) -> None:
    batch = change_batch(pa.schema([("c", pa.int64())]), [{"c": low}])
    assert batch.file is not None
    found = {"minValues": {"c": low}, "maxValues": {"c": high}, "nullCount": {"c": 0}}
    file = structs.replace(batch.file, stats=json.dumps({"numRecords": 9, **found}))
    assert (
        not Pruning(parse_condition(where), TableColumns()).find_results(file, statistics=True).true
    )
