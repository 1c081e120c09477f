"""``schemaString`` as types ("Schema Serialization Format").

Every field keeps its logical name (for users) and its physical name and id (the keys in files and
partition values under column mapping).
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

from tailer.delta.char import CHAR_TYPE_KEY, apply_declared_type, char_length
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
    "decimal_parts",
    "is_variant",
    "parse_schema",
]

# Deeper nesting is an attack or an accident: Spark gives up long before.
DEPTH_MAX = 100
#: The schema of ten thousand columns with comments takes a few million. A parsed schema takes some
#: 30 times its text, and all other feeds wait while it is parsed.
_CHARACTERS_MAX = 16 * 1024 * 1024

_DECIMAL = re.compile(r"decimal\(\s*(\d{1,9})\s*,\s*(-?\d{1,9})\s*\)", re.ASCII)
_VARCHAR = re.compile(r"varchar\(\s*\d+\s*\)", re.ASCII)

_PLAIN = {
    "string", "long", "integer", "short", "byte", "float", "double", "boolean", "binary", "date",
    "timestamp", "timestamp_ntz", "variant", "void", "null",
}  # fmt: skip


@lru_cache(maxsize=256)
def parse_schema(schema_string: str) -> StructType:
    """Parse the schema in ``schemaString``, without its ``void`` columns (as Spark reads them).

    Raises :class:`CorruptLog` if it is not a schema, :class:`UnsupportedTable` for a type that
    is not known here.
    """
    if len(schema_string) > _CHARACTERS_MAX:
        raise UnsupportedTable(
            f"the schemaString has {len(schema_string)} characters, of {_CHARACTERS_MAX} at most",
            hint="split the table into several with fewer columns",
        )
    try:
        document = json.loads(schema_string)
    except RecursionError:
        raise CorruptLog(f"the schema is nested deeper than {DEPTH_MAX} levels") from None
    except ValueError as e:
        raise CorruptLog(f"the schemaString is not JSON ({e})") from None
    parsed = _parse_type(document, 0)
    if not isinstance(parsed, StructType):
        raise CorruptLog("the schemaString is not a struct")
    return parsed


def _parse_type(document: Any, depth: int) -> DataType:
    if depth > DEPTH_MAX:
        raise CorruptLog(f"the schema is nested deeper than {DEPTH_MAX} levels")
    if isinstance(document, str):
        return _parse_primitive(document)
    if not isinstance(document, dict):
        raise CorruptLog("the schema has a type that is neither a name nor an object")
    try:
        match document.get("type"):
            case "struct":
                fields = (_parse_field(f, depth + 1) for f in document["fields"])
                return StructType(tuple(f for f in fields if not _is_void(f.type)))
            case "array":
                element = _parse_type(document["elementType"], depth + 1)
                return ArrayType(element, bool(document.get("containsNull", True)))
            case "map":
                return MapType(
                    _parse_type(document["keyType"], depth + 1),
                    _parse_type(document["valueType"], depth + 1),
                    bool(document.get("valueContainsNull", True)),
                )
            case "udt":  # Spark's; the files have its SQL type
                return _parse_type(document["sqlType"], depth + 1)
    except (KeyError, TypeError, AttributeError, UnicodeEncodeError) as e:
        raise CorruptLog(f"the schema has an incomplete {document.get('type')} ({e})") from None
    raise UnsupportedTable(f"the schema has the type {document.get('type')!r}, not known here")


def _parse_primitive(name: str) -> PrimitiveType:
    if _VARCHAR.fullmatch(name):
        return PrimitiveType("string")
    if char_length(PrimitiveType(name)) is not None:
        return PrimitiveType(name)
    if name == "decimal":
        return PrimitiveType("decimal(10,0)")
    if name in _PLAIN or decimal_parts(name) is not None:
        return PrimitiveType("void" if name == "null" else name)
    raise UnsupportedTable(
        f"the schema has the type {name!r}, which is not known here",
        hint="install a newer delta-tailer",
    )


def decimal_parts(name: str) -> tuple[int, int] | None:
    """Return precision and scale of a decimal type, unchecked; None for every other type."""
    match = _DECIMAL.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def _is_void(data_type: DataType) -> bool:
    return isinstance(data_type, PrimitiveType) and data_type.name == "void"


def _parse_field(document: Any, depth: int) -> StructField:
    metadata = document.get("metadata") or {}
    name = document["name"]
    if not isinstance(name, str) or not isinstance(metadata, dict):
        raise CorruptLog("the schema has a field whose name or metadata is of the wrong kind")
    name.encode()  # half a surrogate pair is not a name
    data_type = _parse_type(document["type"], depth)
    declared = metadata.get(CHAR_TYPE_KEY)
    if isinstance(declared, str):
        data_type = apply_declared_type(data_type, declared)
    return StructField(name, data_type, bool(document.get("nullable", True)), metadata)


def is_variant(data_type: DataType) -> bool:
    """Return whether this is the variant type ("Variant Data Type")."""
    return isinstance(data_type, PrimitiveType) and data_type.name == "variant"
