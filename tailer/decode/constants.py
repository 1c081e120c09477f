"""Columns of one value: every batch has at least three. pyarrow fills them value by value."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tailer.native.values import make_texts

#: This number of rows of one kind is kept; of fewer rows, ``pa.repeat`` takes no time.
_KEPT_ROWS, _FEW_ROWS = 131_072, 4096
#: This number of runs of equal numbers is not few.
_RUNS_MAX = 64


def repeat_value(value: pa.Scalar, count: int) -> pa.Array:
    """Return what ``pa.repeat`` does, for numbers and times in a thirtieth of its time."""
    width = _find_width(value.type)
    if not width or not value.is_valid or count < _FEW_ROWS:
        return pa.repeat(value, count)
    one = pa.repeat(value, 1).buffers()[1].to_pybytes()[:width]
    many = _repeat_bytes(one, 1 << (count - 1).bit_length())
    return pa.Array.from_buffers(value.type, count, [None, many], 0)


@lru_cache(maxsize=4)
def _repeat_bytes(value: bytes, count: int) -> pa.Buffer:
    """Return a value's bytes ``count`` times: the batches of a file are mostly of one size."""
    return pa.py_buffer(value * count)


def _find_width(data_type: pa.DataType) -> int:
    """Return the bytes of a value; 0 where its buffer is not made of whole bytes."""
    types = pa.types
    fixed = types.is_integer(data_type) or types.is_temporal(data_type)
    return int(data_type.bit_width) // 8 if fixed or types.is_floating(data_type) else 0


def repeat_kind(kind: Any, count: int) -> pa.StringArray:
    """Return a column of one kind of change."""
    if not _FEW_ROWS <= count <= _KEPT_ROWS:
        return _build_kind_column(kind, count)
    return _share_kind_column(kind).slice(0, count)


@lru_cache(maxsize=6)
def _share_kind_column(kind: str) -> pa.StringArray:
    return _build_kind_column(kind, _KEPT_ROWS)


def _build_kind_column(kind: str, count: int) -> pa.StringArray:
    return pa.repeat(make_texts([kind])[0], count)


def build_kinds_column(kinds: list[str], numbers: pa.Array) -> pa.StringArray:
    """Return the column of kinds with these ``numbers``. Most writers keep equal ones together."""
    runs = find_few_runs(numbers)
    if not runs:
        return pc.take(make_texts(kinds), numbers)
    columns = [repeat_kind(kinds[number], length) for number, length in runs]
    return columns[0] if len(columns) == 1 else pa.concat_arrays(columns)


def find_few_runs(numbers: pa.Array) -> list[tuple[Any, int]] | None:
    """Return the runs of equal numbers, each with its length; None if they are many."""
    runs = pc.run_end_encode(numbers)
    if len(runs.values) >= _RUNS_MAX:
        return None
    ends = pairwise([0, *runs.run_ends.to_pylist()])
    lengths = (end - at for at, end in ends)
    return list(zip(runs.values.to_pylist(), lengths, strict=True))


def list_texts(coded: pa.DictionaryArray) -> list[Any]:
    """Return the texts that an array's indices mean."""
    texts = coded.dictionary
    if not pa.types.is_string(texts.type):
        texts = texts.cast(pa.string())
    return list(texts.to_pylist())
