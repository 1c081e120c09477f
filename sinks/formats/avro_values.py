"""Arrow arrays as Avro's binary encoding, by columns.

See :mod:`sinks.formats.binary_parts` for how rows are made of columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from sinks.formats.binary_parts import (
    ValuePart,
    fill_nulls,
    hide_nulls,
    join_parts,
    varint_bytes,
    varint_parts,
    view_as_bytes,
)
from sinks.formats.connect import decimal_bytes, decimal_width
from sinks.formats.json import drop_offset, list_children, unicode_text, variant_text
from tailer.changes import is_arrow_variant

_NOTHING = b""
_NULL, _VALUE = b"\x00", b"\x02"  # the branches of a union of null and a type
_END = b"\x00"  # of an array's or a map's blocks


def long_bytes(number: int) -> bytes:
    """Encode one integer: zigzag, then seven bits a byte, the lowest first."""
    return varint_bytes((number << 1) ^ (number >> 63))


def string_bytes(text: str) -> bytes:
    """Encode one string: its length, then its UTF-8."""
    data = text.encode()
    return long_bytes(len(data)) + data


def long_parts(array: pa.Array) -> list[ValuePart]:
    """Encode integers of any width; nothing where the array is null."""
    numbers = array.cast(pa.int64())
    one, most = pa.scalar(1, pa.int64()), pa.scalar(62, pa.int64())
    sign = pc.shift_right(pc.shift_right(numbers, most), one)  # Arrow shifts by 62 at most
    zigzag = pc.bit_wise_xor(pc.shift_left(numbers, one), sign)
    return varint_parts(zigzag.view(pa.uint64()))


def string_parts(array: pa.StringArray | pa.BinaryArray) -> list[ValuePart]:
    """Encode strings or bytes: the length, then the bytes; nothing where the array is null."""
    data = array.cast(pa.binary())
    return [*long_parts(pc.binary_length(data)), fill_nulls(data)]


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
        return [fill_nulls(pc.if_else(array, pa.scalar(b"\x01"), pa.scalar(b"\x00")))]
    if types.is_floating(data_type):
        return [fill_nulls(view_as_bytes(array, data_type.bit_width // 8))]
    if types.is_decimal(data_type):
        return [fill_nulls(decimal_bytes(array))]
    if types.is_struct(data_type):
        return hide_nulls(record_parts(list_children(array)), array)
    if types.is_list(data_type):
        return _encode_blocks(array, drop_offset(array).values, None)
    if types.is_map(data_type):
        return _encode_map(drop_offset(array), array)
    if types.is_date(data_type):
        array = array.cast(pa.int32())
    return long_parts(array)


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
    return hide_nulls([*counts, fill_nulls(data), _END], whole)
