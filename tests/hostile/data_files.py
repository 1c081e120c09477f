"""Parquet files of few bytes that ask their reader for much memory, or that lie."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa

from tailer.testing.actions import add_action
from tests.hostile.attack import MIB, Attack, ids_table
from tests.support import thrift
from tests.support.damaged_footers import with_footer
from tests.support.raw_parquet import (
    BROTLI,
    BYTES,
    DICTIONARY,
    GZIP,
    INT64,
    LIST_OF,
    LZ4_RAW,
    OPTIONAL,
    REPEATED,
    REQUIRED,
    SNAPPY,
    ZSTD,
    Chunk,
    Element,
    Page,
    texts,
    write_parquet,
)

TEXT = pa.schema([("id", pa.string())])
LIST = pa.schema([("id", pa.list_(pa.int64()))])
ID = Element("id", INT64, repetition=REQUIRED)
ID_TEXT = Element("id", BYTES, repetition=REQUIRED)
ID_LIST = (
    Element("id", children=1, annotation=LIST_OF),
    Element("list", children=1, repetition=REPEATED),
    Element("element", INT64, repetition=OPTIONAL),
)
INT32_MAX = 2**31 - 1
CODECS = {"snappy": SNAPPY, "gzip": GZIP, "brotli": BROTLI, "zstd": ZSTD, "lz4_raw": LZ4_RAW}

Write = Callable[[Path], object]


def _with_file(schema: pa.Schema, write: Write, rows: int) -> Callable[[Path], object]:
    """Return what makes a table with one file, which ``write`` writes."""

    def make(folder: Path) -> None:
        table = ids_table(folder, schema)
        path = folder / "part-0.parquet"
        write(path)
        table.commit(add_action(path.name, path.stat().st_size, rows, None))

    return make


def _run(count: int, value: int, width: int) -> bytes:
    """Encode one value, repeated, as a run."""
    out = bytearray()
    number = count << 1
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out) + value.to_bytes(-(-width // 8), "little")


def _sized(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def _one_column(
    element: Element | Sequence[Element],
    pages: Sequence[Page],
    rows: int,
    *,
    codec: int = 0,
    values: int | None = None,
) -> Write:
    elements = [element] if isinstance(element, Element) else list(element)
    path = [e.name for e in elements]
    kind = elements[-1].kind or 0
    chunk = Chunk(path, kind, pages, rows if values is None else values, codec)
    return lambda file: write_parquet(file, elements, [chunk], rows)


def _claims(path: Path) -> None:
    """A page of some bytes, which says that it has 2 GiB unpacked."""
    data = pa.Codec("zstd").compress(b"\0" * 80, asbytes=True)
    _one_column(ID, [Page(10, data, unpacked=INT32_MAX)], 10, codec=ZSTD)(path)


def _bomb(name: str, mib: int) -> Write:
    """A page that unpacks to as much as it says, a thousand times its size."""

    def write(path: Path) -> None:
        size = mib * MIB
        data = pa.Codec(name).compress(b"\0" * size, asbytes=True)
        page = Page(size // 8, data, unpacked=size)
        _one_column(ID, [page], size // 8, codec=CODECS[name])(path)

    return write


def _dictionary(path: Path) -> None:
    """A dictionary of one MiB, which each of 40 rows is."""
    value = b"x" * MIB
    pages = [
        Page(1, texts([value]), is_dictionary=True),
        Page(40, b"\x01" + _run(40, 0, 1), DICTIONARY),
    ]
    _one_column(ID_TEXT, pages, 40)(path)


def _long_run(rows: int) -> Write:
    """A page of some bytes with a run of 2^31 values, in a row group of so many rows."""
    pages = [
        Page(1, struct.pack("<q", 7), is_dictionary=True),
        Page(INT32_MAX, b"\x01" + _run(INT32_MAX, 0, 1), DICTIONARY),
    ]
    return _one_column(ID, pages, rows, values=INT32_MAX)


def _long_list(items: int) -> Write:
    """One row, a list of so many items, in some bytes."""
    repetition = _sized(_run(1, 0, 1) + _run(items - 1, 1, 1))
    pages = [
        Page(1, struct.pack("<q", 7), is_dictionary=True),
        Page(items, repetition + _sized(_run(items, 3, 2)) + b"\x01" + _run(items, 0, 1),
             DICTIONARY),
    ]  # fmt: skip
    return _one_column(ID_LIST, pages, 1, values=items)


def _long_lists(pages: int, items: int) -> Write:
    """One row, a list that goes on over pages."""
    first = _sized(_run(1, 0, 1) + _run(items - 1, 1, 1))
    more = _sized(_run(items, 1, 1))
    rest = _sized(_run(items, 3, 2)) + b"\x01" + _run(items, 0, 1)
    data = [Page(items, (more if i else first) + rest, DICTIONARY) for i in range(pages)]
    head = Page(1, struct.pack("<q", 7), is_dictionary=True)
    return _one_column(ID_LIST, [head, *data], 1, values=pages * items)


def _null_list(items: int) -> Write:
    """One row, a list of so many nulls: there are no values at all."""
    repetition = _sized(_run(1, 0, 1) + _run(items - 1, 1, 1))
    page = Page(items, repetition + _sized(_run(items, 2, 2)))
    return _one_column(ID_LIST, [page], 1, values=items)


def _text(path: Path) -> None:
    """A text of a GiB, in a file with a hole."""
    size = 1024 * MIB
    _one_column(ID_TEXT, [Page(1, b"\0" * 16)], 1)(path)
    data = path.read_bytes()
    footer = int.from_bytes(data[-8:-4], "little")
    tail = data[-8 - footer :]
    header = thrift.thrift_struct(
        [
            [1, thrift.I32, 0],
            [2, thrift.I32, (size + 4) << 1],
            [3, thrift.I32, (size + 4) << 1],
            [5, thrift.STRUCT, [[n, thrift.I32, v << 1] for n, v in enumerate((1, 0, 3, 3), 1)]],
        ]
    )

    def sized(fields: thrift.Fields) -> None:
        (group,) = thrift.value(fields, thrift.ROW_GROUPS)[1]
        (column,) = thrift.value(group, thrift.COLUMNS)[1]
        for field in thrift.value(column, thrift.CHUNK_METADATA):
            if field[0] in (6, 7):
                field[2] = (len(header) + size + 4) << 1

    tail = with_footer(b"PAR1" + tail, sized)[4:]
    with path.open("wb") as file:
        file.write(b"PAR1" + header + struct.pack("<I", size))
        file.seek(size, os.SEEK_CUR)
        file.write(tail)


def _lying_length(length: int) -> Write:
    def write(path: Path) -> None:
        _one_column(ID, [Page(1, struct.pack("<q", 1))], 1)(path)
        data = path.read_bytes()
        path.write_bytes(data[:-8] + struct.pack("<I", length) + b"PAR1")

    return write


def _element(name: bytes, children: int | None = None) -> bytes:
    numbers: thrift.Fields = [[3, thrift.I32, 1 << 1], [4, thrift.BINARY, name]]
    if children is None:
        numbers.insert(0, [1, thrift.I32, INT64 << 1])
    else:
        numbers.append([5, thrift.I32, children << 1])
    return thrift.thrift_struct(numbers)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _list(count: int, items: bytes) -> bytes:
    return b"\xfc" + _varint(count) + items


def _footer(schema: bytes, groups: bytes = b"\x0c", more: bytes = b"") -> bytes:
    """A footer of version 1 with a list of schema elements, and one of row groups."""
    return b"\x15\x02\x19" + schema + b"\x16\x00\x19" + groups + more + b"\x00"


def _of_footer(footer: Callable[[], bytes]) -> Write:
    def write(path: Path) -> None:
        data = footer()
        path.write_bytes(b"PAR1" + data + struct.pack("<I", len(data)) + b"PAR1")

    return write


def _columns(count: int) -> bytes:
    root = _element(b"schema", count)
    return _footer(_list(count + 1, root + _element(b"c") * count))


def _nested(depth: int, number: int = thrift.I32) -> bytes:
    """Columns within each other; the wire type of their numbers of children."""
    group: thrift.Fields = [[3, thrift.I32, 2], [4, thrift.BINARY, b"id"], [5, number, 2]]
    groups = thrift.thrift_struct(group) * depth
    return _footer(_list(depth + 2, _element(b"schema", 1) + groups + _element(b"x")))


def _ids_schema() -> bytes:
    return _list(2, _element(b"schema", 1) + _element(b"id"))


def _metadata_value(mib: int) -> bytes:
    """A footer with one pair of metadata, of so many MiB."""
    pair = b"\x18\x01k\x18" + _varint(mib * MIB) + b"v" * (mib * MIB) + b"\x00"
    return _footer(_ids_schema(), more=b"\x19\x1c" + pair)


def _metadata_pairs(count: int) -> bytes:
    pair = b"\x18\x01k\x18\xc8\x01" + b"v" * 200 + b"\x00"
    return _footer(_ids_schema(), more=b"\x19" + _list(count, pair * count))


def _row_groups(count: int) -> bytes:
    """A footer of so many row groups without rows."""
    chunk = thrift.thrift_struct(
        [
            [2, thrift.I64, 8],
            [3, thrift.STRUCT, [
                [1, thrift.I32, INT64 << 1], [2, thrift.LIST, (thrift.I32, [0])],
                [3, thrift.LIST, (thrift.BINARY, [b"id"])], [4, thrift.I32, 0],
                [5, thrift.I64, 0], [6, thrift.I64, 0], [7, thrift.I64, 0], [9, thrift.I64, 8]]],
        ]
    )  # fmt: skip
    group = b"\x19\x1c" + chunk + b"\x16\x00\x16\x00\x00"
    return _footer(_ids_schema(), _list(count, group * count))


IDS = pa.schema([("id", pa.int64())])
LISTS = ["lists of so many items"]
PAGE = ["are the most that are held in memory"]
FOOTER = ["has a footer of"]

DATA_FILES: dict[str, Attack] = {
    "a page that claims 2 GiB": Attack(_with_file(IDS, _claims, 10), PAGE),
    **{
        f"a page of {codec} that unpacks to {mib} MiB": Attack(
            _with_file(IDS, _bomb(codec, mib), mib * MIB // 8), PAGE
        )
        for codec, mib in (("snappy", 264), *((c, 136) for c in CODECS if c != "snappy"))
    },
    "a run of 2^31 values behind one row": Attack(
        _with_file(IDS, _long_run(1), 1), ["row group 0 has 1 rows, and its column 'id' 2147483647"]
    ),
    "a list of 2^31 items": Attack(_with_file(LIST, _long_list(INT32_MAX), 1), LISTS),
    "a list of 2^31 nulls": Attack(_with_file(LIST, _null_list(INT32_MAX), 1), LISTS),
    "a list of 40 million items in pages": Attack(
        _with_file(LIST, _long_lists(40, 1_000_000), 1), LISTS
    ),
    "a text of a GiB": Attack(_with_file(TEXT, _text, 1), PAGE),
    "a footer that is longer than its file": Attack(
        _with_file(TEXT, _lying_length(2**32 - 1), 1), ["smaller than the size reported by footer"]
    ),
    "a footer of 900000 columns": Attack(
        _with_file(TEXT, _of_footer(lambda: _columns(900_000)), 1), FOOTER
    ),
    "a footer nested 50000 levels deep": Attack(
        _with_file(TEXT, _of_footer(lambda: _nested(50_000)), 1), ["too deeply nested"]
    ),
    "a footer nested 50000 levels deep, as bytes": Attack(
        # pyarrow passes over a number of another type
        _with_file(TEXT, _of_footer(lambda: _nested(50_000, thrift.BYTE)), 1),
        ["Malformed Parquet"],
    ),
    "a footer of 250 MiB in one value": Attack(
        _with_file(TEXT, _of_footer(lambda: _metadata_value(250)), 1), FOOTER
    ),
    "a footer of 190 MiB in pairs": Attack(
        _with_file(TEXT, _of_footer(lambda: _metadata_pairs(950_000)), 1), FOOTER
    ),
    "a footer of 900000 row groups": Attack(
        _with_file(TEXT, _of_footer(lambda: _row_groups(900_000)), 1), FOOTER
    ),
    # Writers make such files, so they are read.
    "a dictionary's text of a MiB in each row": Attack(_with_file(TEXT, _dictionary, 40), rows=40),
    "a list of a million items": Attack(_with_file(LIST, _long_list(1_000_000), 1), rows=1),
}
