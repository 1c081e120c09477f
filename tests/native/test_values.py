"""Arrays made of bytes are those that pyarrow makes."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tailer.native.values import make_flags, make_integers, make_texts

TIMES = pa.timestamp("us", "UTC")


@pytest.mark.parametrize("values", [[], ["a"], ["", "ä", "insert", ""]])
def test_texts(values: list[str]) -> None:
    made = make_texts(values)
    made.validate(full=True)
    assert made.equals(pa.array(values, pa.string()))


@pytest.mark.parametrize("data_type", [pa.int8(), pa.int16(), pa.int32(), pa.int64(), TIMES])
@pytest.mark.parametrize("values", [[], [0], [-128, 127, 5]])
def test_integers(values: list[int], data_type: pa.DataType) -> None:
    made = make_integers(values, data_type)
    made.validate(full=True)
    assert made.equals(pa.array(values, data_type))


@pytest.mark.parametrize("values", [[], [True], [False, True] * 9])
def test_flags(values: list[bool]) -> None:
    made = make_flags(values)
    made.validate(full=True)
    assert made.equals(pa.array(values, pa.bool_()))
