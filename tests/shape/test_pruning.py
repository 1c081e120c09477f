"""Files that a condition leaves out have no row that meets it: against DuckDB, type by type."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tailer.shape import sql
from tailer.shape.columns import TableColumns
from tailer.shape.expressions import parse_condition
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
    database = sql.Database()

    @given(
        st.lists(drawn | st.none(), min_size=1, max_size=4), st.sampled_from(SHAPES),
        st.sampled_from(LITERALS), st.sampled_from(LITERALS),
    )  # fmt: skip
    def check(values: list[Any], shape: str, one: str, other: str) -> None:
        where = parse_condition(shape.format(one, other))
        rows = pa.RecordBatch.from_arrays([pa.array(values, data_type)], schema=schema)
        try:
            (found,) = database.compute_values(rows, [where.sql])
        except sql.NotComputed:
            return
        batch = change_batch(schema, [{"c": v} for v in values])
        assert batch.file is not None
        wanted = [v is True for v in found.to_pylist()]
        stats = statistics(values, write)
        file = structs.replace(batch.file, stats=stats, change_type="insert", origin="files")
        may = Pruning(where, TableColumns()).find_results(file, statistics=True)
        if any(wanted):
            assert may.true, (where.text, values)
        if may.certain:
            assert all(wanted), (where.text, values)

    check()


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
