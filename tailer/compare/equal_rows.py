"""Which rows of two batches differ where they stand: exact, by value, one column at a time.

Rows that are reported as equal are equal (NaN equals NaN, -0.0 equals 0.0, null equals null). Rows
that are reported as different may still be equal: their maps may have another order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc


class DifferingRows(NamedTuple):
    """Which rows differ (``mask``, without nulls), and their number."""

    mask: pa.BooleanArray
    number: int


def find_differing_rows(
    one: Iterable[pa.Array], other: Iterable[pa.Array], count: int
) -> DifferingRows:
    """Find which of ``count`` rows differ in any of these columns.

    Both sides have the same columns of the same types, and the same number of rows.
    """
    mask, differing = None, 0
    for a, b in zip(one, other, strict=True):
        in_column = _compare_arrays(a, b)
        if pc.any(in_column).as_py():
            mask = in_column if mask is None else pc.or_(mask, in_column)
    if mask is None:
        mask = pa.repeat(pa.scalar(False), count)
    else:
        differing = int(pc.sum(mask).as_py())
    return DifferingRows(mask, differing)


def _compare_arrays(a: pa.Array, b: pa.Array) -> pa.BooleanArray:
    """Return where two arrays of one type differ; never null."""
    types = pa.types
    if isinstance(a, pa.ExtensionArray):
        return _compare_arrays(a.storage, b.storage)
    if not len(a) or types.is_null(a.type):  # no rows: a map may then have no offsets at all
        return pa.repeat(pa.scalar(False), len(a))
    if types.is_struct(a.type):
        return _compare_structs(a, b)
    if types.is_map(a.type):
        return _compare_lists(_list_entries(a), _list_entries(b))
    if types.is_list(a.type) or types.is_large_list(a.type):
        return _compare_lists(a, b)
    unequal = pc.not_equal(a, b)
    if unequal.null_count:
        unequal = pc.coalesce(unequal, pc.xor(a.is_null(), b.is_null()))
    if types.is_floating(a.type) and pc.any(unequal).as_py():
        both = pc.and_(pc.is_nan(a), pc.is_nan(b))
        unequal = pc.and_not(unequal, pc.fill_null(both, False))
    return unequal


def _compare_structs(a: pa.StructArray, b: pa.StructArray) -> pa.BooleanArray:
    nulls = pc.xor(a.is_null(), b.is_null())
    ours, theirs = ([s.field(i) for i in range(s.type.num_fields)] for s in (a, b))
    inside, count = find_differing_rows(ours, theirs, len(a))
    if not count:
        return nulls
    return pc.or_(nulls, pc.and_(inside, a.is_valid()))


def _list_entries(maps: pa.MapArray) -> pa.ListArray:
    """Return maps as lists of entries. pyarrow's cast loses values of the null type in a slice, and
    a use of the result then ends the process."""
    offsets = maps.offsets
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    columns = [column.slice(first, last - first) for column in (maps.keys, maps.items)]
    return pa.ListArray.from_arrays(
        pc.subtract(offsets, pa.scalar(first, offsets.type)),
        pa.StructArray.from_arrays(columns, ["key", "value"]),
        mask=maps.is_null() if maps.null_count else None,
    )


def _compare_lists(a: pa.Array, b: pa.Array) -> pa.BooleanArray:
    lengths = pc.list_value_length(a), pc.list_value_length(b)
    unequal = _compare_arrays(lengths[0], lengths[1])
    # Only lists of the same length are compared element by element.
    same = pc.and_not(a.is_valid(), unequal)
    rows = pc.indices_nonzero(same)
    if len(rows) < len(a):
        a, b = a.take(rows), b.take(rows)
    inside = _compare_arrays(pc.list_flatten(a), pc.list_flatten(b))
    if not pc.any(inside).as_py():
        return unequal
    parents = pc.list_parent_indices(a).filter(inside).unique()
    different = pc.is_in(pa.arange(0, len(unequal)), value_set=rows.take(parents).cast(pa.int64()))
    return pc.or_(unequal, different)
