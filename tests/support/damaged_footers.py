"""Decodes files with damaged column metadata, one after the other: arguments FOLDER SEED FLIPS.

Run by `tests/decode/test_row_groups.py` in a process of its own, because such a file may end the
whole process. Prints the name of each damage before it is decoded, and what came of it after that.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tailer.changes import ChangeFile
from tailer.decode.rows import DecodeOptions, Skip, decode_file
from tailer.decode.vectors import ALL_ROWS
from tailer.errors import TableError
from tests.support import thrift
from tests.support.feeds import state

ROWS = 3000
SCHEMA = pa.schema([("id", pa.int64()), ("s", pa.string())])

#: A struct of the footer: its fields, as [number, wire type, value].
Fields = list[list[Any]]
I32, I64, BINARY, STRUCT = thrift.I32, thrift.I64, thrift.BINARY, thrift.STRUCT


def whole(rows: int, **options: Any) -> bytes:
    """A sound file."""
    sink = pa.BufferOutputStream()
    texts = [f"text {i % 50}" for i in range(rows)]
    pq.write_table(pa.table({"id": range(rows), "s": texts}, SCHEMA), sink, **options)
    return bytes(sink.getvalue())


def footer_of(data: bytes) -> bytes:
    """The Thrift struct of a file's footer."""
    return data[-8 - int.from_bytes(data[-8:-4], "little") : -8]


def with_footer(data: bytes, change: Callable[[Fields], None]) -> bytes:
    """The file after a change of its footer."""
    fields, _ = thrift.read_struct(footer_of(data), 0, 0)
    change(fields)
    out = bytearray()
    thrift.write(out, thrift.STRUCT, fields)
    return data[: -8 - len(footer_of(data))] + out + len(out).to_bytes(4, "little") + b"PAR1"


def put(fields: Fields, number: int, wire: int, value: Any) -> None:
    """Set a field; the value None takes it away."""
    fields[:] = [f for f in fields if f[0] != number]
    if value is not None:
        fields.append([number, wire, value])
    fields.sort(key=lambda f: int(f[0]))


def groups(fields: Fields) -> list[Fields]:
    """The row groups of a footer."""
    return list(thrift.value(fields, thrift.ROW_GROUPS)[1])


def chunks(fields: Fields) -> Iterator[Fields]:
    """The column chunks of all row groups."""
    for group in groups(fields):
        yield from thrift.value(group, thrift.COLUMNS)[1]


def zigzag(number: int) -> int:
    """A number as it is encoded."""
    return (number << 1) ^ (number >> 63)


def in_metadata(number: int, wire: int, value: Any) -> Callable[[Fields], None]:
    """A change of a field of each chunk's metadata."""

    def change(fields: Fields) -> None:
        for chunk in chunks(fields):
            put(thrift.value(chunk, thrift.CHUNK_METADATA), number, wire, value)

    return change


def in_chunk(number: int, wire: int, value: Any) -> Callable[[Fields], None]:
    """A change of a field of each chunk."""

    def change(fields: Fields) -> None:
        for chunk in chunks(fields):
            put(chunk, number, wire, value)

    return change


def in_statistics(number: int, wire: int, value: Any) -> Callable[[Fields], None]:
    """A change of a field of each chunk's statistics."""

    def change(fields: Fields) -> None:
        for chunk in chunks(fields):
            meta = thrift.value(chunk, thrift.CHUNK_METADATA)
            put(thrift.value(meta, 12), number, wire, value)

    return change


def fewer_chunks(fields: Fields) -> None:
    """Leave out the last column of each row group."""
    for group in groups(fields):
        thrift.value(group, thrift.COLUMNS)[1].pop()


def more_chunks(fields: Fields) -> None:
    """Give the last column of each row group once more."""
    for group in groups(fields):
        columns = thrift.value(group, thrift.COLUMNS)[1]
        columns.append(columns[-1])


def changes() -> dict[str, Callable[[Fields], None]]:
    """Each kind of damage to what a footer says of columns."""
    found = {
        "no metadata": in_chunk(3, STRUCT, None),
        "empty metadata": in_chunk(3, STRUCT, []),
        "in another file": in_chunk(1, BINARY, b"other.parquet"),
        "encrypted with the footer's key": in_chunk(8, STRUCT, [[1, STRUCT, []]]),
        "encrypted with a key of its own": in_chunk(
            8, STRUCT, [[2, STRUCT, [[1, thrift.LIST, (BINARY, [b"s"])]]]]
        ),
        "encrypted as nothing": in_chunk(8, STRUCT, []),
        "encrypted metadata": in_chunk(9, BINARY, b"\x00" * 40),
        "fewer chunks": fewer_chunks,
        "more chunks": more_chunks,
        "statistics of one byte": in_statistics(5, BINARY, b"x"),
        "old statistics of one byte": in_statistics(1, BINARY, b"x"),
        "statistics without a value": in_statistics(6, BINARY, None),
    }
    for number, name, wire in (
        (1, "type", I32), (4, "codec", I32), (5, "values", I64), (6, "unpacked", I64),
        (7, "size", I64), (9, "data page", I64), (11, "dictionary", I64),
    ):  # fmt: skip
        found[f"no {name}"] = in_metadata(number, wire, None)
        for value in (-1, 0, 99, 2**31 - 1) if wire == I32 else (-1, 0, 99, 2**40, 2**62):
            found[f"{name} {value}"] = in_metadata(number, wire, zigzag(value))
    for number, name, wire in ((2, "encodings", I32), (3, "path", BINARY)):
        found[f"no {name}"] = in_metadata(number, thrift.LIST, None)
        found[f"empty {name}"] = in_metadata(number, thrift.LIST, (wire, []))
    found["encoding 99"] = in_metadata(2, thrift.LIST, (I32, [zigzag(99)]))
    found["another path"] = in_metadata(3, thrift.LIST, (BINARY, [b"id", b"s"]))
    found["encoding statistics"] = in_metadata(13, thrift.LIST, (STRUCT, [[[1, I32, zigzag(99)]]]))
    return found


def outcome(data: bytes) -> str:
    """What comes of a file: its number of rows, or the error's class."""
    file = ChangeFile("a", "a", 5, 1, "t", state(SCHEMA), {}, "insert", "files", size=len(data))
    options = DecodeOptions(on_read=lambda _: None)
    try:
        found = decode_file(pa.BufferReader(data), file, ALL_ROWS, options, Skip())
        return f"{sum(rows.batch.num_rows for rows in found)} rows"
    except TableError as e:
        return type(e).__name__


def main() -> None:
    """Decode the files of the folder, then damaged ones."""
    for path in sorted(Path(sys.argv[1]).glob("*.parquet")):
        print(path.stem, end=": ", flush=True)
        print(outcome(path.read_bytes()))
    # One is decoded by pyarrow alone, the other one is large enough for the compiled decoder.
    sound = [whole(ROWS), whole(200_000, compression="none", use_dictionary=["s"])]
    for name, change in changes().items():
        for data in sound:
            print(name, end=": ", flush=True)
            print(outcome(with_footer(data, change)))
    dice = random.Random(int(sys.argv[2]))
    length = len(footer_of(sound[0]))
    for _ in range(int(sys.argv[3])):
        damaged = bytearray(sound[0])
        at, bit = len(damaged) - 8 - dice.randrange(length + 1), dice.randrange(8)
        print(f"bit {bit} of byte {at}", end=": ", flush=True)
        damaged[at] ^= 1 << bit
        print(outcome(bytes(damaged)))


if __name__ == "__main__":
    main()
