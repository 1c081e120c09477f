"""View types in their plain ones: the same values, that rows can be selected from."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tailer.delta.arrow_views import plain_type, without_views

TEXT, BYTES = pa.string_view(), pa.binary_view()
LONG = "a text that is too long to be kept within its view"
NAMED = pa.struct([pa.field("t", TEXT, metadata={"PARQUET:field_id": "3"}), ("n", pa.int64())])

CASES: list[tuple[pa.DataType, list[Any]]] = [
    (TEXT, ["a", None, LONG, "", "b"]),
    (BYTES, [b"a", None, LONG.encode(), b"", b"b"]),
    (NAMED, [{"t": "a", "n": 1}, None, {"t": None, "n": 2}, {"t": LONG, "n": None}]),
    (pa.list_(TEXT), [["a", LONG], None, [], [None], ["b"]]),
    (pa.large_list(TEXT), [["a", LONG], None, [], [None], ["b"]]),
    (pa.list_view(pa.int64()), [[1], None, [], [2, None, 3], [4]]),
    (pa.large_list_view(TEXT), [["a"], None, [], [LONG, None], ["b"]]),
    (pa.list_view(pa.list_view(TEXT)), [[["a"], None, []], None, [[LONG, "b"]], [["c"]]]),
    (pa.map_(TEXT, TEXT), [[("a", "b")], None, [], [("c", None), (LONG, "d")], [("e", "f")]]),
    (pa.map_(pa.int64(), pa.list_view(TEXT)), [[(1, ["a"])], None, [(2, None), (3, ["b", LONG])]]),
    (pa.struct([("l", pa.list_(NAMED))]), [{"l": [{"t": "a", "n": 1}, None]}, None, {"l": None}]),
]


def parts(data_type: pa.DataType) -> list[pa.DataType]:
    below = [data_type.field(i).type for i in range(getattr(data_type, "num_fields", 0))]
    return [data_type, *(part for child in below for part in parts(child))]


@pytest.mark.parametrize(("data_type", "values"), CASES, ids=lambda case: str(case)[:30])
def test_the_values_are_the_same_in_any_slice(data_type: pa.DataType, values: list[Any]) -> None:
    array = pa.array(values, data_type)
    for first in range(len(values)):
        for last in range(first, len(values) + 1):
            plain = without_views(array[first:last])
            plain.validate(full=True)
            assert plain.to_pylist() == values[first:last]
            assert plain.take(pa.arange(0, len(plain))).to_pylist() == values[first:last]
            assert plain.type == plain_type(data_type)


@pytest.mark.parametrize(("data_type", "values"), CASES, ids=lambda case: str(case)[:30])
def test_no_view_is_left_at_any_depth(data_type: pa.DataType, values: list[Any]) -> None:
    del values
    views = (TEXT, BYTES)
    found = parts(plain_type(data_type))
    assert not [p for p in found if p in views or "view" in str(p)]


def test_a_field_keeps_its_id() -> None:
    assert plain_type(NAMED).field("t").metadata == {b"PARQUET:field_id": b"3"}


def test_an_array_without_views_is_itself() -> None:
    for array in (pa.array([1]), pa.array([{"a": ["x"]}]), pa.array(["a"]).dictionary_encode()):
        assert without_views(array) is array
