"""Parquet files as other writers make them, byte by byte: pyarrow can't write them itself.

A column is given by its path, its physical type and its pages, whose levels and values the test
encodes itself ("Parquet format: Nested Encoding, Data Pages").
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

from tests.support.thrift import thrift_struct

#: Numbers of parquet.thrift: physical types, repetitions, encodings.
BOOLEAN, INT32, INT64, INT96, BYTES, FIXED = 0, 1, 2, 3, 6, 7
REQUIRED, OPTIONAL, REPEATED = 0, 1, 2
PLAIN, DELTA, DELTA_TEXTS, DICTIONARY = 0, 5, 7, 8
#: Codecs.
UNCOMPRESSED, SNAPPY, GZIP, BROTLI, ZSTD, LZ4_RAW = 0, 1, 2, 4, 6, 7
#: Annotations of groups.
MAP, MAP_KEY_VALUE, LIST_OF = 1, 2, 3

#: Wire types of Thrift's compact protocol.
_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12


@dataclass(frozen=True)
class Element:
    """An element of the schema: a group if it has children, else a column of a physical type."""

    name: str
    kind: int | None = None
    children: int | None = None
    repetition: int = OPTIONAL
    annotation: int | None = None
    length: int | None = None
    precision: int | None = None
    scale: int | None = None

    def fields(self) -> list[list[object]]:
        numbers = [
            (1, self.kind), (2, self.length), (3, self.repetition), (4, self.name),
            (5, self.children), (6, self.annotation), (7, self.scale), (8, self.precision),
        ]  # fmt: skip
        return [
            [n, _BINARY, v.encode()] if isinstance(v, str) else [n, _I32, v << 1]
            for n, v in numbers
            if v is not None
        ]


@dataclass(frozen=True)
class Page:
    """A page of version 1: its levels and values, and how many values these are, nulls included.
    ``unpacked`` is the size that its header says they have, where ``data`` is compressed."""

    values: int
    data: bytes
    encoding: int = PLAIN
    is_dictionary: bool = False
    unpacked: int | None = None

    def encoded(self) -> bytes:
        if self.is_dictionary:
            what: list[Any] = [7, _STRUCT, [[1, _I32, self.values << 1], [2, _I32, PLAIN << 1]]]
        else:
            numbers = (self.values, self.encoding, 3, 3)
            what = [5, _STRUCT, [[n, _I32, v << 1] for n, v in enumerate(numbers, 1)]]
        size = len(self.data) << 1
        kind = 2 if self.is_dictionary else 0
        unpacked = size if self.unpacked is None else self.unpacked << 1
        head: list[list[Any]] = [[1, _I32, kind << 1], [2, _I32, unpacked], [3, _I32, size], what]
        return thrift_struct(head) + self.data


@dataclass(frozen=True)
class Chunk:
    """The one column chunk of a column."""

    path: Sequence[str]
    kind: int
    pages: Sequence[Page]
    values: int
    codec: int = UNCOMPRESSED


def levels(numbers: Sequence[int], width: int) -> bytes:
    """Encode levels as a page of version 1 begins with them, behind their length."""
    data = packed(numbers, width)
    return struct.pack("<I", len(data)) + data


def packed(numbers: Sequence[int], width: int) -> bytes:
    """Encode numbers of some bits in one bit-packed run, without their length."""
    groups = -(-len(numbers) // 8)
    bits = sum(number << i * width for i, number in enumerate(numbers))
    return bytes([groups << 1 | 1]) + bits.to_bytes(groups * width, "little")


def texts(values: Sequence[bytes]) -> bytes:
    """Encode byte arrays plainly."""
    return b"".join(struct.pack("<I", len(value)) + value for value in values)


def differences(numbers: Sequence[int]) -> bytes:
    """Encode numbers as their differences, each block of them with a width of its own."""
    out = _varint(128) + _varint(4) + _varint(len(numbers)) + _zigzag(numbers[0] if numbers else 0)
    found = [after - before for before, after in pairwise(numbers)]
    for at in range(0, len(found), 128):
        block = found[at : at + 128]
        least = min(block)
        parts = [[n - least for n in block[i : i + 32]] for i in range(0, len(block), 32)]
        widths = [max(part).bit_length() for part in parts]
        out += _zigzag(least) + bytes(widths).ljust(4, b"\0")
        for part, width in zip(parts, widths, strict=True):
            bits = sum(number << i * width for i, number in enumerate(part))
            out += bits.to_bytes(4 * width, "little")
    return out


def shared_texts(values: Sequence[bytes], last: bytes = b"") -> bytes:
    """Encode texts that may begin as the one before; the first of them as ``last``."""
    shared = [_shared(before, after) for before, after in pairwise([last, *values])]
    own = [value[size:] for value, size in zip(values, shared, strict=True)]
    return differences(shared) + differences([len(text) for text in own]) + b"".join(own)


def _shared(before: bytes, after: bytes) -> int:
    """Return how many bytes two texts have in common at their beginning."""
    return sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False))
    )


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def _zigzag(number: int) -> bytes:
    return _varint(number << 1 ^ number >> 63)


def write_parquet(
    path: Path,
    schema: Sequence[Element],
    chunks: Sequence[Chunk],
    rows: int,
    writer: str = "parquet-mr version 1.12.2",
) -> None:
    """Write a file of one row group. The schema is a tree, its root left out, depth first."""
    out, columns = bytearray(b"PAR1"), []
    for chunk in chunks:
        at, first_data = len(out), None
        for page in chunk.pages:
            if first_data is None and not page.is_dictionary:
                first_data = len(out)
            out += page.encoded()
        size = (len(out) - at) << 1
        more = sum(max(0, (page.unpacked or 0) - len(page.data)) for page in chunk.pages)
        data_at = at if first_data is None else first_data
        meta = [
            [1, _I32, chunk.kind << 1],
            [2, _LIST, (_I32, [e << 1 for e in sorted({p.encoding for p in chunk.pages} | {3})])],
            [3, _LIST, (_BINARY, [name.encode() for name in chunk.path])],
            [4, _I32, chunk.codec << 1],
            [5, _I64, chunk.values << 1],
            [6, _I64, size + (more << 1)],
            [7, _I64, size],
            [9, _I64, data_at << 1],
        ]
        if data_at != at:
            meta.append([11, _I64, at << 1])
        columns.append([[2, _I64, at << 1], [3, _STRUCT, meta]])
    top = _top_level(schema)
    elements = [[[4, _BINARY, b"schema"], [5, _I32, top << 1]], *(e.fields() for e in schema)]
    group = [[1, _LIST, (_STRUCT, columns)], [2, _I64, len(out) << 1], [3, _I64, rows << 1]]
    footer = thrift_struct(
        [
            [1, _I32, 1 << 1],
            [2, _LIST, (_STRUCT, elements)],
            [3, _I64, rows << 1],
            [4, _LIST, (_STRUCT, [group])],
            [6, _BINARY, writer.encode()],
        ]
    )
    path.write_bytes(bytes(out) + footer + struct.pack("<I", len(footer)) + b"PAR1")


def _top_level(schema: Sequence[Element]) -> int:
    """Return how many elements are children of the root."""
    count, below = 0, 0
    for element in schema:
        if not below:
            count += 1
        below = max(0, below - 1) + (element.children or 0)
    return count
