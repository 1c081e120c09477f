"""Rows that stand at one place of two files, compared by value."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tailer.compare.equal_rows import find_differing_rows

FLOATS = [math.nan, 0.0, -0.0, 1.5]
LEAVES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int32(), st.integers(0, 1)),
    (pa.float64(), st.sampled_from(FLOATS)),
    (pa.float32(), st.sampled_from(FLOATS)),
    (pa.string(), st.sampled_from(["", "a"])),
    (pa.bool_(), st.booleans()),
    (pa.decimal128(38, 2), st.decimals(0, 1, places=2)),
    (pa.null(), st.none()),
]


def nested(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Types around a type, each with what makes its values."""
    return children.flatmap(
        lambda child: st.sampled_from(
            [
                (pa.list_(child[0]), st.lists(or_null(child), max_size=3)),
                (pa.large_list(child[0]), st.lists(or_null(child), max_size=3)),
                (
                    pa.struct([("x", child[0]), ("y", pa.int8())]),
                    st.fixed_dictionaries({"x": or_null(child), "y": st.integers(0, 1)}),
                ),
                (
                    pa.map_(pa.string(), child[0]),
                    st.lists(st.tuples(st.sampled_from("ab"), or_null(child)), max_size=2),
                ),
            ]
        )
    )


def or_null(kind: tuple[pa.DataType, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    return st.none() | kind[1]


KINDS = st.recursive(st.sampled_from(LEAVES), nested, max_leaves=3)


def canonical(value: Any) -> Any:
    """A form in which equal values, and no others, are equal; maps keep their order."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, dict):
        return tuple((name, canonical(v)) for name, v in value.items())
    return tuple(map(canonical, value)) if isinstance(value, list | tuple) else value


@given(st.data())
def test_rows_differ_where_their_values_do_at_any_depth(data: st.DataObject) -> None:
    data_type, values = data.draw(KINDS)
    rows = data.draw(st.lists(st.tuples(st.none() | values, st.none() | values), min_size=3))
    begin = data.draw(st.integers(0, 2))
    one, other = (pa.array(column, data_type).slice(begin) for column in zip(*rows, strict=True))
    mask, count = find_differing_rows([one], [other], len(one))
    pairs = zip(one.to_pylist(), other.to_pylist(), strict=True)
    expected = [canonical(a) != canonical(b) for a, b in pairs]
    assert mask.to_pylist() == expected
    assert count == sum(expected)


def test_a_slice_of_maps_with_values_of_the_null_type_is_compared() -> None:
    """pyarrow ends the process that uses its cast to lists."""
    kind = pa.map_(pa.string(), pa.struct([("x", pa.null()), ("y", pa.int8())]))
    full = [("a", {"x": None, "y": 1}), ("b", {"x": None, "y": 0})]
    one = pa.array([None, [("a", None)], None, []], kind).slice(2)
    other = pa.array([[], [], full, []], kind).slice(2)
    mask, count = find_differing_rows([one], [other], 2)
    assert (mask.to_pylist(), count) == ([True, False], 1)


def test_no_maps_are_compared_without_offsets() -> None:
    """Arrow lets an array without rows have no offsets, which pyarrow would read all the same."""
    kind = pa.map_(pa.string(), pa.int32())
    entry = pa.struct([pa.field("key", pa.string(), nullable=False), ("value", pa.int32())])
    none = pa.MapArray.from_buffers(kind, 0, [None, None], children=[pa.array([], entry)])
    mask, count = find_differing_rows([none], [none], 0)
    assert (mask.to_pylist(), count) == ([], 0)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from(FLOATS), st.integers(0, 2)), min_size=1)
)
def test_a_row_differs_in_any_of_its_columns(rows: list[tuple[int, float, int]]) -> None:
    mask, count = find_differing_rows(
        [pa.array([r[0] for r in rows]), pa.array([r[1] for r in rows])],
        [pa.array([r[2] for r in rows]), pa.array([r[1] for r in rows])],
        len(rows),
    )
    assert mask.to_pylist() == [r[0] != r[2] for r in rows]
    assert count == sum(mask.to_pylist())
