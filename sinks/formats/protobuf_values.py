"""Arrow arrays as Protobuf's binary encoding, by columns.

See :mod:`sinks.formats.binary_parts` for how rows are made of columns, and
:mod:`sinks.formats.protobuf_schema` for their types. A value that is there is always written, also
0; one that is null is not.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from sinks.formats.avro_schema import make_avro_name
from sinks.formats.avro_values import long_parts
from sinks.formats.binary_parts import (
    ValuePart,
    fill_nulls,
    join_parts,
    measure_parts,
    varint_bytes,
    varint_parts,
    view_as_bytes,
)
from sinks.formats.json import drop_offset, list_children, unicode_text, variant_text
from sinks.formats.protobuf_schema import ELEMENT, ENTRY, TIMESTAMP, Field, Fields
from tailer.changes import is_arrow_variant

_SECOND = 1_000_000
_DIGITS_MAX = 38
_VARINT, _FIXED64, _SIZED = 0, 1, 2
_WIRE_TYPES = {
    "bool": _VARINT, "int64": _VARINT, "sint32": _VARINT, "double": _FIXED64, "sfixed64": _FIXED64,
}  # fmt: skip
_NOTHING, _NO_VALUE = pa.scalar(b"", pa.binary()), pa.scalar(None, pa.binary())


def encode_tag(field: Field) -> bytes:
    """Return what comes before a value of a field: its number and how the value is written."""
    return varint_bytes(field.number << 3 | _WIRE_TYPES.get(field.kind, _SIZED))


def encode_constant(field: Field, value: str | int) -> bytes:
    """Encode a field of one value: a string, an integer, or microseconds since 1970."""
    if isinstance(value, str):
        data = value.encode()
    elif field.kind != TIMESTAMP:
        return encode_tag(field) + varint_bytes(value % (1 << 64))
    else:
        data = join_parts(_encode_instants(pa.array([value])), 1)[0].as_py()
    return encode_tag(field) + varint_bytes(len(data)) + data


def message_parts(fields: Fields, columns: Iterable[tuple[str, pa.Array]]) -> list[ValuePart]:
    """Encode columns, each with its name, as fields of a message, in the order of their numbers.
    Void ones are left out; raises :class:`KeyError` for another that has no field."""
    found = [
        (fields[make_avro_name(name)], array)
        for name, array in columns
        if not pa.types.is_null(array.type)
    ]
    found.sort(key=lambda item: item[0].number)
    return [part for field, array in found for part in field_parts(field, array)]


def field_parts(field: Field, array: pa.Array) -> list[ValuePart]:
    """Encode a field: nothing where the array is null."""
    tag: ValuePart = encode_tag(field)
    if array.null_count:
        tag = pc.if_else(array.is_valid(), pa.scalar(tag), _NOTHING)
    return [tag, *_encode_values(field, array)]


def struct_parts(fields: Fields, array: pa.StructArray) -> list[ValuePart]:
    """Encode the members of structs, whatever is null."""
    return message_parts(fields, zip(array.type.names, list_children(array), strict=True))


def sized_parts(parts: list[ValuePart]) -> list[ValuePart]:
    """Return what is in every row behind its length."""
    size = measure_parts(parts)
    return [*([varint_bytes(size)] if isinstance(size, int) else varint_parts(size)), *parts]


def _encode_values(field: Field, array: pa.Array) -> list[ValuePart]:
    """Return the parts of values without their tags, which are empty where the array is null."""
    types, data_type = pa.types, array.type
    if is_arrow_variant(data_type):
        array = variant_text(array)
    elif types.is_decimal(data_type):
        array = _write_decimals(array)
    elif types.is_string(data_type):
        array = unicode_text(array)
    elif types.is_boolean(data_type):
        return [fill_nulls(pc.if_else(array, pa.scalar(b"\x01"), pa.scalar(b"\x00")))]
    elif types.is_integer(data_type):
        return varint_parts(array.cast(pa.int64()).view(pa.uint64()))
    elif types.is_date(data_type):
        return long_parts(array.cast(pa.int32()))
    elif types.is_floating(data_type):
        return [fill_nulls(view_as_bytes(array.cast(pa.float64()), 8))]
    elif types.is_timestamp(data_type):
        micros = array.cast(pa.timestamp("us", data_type.tz)).cast(pa.int64())
        if field.kind != TIMESTAMP:
            return [fill_nulls(view_as_bytes(micros, 8))]
        return _size_parts(_encode_instants(micros), array)
    elif types.is_struct(data_type):
        return _size_parts(struct_parts(field.members, array), array)
    elif types.is_list(data_type):
        whole = drop_offset(array)
        return _encode_items(field.members[ELEMENT], whole, {"value": whole.values})
    elif types.is_map(data_type):
        whole = drop_offset(array)
        return _encode_items(field.members[ENTRY], whole, {"key": whole.keys, "value": whole.items})
    return _size_bytes(array.cast(pa.binary()))


def _write_decimals(array: pa.Array) -> pa.StringArray:
    """Return all digits of decimals. Arrow writes an exponent if six places or more are zeros."""
    text = array.cast(pa.string())
    small = pc.match_substring(text, "E")
    if not pc.any(small).as_py():
        return text
    whole = pa.decimal128(_DIGITS_MAX, 0)
    digits = pa.Array.from_buffers(whole, len(array), array.buffers(), offset=array.offset)
    digits = digits.cast(pa.string())
    places = pc.ascii_lpad(pc.ascii_ltrim(digits, "-"), array.type.scale, "0")
    sign = pc.if_else(pc.starts_with(digits, "-"), "-0.", "0.")
    return pc.if_else(small, pc.binary_join_element_wise(sign, places, ""), text)


def _size_parts(parts: list[ValuePart], array: pa.Array) -> list[ValuePart]:
    """Return messages of these parts behind their lengths, and nothing where the array is null."""
    if not array.null_count:
        return sized_parts(parts)
    data = join_parts(parts, len(array))
    return _size_bytes(pc.if_else(array.is_valid(), data, _NO_VALUE))


def _size_bytes(data: pa.BinaryArray) -> list[ValuePart]:
    """Return bytes behind their length, and nothing where the array is null."""
    return [*varint_parts(pc.binary_length(data).cast(pa.uint64())), fill_nulls(data)]


def _encode_instants(micros: pa.Int64Array) -> list[ValuePart]:
    """Encode microseconds since 1970 as the members of a Timestamp: seconds and, at least 0,
    nanoseconds."""
    unit = pa.scalar(_SECOND, pa.int64())
    seconds = pc.divide(micros, unit)  # towards zero
    rest = pc.subtract(micros, pc.multiply(seconds, unit))
    before = pc.less(rest, pa.scalar(0, pa.int64()))
    if pc.any(before).as_py():
        seconds = pc.if_else(before, pc.subtract(seconds, pa.scalar(1, pa.int64())), seconds)
        rest = pc.if_else(before, pc.add(rest, unit), rest)
    nanos = pc.multiply(rest, pa.scalar(1000, pa.int64()))
    return [
        b"\x08",
        *varint_parts(seconds.view(pa.uint64())),
        b"\x10",
        *varint_parts(nanos.view(pa.uint64())),
    ]


def _encode_items(
    field: Field, whole: pa.ListArray, values: dict[str, pa.Array]
) -> list[ValuePart]:
    """Encode arrays or maps: each of their items, one after the other."""
    count = len(next(iter(values.values())))
    item = message_parts(field.members, values.items())
    items = join_parts([encode_tag(field), *sized_parts(item)], count)
    mask = whole.is_null() if whole.null_count else None
    lists = pa.ListArray.from_arrays(whole.offsets, items, mask=mask)
    return _size_bytes(pc.binary_join(lists, _NOTHING))
