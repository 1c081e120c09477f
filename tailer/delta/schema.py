"""``schemaString`` as types, and the Arrow type of each ("Schema Serialization Format").

Every field keeps its logical name (for users) and its physical name and id (the keys in files and
partition values under column mapping).
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

import pyarrow as pa

from tailer.delta.char import CHAR_TYPE_KEY, char_length, declared_type
from tailer.delta.types import (
    ArrayType,
    DataType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
)
from tailer.errors import CorruptLog, UnsupportedTable

__all__ = [
    "ArrayType",
    "DataType",
    "MapType",
    "PrimitiveType",
    "StructField",
    "StructType",
    "arrow_schema",
    "arrow_type",
    "holds_arrow_variant",
    "is_arrow_variant",
    "is_variant",
    "parse_schema",
]

# Deeper nesting is an attack or an accident: Spark gives up long before.
DEPTH_MAX = 100

_DECIMAL = re.compile(r"decimal\(\s*(\d{1,9})\s*,\s*(-?\d{1,9})\s*\)", re.ASCII)
_VARCHAR = re.compile(r"varchar\(\s*\d+\s*\)", re.ASCII)

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

_MARK = {b"delta.type": b"variant"}

#: The Arrow type of a variant: its two binary parts, as in the Parquet files. The mark on the first
#: distinguishes it from a similar struct, however deep it is nested.
VARIANT = pa.struct(
    [pa.field("value", pa.binary(), metadata=_MARK), pa.field("metadata", pa.binary())]
)


@lru_cache(maxsize=256)
def parse_schema(schema_string: str) -> StructType:
    """Parse the schema in ``schemaString``, without its ``void`` columns (as Spark reads them).

    Raises :class:`CorruptLog` if it is not a schema, :class:`UnsupportedTable` for a type that
    is not known here.
    """
    try:
        document = json.loads(schema_string)
    except (ValueError, RecursionError) as e:
        raise CorruptLog(f"the schemaString is not JSON ({e})") from None
    parsed = _type(document, 0)
    if not isinstance(parsed, StructType):
        raise CorruptLog("the schemaString is not a struct")
    return parsed


def _type(document: Any, depth: int) -> DataType:
    if depth > DEPTH_MAX:
        raise CorruptLog(f"the schema is nested deeper than {DEPTH_MAX} levels")
    if isinstance(document, str):
        return _primitive(document)
    if not isinstance(document, dict):
        raise CorruptLog("the schema has a type that is neither a name nor an object")
    try:
        match document.get("type"):
            case "struct":
                fields = (_field(f, depth + 1) for f in document["fields"])
                return StructType(tuple(f for f in fields if not _is_void(f.type)))
            case "array":
                element = _type(document["elementType"], depth + 1)
                return ArrayType(element, bool(document.get("containsNull", True)))
            case "map":
                return MapType(
                    _type(document["keyType"], depth + 1),
                    _type(document["valueType"], depth + 1),
                    bool(document.get("valueContainsNull", True)),
                )
            case "udt":  # Spark's; the files have its SQL type
                return _type(document["sqlType"], depth + 1)
    except (KeyError, TypeError, AttributeError, UnicodeEncodeError) as e:
        raise CorruptLog(f"the schema has an incomplete {document.get('type')} ({e})") from None
    raise UnsupportedTable(f"the schema has the type {document.get('type')!r}, not known here")


def _primitive(name: str) -> PrimitiveType:
    if _VARCHAR.fullmatch(name):
        return PrimitiveType("string")
    if char_length(PrimitiveType(name)) is not None:
        return PrimitiveType(name)
    if name == "decimal":
        return PrimitiveType("decimal(10,0)")
    others = ("variant", "void", "null")
    if name in _ARROW or name in others or _DECIMAL.fullmatch(name):
        return PrimitiveType("void" if name == "null" else name)
    raise UnsupportedTable(
        f"the schema has the type {name!r}, which is not known here",
        hint="install a newer delta-tailer",
    )


def _is_void(data_type: DataType) -> bool:
    return isinstance(data_type, PrimitiveType) and data_type.name == "void"


def _field(document: Any, depth: int) -> StructField:
    metadata = document.get("metadata") or {}
    name = document["name"]
    if not isinstance(name, str) or not isinstance(metadata, dict):
        raise CorruptLog("the schema has a field whose name or metadata is of the wrong kind")
    name.encode()  # half a surrogate pair is not a name
    data_type = _type(document["type"], depth)
    declared = metadata.get(CHAR_TYPE_KEY)
    if isinstance(declared, str):
        data_type = declared_type(data_type, declared)
    return StructField(name, data_type, bool(document.get("nullable", True)), metadata)


def is_variant(data_type: DataType) -> bool:
    """Return whether this is the variant type ("Variant Data Type")."""
    return isinstance(data_type, PrimitiveType) and data_type.name == "variant"


def is_arrow_variant(data_type: pa.DataType) -> bool:
    """Return whether this Arrow type is that of a variant, by its mark."""
    if not pa.types.is_struct(data_type) or data_type.num_fields != 2:
        return False
    metadata = data_type.field(0).metadata
    return metadata is not None and _MARK.items() <= metadata.items()


def holds_arrow_variant(data_type: pa.DataType) -> bool:
    """Return whether this Arrow type is, or contains at any depth, that of a variant."""
    return is_arrow_variant(data_type) or any(
        holds_arrow_variant(data_type.field(i).type)
        for i in range(getattr(data_type, "num_fields", 0))
    )


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
    match = _DECIMAL.fullmatch(name)
    if match is None:
        raise UnsupportedTable(f"the schema has the type {name!r}, which is not known here")
    precision, scale = int(match[1]), int(match[2])
    if not (1 <= precision <= 38 and 0 <= scale <= precision):
        raise CorruptLog(f"{name} is not a decimal that the protocol allows")
    return pa.decimal128(precision, scale)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of a table's data columns."""
    return pa.schema([pa.field(f.name, arrow_type(f.type)) for f in schema])
