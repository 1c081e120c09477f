"""Copies whose rows are JSON: reading them back, and which changes of columns they follow."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinks.formats.json import json_values
from sinks.shared.json_copy import add_columns, find_column
from tailer.errors import TargetRefused
from tailer.testing.batches import change_batch

SCALARS = st.sampled_from(
    [pa.int64(), pa.string(), pa.float64(), pa.bool_(), pa.date32(), pa.decimal128(9, 2)]
)


def nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    names = st.lists(st.sampled_from(["a", "b", 'q"', "ü"]), min_size=1, max_size=3, unique=True)
    structs = st.builds(
        lambda names, types: pa.struct(list(zip(names, types, strict=False))),
        names, st.lists(inner, min_size=3, max_size=3),
    )  # fmt: skip
    return structs | st.builds(lambda each: pa.list_(pa.field("element", each)), inner)


TYPES = st.recursive(SCALARS, nested, max_leaves=5)


def values_of(data_type: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_struct(data_type):
        return st.none() | st.fixed_dictionaries(
            {f.name: values_of(f.type) for f in data_type.fields}
        )
    if pa.types.is_list(data_type):
        return st.none() | st.lists(values_of(data_type.value_type), max_size=3)
    plain: dict[pa.DataType, st.SearchStrategy[Any]] = {
        pa.int64(): st.integers(-(2**63), 2**63 - 1), pa.string(): st.text(max_size=5),
        pa.float64(): st.floats(), pa.bool_(): st.booleans(),
        pa.date32(): st.dates(), pa.decimal128(9, 2): st.decimals(-9, 9, places=2),
    }  # fmt: skip
    return st.none() | plain[data_type]


@given(st.data())
def test_what_was_written_is_read_back_as_it_would_be_written(data: st.DataObject) -> None:
    data_type = data.draw(TYPES)
    column = pa.array(data.draw(st.lists(values_of(data_type), max_size=5)), data_type)
    texts = json_values(column)
    rows = [{"c": msgspec.Raw(text.encode())} for text in texts.to_pylist()]
    assert find_column(rows, pa.field("c", data_type)).equals(texts)


def test_members_that_came_later_are_null_and_dropped_ones_are_left_out() -> None:
    inner = pa.struct({"a": pa.int64(), "n": pa.string()})
    data_type = pa.struct({"a": pa.int64(), "l": pa.list_(inner), "new": pa.string()})
    raw = msgspec.Raw(b'{"gone":1,"a":1.0e5,"l":[{"a":1},null,{"n":"x","a":2,"b":3}]}')
    found = find_column([{"c": raw}, {}], pa.field("c", data_type)).to_pylist()
    wanted = '{"a":1.0e5,"l":[{"a":1,"n":null},null,{"a":2,"n":"x"}],"new":null}'
    assert found == [wanted, "null"]


@pytest.mark.parametrize(
    ("old", "new", "follows"),
    [
        (pa.int32(), pa.int64(), True),
        (pa.int64(), pa.float64(), False),
        (pa.float32(), pa.float64(), False),
        (pa.decimal128(5, 2), pa.decimal128(9, 2), False),
        (pa.date32(), pa.timestamp("us"), False),
        (pa.struct({"a": pa.int32()}), pa.struct({"a": pa.int64(), "b": pa.string()}), True),
        (pa.struct({"a": pa.int32(), "b": pa.string()}), pa.struct({"a": pa.int32()}), False),
        (pa.struct({"a": pa.int32()}), pa.struct({"a": pa.string()}), False),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), True),
        (pa.list_(pa.int32()), pa.int32(), False),
    ],
    ids=str,
)
def test_which_types_rows_follow(old: pa.DataType, new: pa.DataType, *, follows: bool) -> None:
    first = change_batch(pa.schema([("c", old)]), [{"c": None}])
    second = change_batch(pa.schema([("c", new)]), [{"c": None}], version=2)
    had = add_columns(first, pa.schema([("c", old)]), {}, "here")
    had = json.loads(json.dumps(had))
    if follows:
        assert add_columns(second, pa.schema([("c", new)]), had, "here")
    else:
        with pytest.raises(TargetRefused, match="here: version 2 has renamed, replaced or changed"):
            add_columns(second, pa.schema([("c", new)]), had, "here")
