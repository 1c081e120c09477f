"""Arrow's functions give what those of pyarrow.compute give, however they are called."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute
import pytest

from tailer.native import compute as pc

NUMBERS, MASK = pa.array([3, None, 1]), pa.array([True, None, False])
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("add", (NUMBERS, 1), {}),
    ("and_not", (MASK, MASK), {}),
    ("any", (MASK,), {}),
    ("binary_join_element_wise", (pa.array(["a", None]), pa.array(["b", "c"]), "-"), {}),
    ("cast", (NUMBERS, pa.string()), {}),
    ("coalesce", (NUMBERS, pa.scalar(7)), {}),
    ("equal", (pa.compute.field("x"), 3), {}),
    ("fill_null", (NUMBERS,), {"fill_value": 7}),
    ("filter", (NUMBERS, MASK), {}),
    ("index", (NUMBERS, 1), {}),
    ("index", (NUMBERS, 4), {}),
    ("is_in", (NUMBERS,), {"value_set": pa.array([1])}),
    ("or_", (MASK, MASK), {}),
    ("run_end_encode", (NUMBERS,), {}),
    ("sum", (NUMBERS,), {"skip_nulls": False}),
    ("take", (pa.record_batch({"x": NUMBERS}), pa.array([2, 0])), {}),
    ("utf8_slice_codeunits", (pa.array(["abc"]), 1, 2), {}),
]


@pytest.mark.parametrize(("name", "values", "options"), CALLS)
def test_each_way_to_call_gives_what_pyarrow_gives(
    name: str, values: tuple[Any, ...], options: dict[str, Any]
) -> None:
    wanted = getattr(pyarrow.compute, name)(*values, **options)
    found = getattr(pc, name)(*values, **options)
    assert found.equals(wanted)
    assert str(found) == str(wanted)


def test_classes_are_pyarrows() -> None:
    assert pc.CastOptions is pyarrow.compute.CastOptions
    with pytest.raises(AttributeError):
        pc.no_such_function  # noqa: B018
