"""Decodes damaged Parquet files by the crate, with pyarrow as the judge.

    python -m tests.support.parquet_fuzz [FILES] [SEED]

Prints how many files each of the two refused. Where both decode a file, the rows must be equal, and
nothing may end the process.
"""

from __future__ import annotations

import argparse
import collections
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tailer.delta.damaged_bytes import UNREADABLE
from tailer.delta.parquet_columns import ParquetColumns
from tailer.delta.row_groups import RowGroups
from tailer.errors import CorruptLog

__all__ = ["damaged", "outcome", "whole_files"]

END = 8  # the length of a footer, and the magic bytes
ROWS = 3000
WAYS: tuple[dict[str, Any], ...] = (
    {"compression": "none"},
    {"data_page_size": 64, "row_group_size": 1000},
    {"use_dictionary": False, "data_page_version": "2.0"},
    {"compression": "zstd", "write_page_checksum": True},
    {"compression": "gzip", "use_deprecated_int96_timestamps": True},
    {"compression": "lz4", "store_decimal_as_integer": True},
    {"compression": "brotli", "use_dictionary": False},
)


def whole_files() -> list[bytes]:
    """Files of all codecs and kinds of pages."""
    rows = pa.table({
        "id": range(ROWS),
        "text": ["a", None, "a longer one"] * (ROWS // 3),
        "x": [0.5, None] * (ROWS // 2),
        "flag": [True, None, False] * (ROWS // 3),
        "amount": [Decimal(n) / 4 for n in range(ROWS)],
        "at": pa.array(range(ROWS), pa.timestamp("us")),
        "tags": [["x", None], [], None] * (ROWS // 3),
        "place": [{"x": 1.5, "y": [1]}, None] * (ROWS // 2),
    })  # fmt: skip
    files = []
    for options in WAYS:
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, **options)
        files.append(bytes(sink.getvalue()))
    return files


def damaged(dice: random.Random, whole: bytes) -> bytes:
    """A file with other bytes in its footer or its pages, cut, or with a wrong length of footer."""
    data = bytearray(whole)
    length = int.from_bytes(data[-END:-4], "little")
    first = len(data) - END - length
    for _ in range(dice.choice([0, 1, 1, 2, 5])):
        start = dice.choice([first, 0, 0, len(data) - END - 16])
        at = dice.randrange(max(0, start), len(data))
        data[at] = dice.choice([0, 0x19, 0x7F, 0x80, 0xFF, data[at] ^ 1 << dice.randrange(8)])
    match dice.randrange(16):
        case 0:
            return bytes(data[: dice.randrange(len(data) + 1)])
        case 1:
            size = dice.choice([0, length - 1, length + 1, len(data), 2**32 - 1])
            data[-END:-4] = size.to_bytes(4, "little")
        case 2:  # ten bytes of a number, and more
            at = dice.randrange(first, len(data) - END)
            data[at:at] = b"\xff" * dice.randrange(1, 12)
    return bytes(data)


def outcome(data: bytes) -> str:
    """What the crate and pyarrow make of a file; "differ" where it is not the same rows."""
    source = pa.BufferReader(data)
    try:
        parquet = ParquetColumns(source)
        flat = [field.name for field in parquet.schema if not pa.types.is_nested(field.type)]
        RowGroups(parquet, source).check(None, flat)
    except (CorruptLog, *UNREADABLE):
        return "the footer is refused before"
    by_crate = None
    if parquet.skips_rows:
        by_crate = _rows(parquet, partial(parquet._native_rows, first=0, threads=True))
    by_pyarrow = _rows(parquet, partial(parquet._pyarrow_rows, threads=False))
    if by_crate is None:
        return "both refuse" if by_pyarrow is None else "the crate alone refuses"
    if by_pyarrow is None:
        return "pyarrow alone refuses"
    return "equal" if by_crate.equals(by_pyarrow) else "differ"


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
        if found == "differ":
            print(f"seed {arguments.seed}: file {number} differs", flush=True)
    print("; ".join(f"{found}: {count}" for found, count in counts.most_common()))


if __name__ == "__main__":
    main()
