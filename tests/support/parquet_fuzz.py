"""Decodes damaged Parquet files by the crate, with pyarrow as the judge.

    python -m tests.support.parquet_fuzz [FILES] [SEED]

Prints how many files each of the two refused. What the crate takes, pyarrow must take, with the
same rows, or, where damage concerns statistics alone, DuckDB; and nothing may end the process.
"""

from __future__ import annotations

import argparse
import collections
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from decimal import Decimal
from functools import cache, partial
from tempfile import NamedTemporaryFile
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from tailer.delta.damaged_bytes import UNREADABLE
from tailer.delta.parquet_columns import ParquetColumns
from tailer.delta.row_groups import RowGroups
from tailer.errors import CorruptLog
from tailer.native.parquet import native

#: What must not be.
WRONG = ("the rows differ", "the crate takes what pyarrow refuses")

END = 8  # the length of a footer, and the magic bytes
ROWS = 240
_ENCODED = {
    "id": "DELTA_BINARY_PACKED",
    "n": "DELTA_BINARY_PACKED",
    "text": "DELTA_BYTE_ARRAY",
    "name": "DELTA_LENGTH_BYTE_ARRAY",
    "x": "BYTE_STREAM_SPLIT",
    "flag": "RLE",
    "amount": "DELTA_BYTE_ARRAY",
    "tags.list.element": "DELTA_BYTE_ARRAY",
    "place.y.list.element": "DELTA_BINARY_PACKED",
}
_PLAIN: dict[str, Any] = {"use_dictionary": False, "compression": "none"}
WAYS: tuple[dict[str, Any], ...] = (
    {"compression": "none"},
    {"compression": "none", "data_page_size": 64, "row_group_size": 100},
    {"compression": "none", "data_page_version": "2.0", "data_page_size": 256},
    {**_PLAIN, "use_deprecated_int96_timestamps": True},
    {**_PLAIN, "data_page_version": "2.0", "store_decimal_as_integer": True},
    {**_PLAIN, "column_encoding": _ENCODED},
    {**_PLAIN, "column_encoding": _ENCODED, "data_page_version": "2.0", "data_page_size": 512},
    {"compression": "zstd", "write_page_checksum": True},
    *({"compression": codec} for codec in ("snappy", "gzip", "lz4", "brotli")),
)


