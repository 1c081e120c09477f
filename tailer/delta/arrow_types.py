"""The Arrow type of each Delta type.

It is apart from the schema's parser, because a log without checkpoints is read without pyarrow.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from tailer.delta.char import char_length
from tailer.delta.schema import decimal_parts
from tailer.delta.types import ArrayType, DataType, MapType, PrimitiveType, StructType
from tailer.errors import CorruptLog, UnsupportedTable

_ARROW = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}

_DELTA = {data_type: name for name, data_type in _ARROW.items()}
_MARK = {b"delta.type": b"variant"}

#: The Arrow type of a variant: its two binary parts, as in the Parquet files. The mark on the first
#: distinguishes it from a similar struct, however deep it is nested.
VARIANT = pa.struct(
    [pa.field("value", pa.binary(), metadata=_MARK), pa.field("metadata", pa.binary())]
)


def inner_fields(data_type: pa.DataType) -> list[pa.Field]:
    """Return the fields of a nested type; of any other type, none."""
    return [data_type.field(i) for i in range(data_type.num_fields)]


def is_arrow_variant(data_type: pa.DataType) -> bool:
    """Return whether this Arrow type is that of a variant, by its mark."""
    if not pa.types.is_struct(data_type) or data_type.num_fields != 2:
        return False
    metadata = data_type.field(0).metadata
    return metadata is not None and _MARK.items() <= metadata.items()


def holds_arrow_variant(data_type: pa.DataType) -> bool:
    """Return whether this Arrow type is, or contains at any depth, that of a variant."""
    inner = inner_fields(data_type)
    return is_arrow_variant(data_type) or any(holds_arrow_variant(f.type) for f in inner)


def arrow_type(data_type: DataType) -> pa.DataType:
    """Return the Arrow type of decoded values of this type.

    Timestamps are microseconds, in UTC for ``timestamp``. Everything is nullable: the log's
    constraints bind writers, and rows of an older schema lack newer columns.
    """
    match data_type:
        case PrimitiveType(name):
            return _arrow_primitive(name)
        case ArrayType(element):
            return pa.list_(pa.field("element", arrow_type(element)))
        case MapType(key, value):
            return pa.map_(arrow_type(key), arrow_type(value))
        case StructType(fields):
            return pa.struct([pa.field(f.name, arrow_type(f.type)) for f in fields])


def _arrow_primitive(name: str) -> pa.DataType:
    known = _ARROW.get(name)
    if known is not None:
        return known
    if char_length(PrimitiveType(name)) is not None:
        return pa.string()
    if name == "variant":
        return VARIANT
    if name == "void":
        return pa.null()
    parts = decimal_parts(name)
    if parts is None:
        raise UnsupportedTable(f"the schema has the type {name!r}, which is not known here")
    precision, scale = parts
    if not (1 <= precision <= 38 and 0 <= scale <= precision):
        raise CorruptLog(f"{name} is not a decimal that the protocol allows")
    return pa.decimal128(precision, scale)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of a table's data columns."""
    return pa.schema([pa.field(f.name, arrow_type(f.type)) for f in schema])


def delta_type(data_type: pa.DataType) -> Any:
    """Return an Arrow type as a schema's JSON has it ("Schema Serialization Format").

    Raises ValueError for a type that Delta does not have.
    """
    if data_type in _DELTA:
        return _DELTA[data_type]
    if pa.types.is_decimal(data_type):
        return f"decimal({data_type.precision},{data_type.scale})"
    if is_arrow_variant(data_type):
        return "variant"
    if pa.types.is_struct(data_type):
        return {"type": "struct", "fields": [delta_field(f) for f in data_type.fields]}
    if pa.types.is_list(data_type):
        element = delta_type(data_type.value_type)
        return {"type": "array", "elementType": element, "containsNull": True}
    if pa.types.is_map(data_type):
        return {
            "type": "map",
            "keyType": delta_type(data_type.key_type),
            "valueType": delta_type(data_type.item_type),
            "valueContainsNull": True,
        }
    raise ValueError(f"Delta has no type for {data_type}")


def delta_field(field: pa.Field) -> dict[str, Any]:
    """Return a column or nested field as a schema's JSON has it."""
    metadata = {
        key.decode(): json.loads(value)
        for key, value in (field.metadata or {}).items()
        if key.startswith(b"delta.")
    }
    return {
        "name": field.name,
        "type": delta_type(field.type),
        "nullable": field.nullable,
        "metadata": metadata,
    }
