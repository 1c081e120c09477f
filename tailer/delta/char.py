"""CHAR columns: strings of a fixed length, padded with blanks when they are read.

The log has them as strings. The declared type is in the column's metadata, as SQL text such as
``struct<x:char(3)>``. Writers may or may not pad the values in the files, so without padding a
value could look changed when its row is rewritten.
"""

from __future__ import annotations

import re

from tailer.delta.types import ArrayType, DataType, MapType, PrimitiveType, StructField, StructType

CHAR_TYPE_KEY = "__CHAR_VARCHAR_TYPE_STRING"

_CHAR = re.compile(r"char\(\s*(\d{1,9})\s*\)", re.ASCII)


def char_length(data_type: DataType) -> int | None:
    """Return the length in characters of a CHAR type; None for every other type."""
    match = _CHAR.fullmatch(data_type.name) if isinstance(data_type, PrimitiveType) else None
    return int(match[1]) if match else None


def apply_declared_type(data_type: DataType, text: str) -> DataType:
    """Return the type with its strings replaced by the CHARs that the SQL text declares.

    If the text does not fit the type, the type is returned unchanged.
    """
    match data_type:
        case PrimitiveType("string") if _CHAR.fullmatch(text):
            return PrimitiveType(text)
        case ArrayType(element, contains_null):
            return ArrayType(
                apply_declared_type(element, _strip_brackets("array", text)), contains_null
            )
        case MapType(key, value, contains_null):
            parts = _split_parts(_strip_brackets("map", text))
            if len(parts) == 2:
                key, value = (
                    apply_declared_type(key, parts[0]),
                    apply_declared_type(value, parts[1]),
                )
            return MapType(key, value, contains_null)
        case StructType(fields):
            return _declare_struct(fields, _split_parts(_strip_brackets("struct", text)))
    return data_type


def _declare_struct(fields: tuple[StructField, ...], parts: list[str]) -> StructType:
    if len(parts) != len(fields):
        return StructType(fields)
    found = []
    for field, part in zip(fields, parts, strict=True):
        _, _, text = part.removeprefix(f"`{field.name}`").removeprefix(field.name).partition(":")
        data_type = apply_declared_type(field.type, text)
        found.append(StructField(field.name, data_type, field.nullable, field.metadata))
    return StructType(tuple(found))


def _strip_brackets(kind: str, text: str) -> str:
    return text[len(kind) + 1 : -1] if text.startswith(f"{kind}<") and text.endswith(">") else ""


def _split_parts(text: str) -> list[str]:
    """Split at the commas outside all brackets."""
    parts, depth, start = [], 0, 0
    for i, char in enumerate(text):
        if char in "<(":
            depth += 1
        elif char in ">)":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [*parts, text[start:]] if text else []