def whole_files() -> list[bytes]:
    """Files of all codecs, encodings and kinds of pages. What Arrow notes of its types is left out:
    pyarrow refuses damage to it, and the crate passes it over."""
    ints = pa.list_(pa.field("element", pa.int32(), nullable=False))
    columns = {
        "id": pa.array(range(ROWS), pa.int64()),
        "n": pa.array([n * n % 1000 if n % 7 else None for n in range(ROWS)], pa.int32()),
        "text": ["a", None, "a longer one", "a longer one too"] * (ROWS // 4),
        "name": ["", "b", "bcd", None] * (ROWS // 4),
        "x": [0.5, None] * (ROWS // 2),
        "flag": [True, None, False] * (ROWS // 3),
        "amount": [Decimal(n) / 4 for n in range(ROWS)],
        "at": pa.array(range(ROWS), pa.timestamp("us")),
        "tags": [["x", None], [], None, ["y"]] * (ROWS // 4),
        "place": [{"x": 1.5, "y": [1]}, None] * (ROWS // 2),
        "deep": pa.array(
            [[[1, None], []], None, [[2]]] * (ROWS // 3), pa.list_(pa.list_(pa.int16()))
        ),
        "pairs": pa.array([[("k", 1)], [], None] * (ROWS // 3), pa.map_(pa.string(), pa.int64())),
        "ints": pa.array([[1, 2], [3]] * (ROWS // 2), ints),
    }
    required = ("id", "amount", "ints")
    rows = pa.table(columns)
    fields = [field.with_nullable(field.name not in required) for field in rows.schema]
    rows = rows.cast(pa.schema(fields))
    files = []
    for options in WAYS:
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, store_schema=False, **options)
        files.append(bytes(sink.getvalue()))
    return files


def damaged(dice: random.Random, whole: bytes) -> bytes:
    """A file with one to three other bytes, most of them where a page begins, in its header and
    levels; with more of them in its footer, cut, or with a wrong length of footer."""
    data = bytearray(whole)
    length = int.from_bytes(data[-END:-4], "little")
    first = len(data) - END - length
    way = dice.randrange(8)
    for _ in range(dice.choice([1, 1, 2, 3])):
        if way < 5:
            page = dice.choice(page_starts(whole))
            at = min(page + int(dice.expovariate(1 / 40)), first - 1)
        else:
            at = dice.randrange(first if way == 5 else 0, len(data))
        data[at] = dice.choice([0, 0x19, 0x7F, 0x80, 0xFF, data[at] ^ 1 << dice.randrange(8)])
    if way == 7:
        match dice.randrange(4):
            case 0:
                return bytes(data[: dice.randrange(len(data) + 1)])
            case 1:
                size = dice.choice([0, length - 1, length + 1, len(data), 2**32 - 1])
                data[-END:-4] = size.to_bytes(4, "little")
            case 2:  # ten bytes of a number, and more
                at = dice.randrange(first, len(data) - END)
                data[at:at] = b"\xff" * dice.randrange(1, 12)
    return bytes(data)


@cache
def page_starts(whole: bytes) -> list[int]:
    """Return where the pages of a file begin."""
    starts = []
    for group in ParquetColumns(pa.BufferReader(whole)).groups:
        for chunk in group.chunks or ():
            assert chunk is not None
            at, end = chunk[5], chunk[5] + chunk[6]
            for page in native.page_sizes(whole[at:end]):
                starts.append(at)
                at += page[2] + page[3]
    return starts


def outcome(data: bytes) -> str:
    """What the crate and pyarrow make of a file; "differ" where it is not the same rows."""
    source = pa.BufferReader(data)
    try:
        parquet = ParquetColumns(source)
        flat = [field.name for field in parquet.schema if not pa.types.is_nested(field.type)]
        RowGroups(parquet, source).check(None, flat)
        parquet.find_bounds(range(len(parquet.footer.leaves)))  # whose damage must end nothing
    except (CorruptLog, *UNREADABLE):
        return "the footer is refused before"
    by_crate = None
    if parquet.skips_rows:
        by_crate = _rows(parquet, partial(parquet._read_native_rows, first=0, threads=True))
    # Old timestamps are compared here, also those that are refused without the crate.
    parquet.footer = replace(parquet.footer, old_timestamps=frozenset())
    by_pyarrow = _rows(parquet, partial(parquet._read_pyarrow_rows, threads=False))
    if by_crate is None:
        return "both refuse" if by_pyarrow is None else "the crate alone refuses"
    if by_pyarrow is None:
        if repr(by_crate.to_pylist()) == _rows_of_duckdb(data):
            return "pyarrow alone refuses"
        return "the crate takes what pyarrow refuses"
    pairs = zip(by_crate.columns, by_pyarrow.columns, strict=True)
    return "equal" if all(_is_equal(*pair) for pair in pairs) else "the rows differ"


def _rows_of_duckdb(data: bytes) -> str:
    """What a third reader makes of a file: it passes over damaged statistics, as the crate does."""
    with NamedTemporaryFile(suffix=".parquet") as file:
        file.write(data)
        file.flush()
        with duckdb.connect() as connection, suppress(duckdb.Error):
            rows = connection.read_parquet(file.name).to_arrow_table()
            return repr(rows.to_pylist())
    return ""


def _is_equal(one: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    """Whether two columns have the same values. NaN is NaN. In an INT96, Spark and the crate take
    the day and its nanoseconds for signed, and pyarrow for unsigned."""
    if one.equals(other):
        return True
    if pa.types.is_timestamp(one.type):
        pairs = zip(one.cast("int64").to_pylist(), other.cast("int64").to_pylist(), strict=True)
        return all(ours == theirs or _is_unsigned(theirs - ours) for ours, theirs in pairs)
    return repr(one.to_pylist()) == repr(other.to_pylist())


def _is_unsigned(difference: int) -> bool:
    """Whether two numbers of microseconds differ by 2**64 nanoseconds, by 2**32 days, or both."""
    day, nanoseconds = 2**32 * 86_400_000_000, 2**64 // 1000
    found = (difference - more for more in (day, nanoseconds, day + nanoseconds))
    return any(left % 2**64 in {0, 1, 2**64 - 1} for left in found)


def _rows(
    parquet: ParquetColumns, decode: Callable[[int, int, list[str]], Iterator[pa.RecordBatch]]
) -> pa.Table | None:
    schema, batches = parquet.schema, []
    try:
        for group in range(parquet.num_row_groups):
            found = list(decode(1000, group, schema.names))
            if sum(b.num_rows for b in found) != parquet.groups[group].rows:
                return None
            batches += found
        table = pa.Table.from_batches(batches, None if batches else schema)
        table.validate(full=True)
    except UNREADABLE:
        return None
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.support.parquet_fuzz")
    parser.add_argument("files", nargs="?", type=int, default=2000)
    parser.add_argument("seed", nargs="?", type=int, default=random.randrange(2**32))
    arguments = parser.parse_args()
    dice, whole = random.Random(arguments.seed), whole_files()
    counts: collections.Counter[str] = collections.Counter()
    for number in range(arguments.files):
        one = dice.choice(whole)
        found = outcome(damaged(dice, one))
        counts[found] += 1
        if found in WRONG:
            print(f"seed {arguments.seed}: file {number}: {found}", flush=True)
    print("; ".join(f"{found}: {count}" for found, count in counts.most_common()))


if __name__ == "__main__":
    main()
