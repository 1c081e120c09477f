"""Structs in Thrift's compact protocol, read and written again, for footers that a test damages.

A struct is a list of fields: [id, wire type, value]; a list's value is (wire type of its items,
items). Numbers stay as they are encoded.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Fields: TypeAlias = list[list[Any]]

_DEPTH_MAX = 32
TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, STRUCT = (
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12
)  # fmt: skip

# Field numbers of parquet.thrift: FileMetaData, SchemaElement, RowGroup, ColumnChunk, its metadata.
SCHEMA, ROW_GROUPS = 2, 4
TYPE, NAME, NUM_CHILDREN = 1, 4, 5
COLUMNS, CHUNK_METADATA = 1, 3
DATA_AT, DICTIONARY_AT = 9, 11


def thrift_struct(fields: Fields) -> bytes:
    """Return a struct in Thrift's compact protocol, of fields as they were read here."""
    out = bytearray()
    write(out, STRUCT, fields)
    return bytes(out)


def value(fields: Fields, number: int, default: Any = None) -> Any:
    return next((value for field, _, value in fields if field == number), default)


def signed(zigzag: int) -> int:
    return (zigzag >> 1) ^ -(zigzag & 1)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("the footer has a number without an end")


def _read_value(data: bytes, at: int, wire: int, depth: int) -> tuple[Any, int]:
    """Read (value, end) of a wire type at a position. Numbers stay as they are encoded."""
    if wire in (TRUE, FALSE):
        return None, at
    if wire == BYTE:
        return data[at], at + 1
    if wire in (I16, I32, I64):
        return _read_varint(data, at)
    if wire == DOUBLE:
        return data[at : at + 8], at + 8
    if wire == BINARY:
        size, at = _read_varint(data, at)
        if at + size > len(data):
            raise ValueError("the footer has a text that is longer than itself")
        return data[at : at + size], at + size
    if wire in (LIST, SET):
        return _read_list(data, at, depth + 1)
    if wire == STRUCT:
        return read_struct(data, at, depth + 1)
    raise ValueError(f"the footer has a value of type {wire}")


def _read_list(data: bytes, at: int, depth: int) -> tuple[tuple[int, list[Any]], int]:
    size, wire = data[at] >> 4, data[at] & 0x0F
    at += 1
    if size == 15:
        size, at = _read_varint(data, at)
    if size > len(data) - at:  # each item takes at least a byte
        raise ValueError("the footer has a list that is longer than itself")
    # In a list a flag takes a byte.
    wire_of_items = BYTE if wire in (TRUE, FALSE) else wire
    items = []
    for _ in range(size):
        item, at = _read_value(data, at, wire_of_items, depth)
        items.append(item)
    return (wire, items), at


def read_struct(data: bytes, at: int, depth: int) -> tuple[Fields, int]:
    if depth > _DEPTH_MAX:
        raise ValueError("the footer is nested too deeply")
    fields: Fields = []
    number = 0
    while (header := data[at]) != 0:
        at += 1
        if header >> 4:
            number += header >> 4
        else:
            zigzag, at = _read_varint(data, at)
            number = signed(zigzag)
        value, at = _read_value(data, at, header & 0x0F, depth)
        fields.append([number, header & 0x0F, value])
    return fields, at + 1


def _write_varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def write(out: bytearray, wire: int, value: Any) -> None:
    """Append a value in the form that :func:`_read_value` returns."""
    if wire == BYTE:
        out.append(value)
    elif wire in (I16, I32, I64):
        _write_varint(out, value)
    elif wire == DOUBLE:
        out += value
    elif wire == BINARY:
        _write_varint(out, len(value))
        out += value
    elif wire in (LIST, SET):
        item_wire, items = value
        out.append(0xF0 | item_wire)
        _write_varint(out, len(items))
        for item in items:
            write(out, BYTE if item_wire in (TRUE, FALSE) else item_wire, item)
    elif wire == STRUCT:
        for number, field_wire, field_value in value:
            out.append(field_wire)
            _write_varint(out, (number << 1) ^ (number >> 31))
            write(out, field_wire, field_value)
        out.append(0)
