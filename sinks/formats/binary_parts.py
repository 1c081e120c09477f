"""Rows of bytes, by columns: what the binary formats have in common.

A row's bytes are the parts of its columns, one after the other, so every column gives a list of
parts (binary arrays, or one constant for all rows) and one join over all of them makes the rows.
Integers are looked up fourteen bits at a time in a table of their encodings.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, reduce
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tailer.native import rowbytes

#: Some bytes of every row: a binary array without nulls, or a constant.
ValuePart: TypeAlias = "pa.BinaryArray | bytes"

_NOTHING = b""
_BITS = 14
_CODES = 1 << _BITS


def join_parts(parts: Sequence[ValuePart], count: int) -> pa.BinaryArray:
    """Join the parts of each row, one after the other. ``count`` is the number of rows.

    Raises :class:`pyarrow.ArrowInvalid` or :class:`OverflowError` beyond 2 GiB.
    """
    if rowbytes.native is not None:
        given = [
            part if isinstance(part, bytes) else rowbytes.array_part(part, rowbytes.RAW)
            for part in parts
        ]
        ends, data = rowbytes.native.join(given, count)
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
        return pa.Array.from_buffers(pa.binary(), count, buffers, null_count=0)
    merged: list[Any] = []
    constant = b""
    for part in parts:
        if isinstance(part, bytes):
            constant += part
            continue
        if constant:
            merged.append(pa.scalar(constant, pa.binary()))
        merged.append(part)
        constant = b""
    if not merged:
        return pa.repeat(pa.scalar(constant, pa.binary()), count)
    if constant:
        merged.append(pa.scalar(constant, pa.binary()))
    return pc.binary_join_element_wise(*merged, pa.scalar(_NOTHING, pa.binary()))


def varint_bytes(number: int) -> bytes:
    """Encode one integer, at least 0: seven bits a byte, the lowest first."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


@lru_cache(maxsize=1)
def _build_encodings() -> pa.BinaryArray:
    """Return the encodings of fourteen bits: as a number's last ones; with more to come; and
    nothing."""
    last = [varint_bytes(n) for n in range(_CODES)]
    more = [bytes([n & 0x7F | 0x80, n >> 7 | 0x80]) for n in range(_CODES)]
    return pa.array([*last, *more, _NOTHING], pa.binary())


def varint_parts(rest: pa.UInt64Array) -> list[ValuePart]:
    """Encode integers as :func:`varint_bytes` does; nothing where the array is null."""
    shift, mask = pa.scalar(_BITS, pa.uint64()), pa.scalar(_CODES - 1, pa.uint64())
    nothing, onward = pa.scalar(2 * _CODES, pa.uint64()), pa.scalar(_CODES, pa.uint64())
    parts: list[ValuePart] = []
    done = rest.is_null() if rest.null_count else None
    while True:
        ends = pc.min_max(rest)
        least, most = ends["min"].as_py(), ends["max"].as_py()
        if done is None and least is not None and least == most:
            return [*parts, varint_bytes(least)]
        index, rest = pc.bit_wise_and(rest, mask), pc.shift_right(rest, shift)
        further = (most or 0) >= _CODES
        mixed = further and least < _CODES  # mostly, the numbers of a column have one length
        if mixed:
            more = pc.greater(rest, pa.scalar(0, pa.uint64()))
            index = pc.if_else(more, pc.add(index, onward), index)
        elif further:
            index = pc.add(index, onward)
        if done is not None:
            index = pc.if_else(done, nothing, index)
        parts.append(_build_encodings().take(index))
        if not further:
            return parts
        if mixed:
            ended = pc.invert(pc.fill_null(more, False))
            done = ended if done is None else pc.or_(done, ended)


def measure_parts(parts: Sequence[ValuePart]) -> pa.UInt64Array | int:
    """Return how many bytes the parts of each row have; one number if it is the same in all."""
    fixed = sum(len(part) for part in parts if isinstance(part, bytes))
    sizes = [pc.binary_length(part) for part in parts if not isinstance(part, bytes)]
    if not sizes:
        return fixed
    return reduce(pc.add, sizes, pa.scalar(fixed, pa.int32())).cast(pa.uint64())


def fill_nulls(array: pa.BinaryArray) -> pa.BinaryArray:
    """Return the same, with no bytes where the array is null."""
    return pc.fill_null(array, pa.scalar(_NOTHING, pa.binary())) if array.null_count else array


def view_as_bytes(array: pa.Array, width: int) -> pa.BinaryArray:
    """Return numbers as they lie in memory, little-endian."""
    raw = pa.binary(width)
    found = pa.Array.from_buffers(raw, len(array), array.buffers(), offset=array.offset)
    return found.cast(pa.binary())


def hide_nulls(parts: list[ValuePart], array: pa.Array) -> list[ValuePart]:
    """Return the parts, empty where the array is null."""
    if not array.null_count:
        return parts
    nothing = pa.scalar(_NOTHING, pa.binary())
    return [pc.if_else(array.is_valid(), join_parts(parts, len(array)), nothing)]
