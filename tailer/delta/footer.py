"""Parquet footers: changed to what pyarrow can read, and the places of columns.

Checkpoints have columns that are not read here (statistics, tags) and whose types pyarrow may
refuse: groups without a field, annotations that it does not know. It then refuses the whole file,
before any column is chosen. The footer is therefore read here as a struct in Thrift's compact
protocol, and written again without those columns; the data pages stay in place.

pyarrow knows where a column lies, but crashes when asked for it in a damaged footer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, pairwise
from typing import Any, TypeAlias

__all__ = [
    "GroupNumbers",
    "column_ranges",
    "group_numbers",
    "maps_as_lists",
    "page_sizes",
    "pruned_footer",
    "thrift_part",
    "thrift_struct",
]

#: A struct's fields: [id, wire type, value]; a list's value is (wire type of its items, items).
_Fields: TypeAlias = list[list[Any]]
#: A row group's rows, bytes and chunks; see :func:`group_numbers`.
GroupNumbers: TypeAlias = tuple[int, int, list[tuple[int, ...] | None]]

_MAGIC = b"PAR1"
_DEPTH_MAX = 32
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = (
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12
)  # fmt: skip

# Field numbers of parquet.thrift: FileMetaData, SchemaElement, RowGroup, ColumnChunk, its metadata.
_SCHEMA, _ROW_GROUPS, _KEY_VALUES, _COLUMN_ORDERS = 2, 4, 5, 7
_TYPE, _REPETITION, _NAME, _NUM_CHILDREN, _ANNOTATION, _LOGICAL_TYPE = 1, 3, 4, 5, 6, 10
# Of a group: required or not; its annotation, in the older form and as a field of the union.
_OPTIONAL, _REPEATED = 1, 2
_MAP, _MAP_KEY_VALUE, _LIST_OF = 1, 2, 3
_LOGICAL_MAP, _LOGICAL_LIST = 2, 3
_COLUMNS, _GROUP_BYTES, _GROUP_ROWS = 1, 2, 3
_IN_ANOTHER_FILE, _CHUNK_METADATA, _ENCRYPTED, _ENCRYPTED_METADATA = 1, 3, 8, 9
_PHYSICAL, _ENCODINGS, _PATH, _CODEC, _VALUES, _UNPACKED = 1, 2, 3, 4, 5, 6
_COMPRESSED_SIZE, _DATA_AT, _DICTIONARY_AT = 7, 9, 11


def pruned_footer(footer: bytes, columns: Sequence[str]) -> bytes:
    """Return a Parquet file with only a footer: this one, reduced to these columns.

    ``footer`` is the Thrift struct alone; a column is its path with dots, and includes the columns
    below it. Key-value metadata and column orders are left out. Raises ValueError if the footer is
    invalid.
    """
    with _invalid():
        fields = _file_metadata(footer)
        kept = _prune_schema(_value(fields, _SCHEMA), columns)
        for group in _value(fields, _ROW_GROUPS)[1]:
            chunks = _value(group, _COLUMNS)
            chunks[1][:] = [chunk for chunk, keep in zip(chunks[1], kept, strict=True) if keep]
    return _footer_alone(fields, without=(_KEY_VALUES, _COLUMN_ORDERS))


def maps_as_lists(footer: bytes) -> bytes:
    """Return a Parquet file with only a footer: this one, with each map whose key is declared
    optional as a list of structs.

    Flink, Hive, Athena and Trino declare keys so, and pyarrow refuses the whole file; a list has
    the same levels. Key-value metadata is left out, for it may name the Arrow types of maps.
    ``footer`` is the Thrift struct alone. Raises ValueError if it is invalid.
    """
    with _invalid():
        fields = _file_metadata(footer)
        elements = _value(fields, _SCHEMA)[1]
        for at, group in enumerate(elements[:-2]):
            if _is_map(group) and _value(elements[at + 2], _REPETITION) == _OPTIONAL << 1:
                _make_list(group)
    return _footer_alone(fields, without=(_KEY_VALUES,))


def _is_map(group: _Fields) -> bool:
    """Return whether a group is a map, by either annotation; its repeated part may say so, too."""
    if _value(group, _TYPE) is not None or _value(group, _REPETITION) == _REPEATED << 1:
        return False
    logical = [field for field, _, _ in _value(group, _LOGICAL_TYPE, [])]
    older = _value(group, _ANNOTATION)
    return logical == [_LOGICAL_MAP] or older in (_MAP << 1, _MAP_KEY_VALUE << 1)


def _make_list(group: _Fields) -> None:
    for field in group:
        if field[0] == _ANNOTATION:
            field[2] = _LIST_OF << 1
        elif field[0] == _LOGICAL_TYPE:
            field[2] = [[_LOGICAL_LIST, _STRUCT, []]]


def thrift_part(file: bytes) -> bytes:
    """Return the Thrift struct of a file with only a footer."""
    return file[len(_MAGIC) : -len(_MAGIC) - 4]


def thrift_struct(fields: _Fields) -> bytes:
    """Return a struct in Thrift's compact protocol, of fields as they were read here."""
    out = bytearray()
    _write(out, _STRUCT, fields)
    return bytes(out)


