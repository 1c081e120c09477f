"""Arrow values and types in Kafka Connect's JSON form, with the logical names that Debezium uses.

A type without a lossless form in Connect's own logical types has one in Debezium's: microseconds
(``MicroTimestamp``, ``ZonedTimestamp``), dates (``Date``) and variants (``Json``). A map whose keys
are not strings is an array of structs {key, value}.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sinks.formats.json import drop_offset, list_children, timestamp_text, variant_text
from tailer.changes import is_arrow_variant

_PLAIN = {
    pa.bool_(): "boolean",
    pa.int8(): "int8",
    pa.int16(): "int16",
    pa.int32(): "int32",
    pa.int64(): "int64",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "bytes",
}


def connect_schema(data_type: pa.DataType) -> dict[str, Any]:
    """Return the Connect schema of an Arrow type, as Connect's JSON converter writes it. All is
    optional."""
    types = pa.types
    if data_type in _PLAIN:
        return _make_optional(_PLAIN[data_type])
    if is_arrow_variant(data_type):
        return _make_named("string", "io.debezium.data.Json")
    if types.is_decimal(data_type):
        parameters = {
            "scale": str(data_type.scale),
            "connect.decimal.precision": str(data_type.precision),
        }
        name = "org.apache.kafka.connect.data.Decimal"
        return _make_named("bytes", name) | {"parameters": parameters}
    if types.is_date(data_type):
        return _make_named("int32", "io.debezium.time.Date")
    if types.is_timestamp(data_type):
        zoned = data_type.tz is not None
        name = "io.debezium.time.ZonedTimestamp" if zoned else "io.debezium.time.MicroTimestamp"
        return _make_named("string" if zoned else "int64", name)
    if types.is_struct(data_type):
        return _make_optional("struct") | {"fields": connect_fields(data_type.fields)}
    if types.is_list(data_type):
        return _make_optional("array") | {"items": connect_schema(data_type.value_type)}
    if types.is_map(data_type):
        if types.is_string(data_type.key_type):
            keys = {"type": "string", "optional": False}
            return _make_optional("map") | {
                "keys": keys,
                "values": connect_schema(data_type.item_type),
            }
        entry = pa.struct([("key", data_type.key_type), ("value", data_type.item_type)])
        return _make_optional("array") | {"items": connect_schema(entry)}
    return _make_optional("string")  # a void column, which contains only nulls


def _make_optional(kind: str) -> dict[str, Any]:
    return {"type": kind, "optional": True}


def _make_named(kind: str, name: str) -> dict[str, Any]:
    return _make_optional(kind) | {"name": name, "version": 1}


def connect_fields(fields: list[pa.Field], required: Collection[str] = ()) -> list[dict[str, Any]]:
    """Return the Connect schemas of a struct's fields, each with its name; those that are
    ``required`` are not optional."""
    return [
        connect_schema(field.type) | {"optional": field.name not in required, "field": field.name}
        for field in fields
    ]


def connect_values(array: pa.Array) -> pa.Array:
    """Return the same values in types whose JSON matches :func:`connect_schema`."""
    types, data_type = pa.types, array.type
    if data_type in _PLAIN:
        return array
    if is_arrow_variant(data_type):
        return variant_text(array)
    if types.is_decimal(data_type):
        return decimal_bytes(array)
    if types.is_date(data_type):
        return array.cast(pa.int32())
    if types.is_timestamp(data_type):
        return array.cast(pa.int64()) if data_type.tz is None else timestamp_text(array)
    if types.is_struct(data_type):
        return _convert_struct(array)
    if types.is_list(data_type):
        return _convert_list(array, connect_values(drop_offset(array).values))
    if types.is_map(data_type):
        return _convert_map(drop_offset(array))
    return array


def decimal_bytes(array: pa.Array) -> pa.BinaryArray:
    """Return decimals as their unscaled integers: big-endian two's complement, of the same width
    for all values of a type."""
    # Arrow keeps them in 16 bytes, little-endian.
    raw = pa.Array.from_buffers(pa.binary(16), len(array), array.buffers(), offset=array.offset)
    width = decimal_width(array.type)
    return pc.binary_slice(pc.binary_reverse(raw.cast(pa.binary())), 16 - width, 16)


def decimal_width(data_type: pa.DataType) -> int:
    """Return how many bytes the unscaled integers of a decimal type take at most."""
    return int((10**data_type.precision).bit_length() // 8 + 1)


def _find_nulls(array: pa.Array) -> pa.BooleanArray | None:
    return array.is_null() if array.null_count else None


def _convert_struct(array: pa.StructArray) -> pa.StructArray:
    columns = [connect_values(child) for child in list_children(array)]
    if not columns:
        return array
    return pa.StructArray.from_arrays(columns, names=array.type.names, mask=_find_nulls(array))


def _convert_list(array: pa.Array, values: pa.Array) -> pa.ListArray:
    return pa.ListArray.from_arrays(drop_offset(array).offsets, values, mask=_find_nulls(array))


def _convert_map(array: pa.MapArray) -> pa.Array:
    items = connect_values(array.items)
    if not pa.types.is_string(array.type.key_type):
        keys = connect_values(array.keys)
        return _convert_list(
            array, pa.StructArray.from_arrays([keys, items], names=["key", "value"])
        )
    return pa.MapArray.from_arrays(array.offsets, array.keys, items, mask=_find_nulls(array))
