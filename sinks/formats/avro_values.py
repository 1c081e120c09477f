"""Arrow arrays as Avro's binary encoding, by columns.

A row's bytes are the parts of its columns, one after the other, so every column gives a list of
parts (binary arrays, or one constant for all rows) and one join over all of them makes the rows.
Integers are looked up fourteen bits at a time in a table of their encodings.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from sinks.formats.connect import decimal_bytes, decimal_width
from sinks.formats.json import drop_offset, list_children, unicode_text, variant_text
from tailer.changes import is_arrow_variant

#: Some bytes of every row: a binary array without nulls, or a constant.
ValuePart: TypeAlias = "pa.BinaryArray | bytes"

_NOTHING = b""
_NULL, _VALUE = b"\x00", b"\x02"  # the branches of a union of null and a type
_END = b"\x00"  # of an array's or a map's blocks
_BITS = 14
_MASK = (1 << _BITS) - 1


def join_parts(parts: Sequence[ValuePart], count: int) -> pa.BinaryArray:
    """Join the parts of each row, one after the other. ``count`` is the number of rows."""
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


def long_bytes(number: int) -> bytes:
    """Encode one integer: zigzag, then seven bits a byte, the lowest first."""
    rest = (number << 1) ^ (number >> 63)
    found = bytearray()
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*found, rest])


def string_bytes(text: str) -> bytes:
    """Encode one string: its length, then its UTF-8."""
    data = text.encode()
    return long_bytes(len(data)) + data


@lru_cache(maxsize=1)
def _build_encodings() -> pa.BinaryArray:
    """Return the encodings of fourteen bits: as a number's last ones; with more to come; and
    nothing."""
    last = [bytes([n]) if n < 0x80 else bytes([n & 0x7F | 0x80, n >> 7]) for n in range(_MASK + 1)]
    more = [bytes([n & 0x7F | 0x80, n >> 7 | 0x80]) for n in range(_MASK + 1)]
    return pa.array([*last, *more, _NOTHING], pa.binary())


def long_parts(array: pa.Array) -> list[ValuePart]:
    """Encode integers of any width; nothing where the array is null."""
    numbers = array.cast(pa.int64())
    one, most = pa.scalar(1, pa.int64()), pa.scalar(62, pa.int64())
    sign = pc.shift_right(pc.shift_right(numbers, most), one)  # Arrow shifts by 62 at most
    zigzag = pc.bit_wise_xor(pc.shift_left(numbers, one), sign)
    rest = zigzag.view(pa.uint64())
    shift, mask = pa.scalar(_BITS, pa.uint64()), pa.scalar(_MASK, pa.uint64())
    nothing = pa.scalar(2 * (_MASK + 1), pa.uint64())
    parts: list[ValuePart] = []
    done = rest.is_null() if rest.null_count else None
    while True:
        low, rest = pc.bit_wise_and(rest, mask), pc.shift_right(rest, shift)
        more = pc.greater(rest, pa.scalar(0, pa.uint64()))
        further = pc.any(more).as_py()
        index = pc.if_else(more, pc.add(low, pa.scalar(_MASK + 1, pa.uint64())), low)
        if done is not None:
            index = pc.if_else(done, nothing, index)
        parts.append(_build_encodings().take(index))
        if not further:
            return parts
        ended = pc.invert(pc.fill_null(more, False))
        done = ended if done is None else pc.or_(done, ended)


def string_parts(array: pa.StringArray | pa.BinaryArray) -> list[ValuePart]:
    """Encode strings or bytes: the length, then the bytes; nothing where the array is null."""
    data = array.cast(pa.binary())
    return [*long_parts(pc.binary_length(data)), _fill_nulls(data)]


def _fill_nulls(array: pa.BinaryArray) -> pa.BinaryArray:
    return pc.fill_null(array, pa.scalar(_NOTHING, pa.binary())) if array.null_count else array


def nullable_parts(array: pa.Array) -> list[ValuePart]:
    """Encode values of a union of null and the array's type."""
    if pa.types.is_null(array.type):
        return []
    prefix, parts = b"", _encode_values(array)
    if pa.types.is_decimal(array.type):  # all values of the type have the same length
        prefix = long_bytes(decimal_width(array.type))
    if not array.null_count:
        return [_VALUE + prefix, *parts]
    branch = pc.if_else(array.is_valid(), pa.scalar(_VALUE + prefix), pa.scalar(_NULL))
    return [branch, *parts]


def record_parts(columns: Sequence[pa.Array]) -> list[ValuePart]:
    """Encode the fields of a record, all of them nullable."""
    return [part for column in columns for part in nullable_parts(column)]


def _encode_values(array: pa.Array) -> list[ValuePart]:
    """Return the parts of values, which are empty where the array is null; of a decimal without its
    length."""
    types, data_type = pa.types, array.type
    if types.is_string(data_type):
        return string_parts(unicode_text(array))
    if types.is_binary(data_type):
        return string_parts(array)
    if is_arrow_variant(data_type):
        return string_parts(variant_text(array))
    if types.is_boolean(data_type):
        return [_fill_nulls(pc.if_else(array, pa.scalar(b"\x01"), pa.scalar(b"\x00")))]
    if types.is_floating(data_type):
        return [_fill_nulls(_view_as_bytes(array, data_type.bit_width // 8))]
    if types.is_decimal(data_type):
        return [_fill_nulls(decimal_bytes(array))]
    if types.is_struct(data_type):
        return _hide_nulls(record_parts(list_children(array)), array)
    if types.is_list(data_type):
        return _encode_blocks(array, drop_offset(array).values, None)
    if types.is_map(data_type):
        return _encode_map(drop_offset(array), array)
    if types.is_date(data_type):
        array = array.cast(pa.int32())
    return long_parts(array)


def _view_as_bytes(array: pa.Array, width: int) -> pa.BinaryArray:
    """Return numbers as they lie in memory, little-endian."""
    raw = pa.binary(width)
    found = pa.Array.from_buffers(raw, len(array), array.buffers(), offset=array.offset)
    return found.cast(pa.binary())


def _hide_nulls(parts: list[ValuePart], array: pa.Array) -> list[ValuePart]:
    """Return the parts, empty where the array is null."""
    if not array.null_count:
        return parts
    nothing = pa.scalar(_NOTHING, pa.binary())
    return [pc.if_else(array.is_valid(), join_parts(parts, len(array)), nothing)]


def _encode_map(whole: pa.MapArray, array: pa.MapArray) -> list[ValuePart]:
    if pa.types.is_string(array.type.key_type):
        return _encode_blocks(array, whole.items, string_parts(unicode_text(whole.keys)))
    return _encode_blocks(array, whole.items, nullable_parts(whole.keys))


def _encode_blocks(
    array: pa.Array, values: pa.Array, keys: list[ValuePart] | None
) -> list[ValuePart]:
    """Encode arrays and maps: the number of items, if any, each of them, and the end."""
    whole = drop_offset(array)
    items = join_parts([*(keys or []), *nullable_parts(values)], len(values))
    mask = whole.is_null() if whole.null_count else None
    lists = pa.ListArray.from_arrays(whole.offsets, items, mask=mask)
    sizes = pc.list_value_length(lists)
    counts = long_parts(pc.if_else(pc.equal(sizes, 0), pa.scalar(None, pa.int32()), sizes))
    data = pc.binary_join(lists, pa.scalar(_NOTHING, pa.binary()))
    return _hide_nulls([*counts, _fill_nulls(data), _END], whole)