def _file_metadata(footer: bytes) -> _Fields:
    fields, end = _read_struct(footer, 0, 0)
    if end > len(footer):
        raise ValueError("the footer is cut short")
    return fields


def _footer_alone(fields: _Fields, without: Sequence[int]) -> bytes:
    footer = thrift_struct([f for f in fields if f[0] not in without])
    return _MAGIC + footer + len(footer).to_bytes(4, "little") + _MAGIC


@contextmanager
def _invalid() -> Iterator[None]:
    """Make errors of what is taken for a footer ValueErrors."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError) as e:
        raise ValueError(f"the footer can't be read ({e})") from None


def column_ranges(footer: bytes, columns: Sequence[str]) -> list[list[tuple[int, int]]]:
    """Return the bytes [start, end) of these columns' chunks, for each row group.

    ``footer`` and ``columns`` are as in :func:`pruned_footer`; the chunks of a row group are in the
    order of the file. Raises ValueError if the footer is invalid, or chunks overlap.
    """
    wanted = tuple(f"{column}." for column in columns)
    groups = []
    with _invalid():
        for group in _value(_read_struct(footer, 0, 0)[0], _ROW_GROUPS)[1]:
            chunks = [_value(chunk, _CHUNK_METADATA) for chunk in _value(group, _COLUMNS)[1]]
            groups.append(sorted(_extent(c) for c in chunks if _path(c).startswith(wanted)))
    for group in groups:
        if any(left > right for left, right in pairwise([0, *chain(*group)])):
            raise ValueError("the footer has chunks that overlap")
    return groups


def group_numbers(footer: bytes) -> list[GroupNumbers] | None:
    """Return each row group as (rows, bytes, chunks), as the crate does; None if one of them
    can't be read.

    A chunk is (physical type, codec, mask of encodings, values, unpacked bytes, start, size); None
    if it is encrypted or in another file, or lacks one of these numbers.
    """
    try:
        groups = _value(_read_struct(footer, 0, 0)[0], _ROW_GROUPS)[1]
        return [
            (
                _number(group, _GROUP_ROWS),
                _number(group, _GROUP_BYTES),
                [_chunk_numbers(chunk) for chunk in _value(group, _COLUMNS)[1]],
            )
            for group in groups
        ]
    except (AttributeError, IndexError, OverflowError, TypeError, ValueError):
        return None


def page_sizes(start: bytes) -> list[tuple[int, int, int, int]]:
    """Return (kind, unpacked bytes, stored bytes, bytes of the header) of the pages that begin so,
    until one of them is not whole, or odd."""
    pages, at = [], 0
    with suppress(IndexError, OverflowError, TypeError, ValueError):
        while at < len(start):
            header, end = _read_struct(start, at, 0)
            kind, unpacked, stored = (_number(header, number) for number in (1, 2, 3))
            pages.append((kind, unpacked, stored, end - at))
            at = end + stored
    return pages


def _chunk_numbers(chunk: _Fields) -> tuple[int, ...] | None:
    elsewhere = (_IN_ANOTHER_FILE, _ENCRYPTED, _ENCRYPTED_METADATA)
    if any(_value(chunk, number) is not None for number in elsewhere):
        return None
    try:
        meta = _value(chunk, _CHUNK_METADATA)
        encodings = sum({1 << min(32, _signed(e)) for e in _value(meta, _ENCODINGS)[1]})
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


def _path(chunk: _Fields) -> str:
    names = _value(chunk, _PATH)[1]
    return "".join(f"{name.decode(errors='replace')}." for name in names)


def _extent(chunk: _Fields) -> tuple[int, int]:
    start = _signed(_value(chunk, _DATA_AT))
    dictionary = _signed(_value(chunk, _DICTIONARY_AT, 0))
    if 0 < dictionary < start:
        start = dictionary
    return start, start + _signed(_value(chunk, _COMPRESSED_SIZE))


def _value(fields: _Fields, number: int, default: Any = None) -> Any:
    return next((value for field, _, value in fields if field == number), default)


def _prune_schema(schema: tuple[int, list[_Fields]], columns: Sequence[str]) -> list[bool]:
    """Drop unwanted columns from the list of schema elements; return which leaves were kept."""
    elements = iter(schema[1])
    leaves: list[bool] = []
    wanted = tuple(f"{column}." for column in columns)

    def prune(path: str, depth: int) -> list[_Fields]:
        """Return the next element and those below it, as far as they are wanted."""
        element = next(elements, None)
        if element is None or depth > _DEPTH_MAX:
            raise ValueError("the footer's schema is not a tree")
        name = _value(element, _NAME, b"").decode(errors="replace")
        path = f"{path}{name}." if depth else ""
        if _value(element, _TYPE) is not None:
            leaves.append(path.startswith(wanted))
            return [element] if leaves[-1] else []
        count = _signed(_value(element, _NUM_CHILDREN, 0))
        below = [prune(path, depth + 1) for _ in range(count)]
        kept = [group for group in below if group]
        number = next((f for f in element if f[0] == _NUM_CHILDREN), None)
        if number is not None:
            number[2] = len(kept) << 1
        return [element, *(e for group in kept for e in group)] if kept or not depth else []

    schema[1][:] = prune("", 0)
    return leaves


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
    """Read (value, end) of a wire type at a position. Numbers stay as they are encoded."""
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


def _read_list(data: bytes, at: int, depth: int) -> tuple[tuple[int, list[Any]], int]:
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
    return (wire, items), at


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
        fields.append([number, header & 0x0F, value])
    return fields, at + 1


def _write_varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _write(out: bytearray, wire: int, value: Any) -> None:
    """Append a value in the form that :func:`_read_value` returns."""
    if wire == _BYTE:
        out.append(value)
    elif wire in (_I16, _I32, _I64):
        _write_varint(out, value)
    elif wire == _DOUBLE:
        out += value
    elif wire == _BINARY:
        _write_varint(out, len(value))
        out += value
    elif wire in (_LIST, _SET):
        item_wire, items = value
        out.append(0xF0 | item_wire)
        _write_varint(out, len(items))
        for item in items:
            _write(out, _BYTE if item_wire in (_TRUE, _FALSE) else item_wire, item)
    elif wire == _STRUCT:
        for number, field_wire, field_value in value:
            out.append(field_wire)
            _write_varint(out, (number << 1) ^ (number >> 31))
            _write(out, field_wire, field_value)
        out.append(0)
