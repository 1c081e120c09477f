"""Columns of one value, and of kinds of change: the same as pyarrow makes, value by value."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from tailer.changes import CHANGE_TYPES
from tailer.decode.constants import build_kinds_column, repeat_kind, repeat_value
from tailer.delta.actions import Protocol
from tailer.errors import CorruptLog, CorruptRow
from tests.decode.test_rows import decoded, numbers, order, values
from tests.support.feeds import ID, refusal, state

COUNTS = [0, 1, 5000, 200_000]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(
    "value",
    [
        pa.scalar(-7, pa.int8()),
        pa.scalar(2**62, pa.int64()),
        pa.scalar(1.5, pa.float32()),
        pa.scalar(True),
        pa.scalar(dt.date(1969, 12, 31)),
        pa.scalar(1_700_000_000_000_000, pa.timestamp("us", "UTC")),
        pa.scalar(Decimal("-1.25"), pa.decimal128(22, 2)),
        pa.scalar("a text"),
        pa.scalar(None, pa.int32()),
    ],
    ids=lambda value: str(value.type),
)
def test_a_constant_is_what_pyarrow_repeats(value: pa.Scalar, count: int) -> None:
    found = repeat_value(value, count)
    found.validate(full=True)
    assert found.equals(pa.repeat(value, count))
    assert found.null_count == (0 if value.is_valid else count)


@pytest.mark.parametrize("count", COUNTS)
def test_a_kind_is_what_pyarrow_repeats(count: int) -> None:
    for kind in CHANGE_TYPES:
        assert repeat_kind(kind, count).equals(pa.repeat(pa.scalar(kind), count))


@pytest.mark.parametrize("of_a_run", [1, 70, 9000])
def test_kinds_in_runs_of_any_length(of_a_run: int) -> None:
    kinds = ["update_preimage", "update_postimage", "delete"]
    numbers = pa.array([number for number in (0, 1, 2, 1) for _ in range(of_a_run)] * 3, pa.int32())
    for some in (numbers, numbers.slice(of_a_run // 2, of_a_run), numbers.slice(0, 0)):
        assert build_kinds_column(kinds, some).equals(pa.array(kinds).take(some))


def test_a_partition_column_is_named_as_users_know_it() -> None:
    key, mode = "delta.columnMapping.", {"delta.columnMapping.mode": "name"}
    names = [(name, {f"{key}id": str(i), f"{key}physicalName": f'"col-{name}"'})
             for i, name in enumerate(("id", "b"), start=1)]  # fmt: skip
    schema = pa.schema(pa.field(name, pa.int64(), metadata=keys) for name, keys in names)
    mapped = state(schema, "b", protocol=Protocol(2, 5), **mode)
    file = order(mapped, partition_values={"COL-B": "7"})
    with pytest.raises(CorruptLog, match="column 'b', which is 'col-b' there, only one for 'COL"):
        decoded(numbers(2), file)


@pytest.mark.parametrize(
    ("text", "later", "found"),
    [("1.50", pa.float64(), 1.5), ("2.00", pa.int32(), 2), ("1.50", pa.decimal128(5, 1), 1.5)],
)
def test_a_partition_value_is_read_in_a_later_type(
    text: str, later: pa.DataType, found: float
) -> None:
    own = state(pa.schema([*ID, ("p", pa.decimal128(5, 2))]), "p")
    file = order(own, partition_values={"p": text})
    target = state(pa.schema([*ID, ("p", later)]), "p")
    assert values(decoded(numbers(1), file, target=target), "p") == [found]


@pytest.mark.parametrize("later", [pa.int32(), pa.decimal128(5, 0)])
def test_a_partition_value_is_neither_cut_nor_rounded_to_a_later_type(later: pa.DataType) -> None:
    own = state(pa.schema([*ID, ("p", pa.decimal128(5, 2))]), "p")
    file = order(own, partition_values={"p": "1.50"})
    target = state(pa.schema([*ID, ("p", later)]), "p")
    message = refusal(lambda: decoded(numbers(1), file, target=target), CorruptRow)
    assert "'1.50' can't be read in the later type of the column 'p'" in message
