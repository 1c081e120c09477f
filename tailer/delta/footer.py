"""The numbers of row groups and pages, where the crate in ``native/`` was not built.

pyarrow has those of row groups, but its ``RowGroupMetaData.column()`` throws, for an encrypted
column and for some damaged ones, out of a function that must not throw, which ends the whole
process and all feeds in it. It has nothing of pages, whose headers tell how much memory they take.
So these structs are read here, in Thrift's compact protocol. Once ``column()`` raises an exception,
:func:`group_numbers` can go.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, TypeAlias

__all__ = ["GroupNumbers", "group_numbers", "page_sizes"]

#: A struct's fields: [id, value]; numbers as they are encoded, a flag as None.
_Fields: TypeAlias = list[tuple[int, Any]]
#: A row group's rows, bytes and chunks; see :func:`group_numbers`.
GroupNumbers: TypeAlias = tuple[int, int, list[tuple[int, ...] | None]]

_DEPTH_MAX = 32
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = (
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12
)  # fmt: skip

# Field numbers of parquet.thrift: FileMetaData, RowGroup, ColumnChunk, its metadata.
_ROW_GROUPS = 4
_COLUMNS, _GROUP_BYTES, _GROUP_ROWS = 1, 2, 3
_IN_ANOTHER_FILE, _CHUNK_METADATA, _ENCRYPTED, _ENCRYPTED_METADATA = 1, 3, 8, 9
_PHYSICAL, _ENCODINGS, _CODEC, _VALUES, _UNPACKED = 1, 2, 4, 5, 6
_COMPRESSED_SIZE, _DATA_AT, _DICTIONARY_AT = 7, 9, 11
#: PageHeader's structs of data pages, dictionaries and data pages of version 2.
_OF_KINDS = (5, 7, 8)


def group_numbers(footer: bytes) -> list[GroupNumbers] | None:
    """Return each row group as (rows, bytes, chunks), as the crate does; None if one of them
    can't be read.

    A chunk is (physical type, codec, mask of encodings, values, unpacked bytes, start, size); None
    if it is encrypted or in another file, or lacks one of these numbers.
    """
    try:
        groups = _value(_read_struct(footer, 0, 0)[0], _ROW_GROUPS)
        return [
            (
                _number(group, _GROUP_ROWS),
                _number(group, _GROUP_BYTES),
                [_chunk_numbers(chunk) for chunk in _value(group, _COLUMNS)],
            )
            for group in groups
        ]
    except (AttributeError, IndexError, OverflowError, TypeError, ValueError):
        return None


def page_sizes(start: bytes) -> list[tuple[int, int, int, int, int]]:
    """Return (kind, unpacked bytes, stored bytes, bytes of the header, values) of the pages that
    begin so, until one of them is not whole, or odd."""
    pages, at = [], 0
    with suppress(IndexError, OverflowError, TypeError, ValueError):
        while at < len(start):
            header, end = _read_struct(start, at, 0)
            kind, unpacked, stored = (_number(header, number) for number in (1, 2, 3))
            pages.append((kind, unpacked, stored, end - at, _page_values(header)))
            at = end + stored
    return pages


def _page_values(header: _Fields) -> int:
    values = 0
    for number, fields in header:
        is_struct = isinstance(fields, list) and all(isinstance(one, tuple) for one in fields)
        if number in _OF_KINDS and is_struct:
            values = next((_signed(v) for n, v in fields if n == 1 and isinstance(v, int)), values)
    if values < 0:
        raise ValueError("a number of values is negative")
    return values


def _chunk_numbers(chunk: _Fields) -> tuple[int, ...] | None:
    elsewhere = (_IN_ANOTHER_FILE, _ENCRYPTED, _ENCRYPTED_METADATA)
    if any(_value(chunk, number) is not None for number in elsewhere):
        return None
    try:
        meta = _value(chunk, _CHUNK_METADATA)
        encodings = sum({1 << min(32, _signed(e)) for e in _value(meta, _ENCODINGS)})
        start, end = _extent(meta)
        numbers = (_PHYSICAL, _CODEC, _VALUES, _UNPACKED)
        physical, codec, values, unpacked = (_number(meta, number) for number in numbers)
    except (IndexError, OverflowError, TypeError, ValueError):
        return None
    found = (physical, codec, encodings, values, unpacked, start, end - start)
    return found if min(found) >= 0 else None


def _number(fields: _Fields, number: int) -> int:
    """Return a number that is a size. Raises ValueError if it is negative."""
    value = _signed(_value(fields, number))
    if value < 0:
        raise ValueError("a size is negative")
    return value


def _extent(chunk: _Fields) -> tuple[int, int]:
    start = _signed(_value(chunk, _DATA_AT))
    dictionary = _signed(_value(chunk, _DICTIONARY_AT, 0))
    if 0 < dictionary < start:
        start = dictionary
    return start, start + _signed(_value(chunk, _COMPRESSED_SIZE))


def _value(fields: _Fields, number: int, default: Any = None) -> Any:
    return next((value for field, value in fields if field == number), default)


def _signed(zigzag: int) -> int:
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
    """Read (value, end) of a wire type at a position."""
    if wire in (_TRUE, _FALSE):
        return None, at
    if wire == _BYTE:
        return data[at], at + 1
    if wire in (_I16, _I32, _I64):
        return _read_varint(data, at)
    if wire == _DOUBLE:
        return data[at : at + 8], at + 8
    if wire == _BINARY:
        size, at = _read_varint(data, at)
        if at + size > len(data):
            raise ValueError("the footer has a text that is longer than itself")
        return data[at : at + size], at + size
    if wire in (_LIST, _SET):
        return _read_list(data, at, depth + 1)
    if wire == _STRUCT:
        return _read_struct(data, at, depth + 1)
    raise ValueError(f"the footer has a value of type {wire}")


def _read_list(data: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    size, wire = data[at] >> 4, data[at] & 0x0F
    at += 1
    if size == 15:
        size, at = _read_varint(data, at)
    if size > len(data) - at:  # each item takes at least a byte
        raise ValueError("the footer has a list that is longer than itself")
    # In a list a flag takes a byte.
    wire_of_items = _BYTE if wire in (_TRUE, _FALSE) else wire
    items = []
    for _ in range(size):
        item, at = _read_value(data, at, wire_of_items, depth)
        items.append(item)
    return items, at


def _read_struct(data: bytes, at: int, depth: int) -> tuple[_Fields, int]:
    if depth > _DEPTH_MAX:
        raise ValueError("the footer is nested too deeply")
    fields: _Fields = []
    number = 0
    while (header := data[at]) != 0:
        at += 1
        if header >> 4:
            number += header >> 4
        else:
            zigzag, at = _read_varint(data, at)
            number = _signed(zigzag)
        value, at = _read_value(data, at, header & 0x0F, depth)
        fields.append((number, value))
    return fields, at + 1
