"""Flat columns of large data files, decoded without pyarrow's decoder (:mod:`tailer.decode.pages`).

pyarrow needs half as much processor time again for the same arrays: for decimals twice as much, for
texts that repeat five times. It stays the judge. Columns of other types, encodings or codecs are
its own, and where anything is not as expected here, it decodes the row group from that row on: so
what is damaged is found and named by pyarrow alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import Any

import pyarrow as pa

from tailer.decode.damage import UNREADABLE
from tailer.decode.pages import (
    CODECS,
    COPY4,
    COPY8,
    DECIMAL4,
    DECIMAL8,
    DECIMAL_FIXED,
    ENCODINGS,
    LENGTHS,
    TEXT,
    Chunk,
    Column,
    Flat,
    Odd,
    native,
)
from tailer.delta.parquet_columns import ParquetColumns, footer_bytes

__all__ = ["FlatColumns"]

#: A longer footer takes too long to be read here.
_FOOTER_BYTES_MAX = 1024 * 1024
#: So few rows of a group are not worth the set-up.
_ROWS_MIN = 4096


class FlatColumns:
    """Decodes row groups of an open file: its flat columns here, all others by pyarrow."""

    def __init__(
        self, parquet: ParquetColumns, source: pa.NativeFile, names: Sequence[str]
    ) -> None:
        self._parquet = parquet
        self._source = source
        self._names = list(names)
        self._footer = footer_bytes(source, _FOOTER_BYTES_MAX)
        self._flat = _flat_columns(parquet, names) if self._footer is not None else {}

    def batches(self, rows_max: int, group: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a row group as :meth:`ParquetColumns.batches` does, with threads."""
        done = 0
        rows = int(self._parquet.metadata.row_group(group).num_rows)
        columns = self._columns(group, rows)
        if columns:
            try:
                for batch in self._batches(columns, rows_max, group, rows):
                    done += batch.num_rows
                    yield batch
            except (Odd, *UNREADABLE):
                self._flat = {}  # pyarrow finds out whether it is damage
            else:
                return
        for batch in self._parquet.batches(rows_max, [group], self._names, threads=True):
            passed = min(done, batch.num_rows)
            done -= passed
            if passed < batch.num_rows:
                yield batch.slice(passed)

    def _columns(self, group: int, rows: int) -> dict[str, Column]:
        """Return the columns of a row group that are decoded here."""
        if not self._flat or rows < _ROWS_MIN:
            return {}
        chunks = native.chunks(self._footer, group)
        if chunks is None or len(chunks) != self._parquet.metadata.num_columns:
            return {}
        found = {}
        for name, flat in self._flat.items():
            physical, codec, encodings, values, unpacked, start, size = chunks[flat.number]
            known = codec in CODECS and not encodings & ~ENCODINGS
            if known and (physical, values) == (flat.physical, rows):
                chunk = Chunk(self._source, start, start + size, CODECS[codec])
                found[name] = Column(chunk, flat, rows, unpacked)
        return found

    def _batches(
        self,
        columns: dict[str, Column],
        rows_max: int,
        group: int,
        rows: int,
    ) -> Iterator[pa.RecordBatch]:
        others = [name for name in self._names if name not in columns]
        given = self._parquet.batches(rows_max, [group], others, threads=True) if others else None
        halves = _halves(columns)
        for at in range(0, rows, rows_max):
            count = min(rows_max, rows - at)
            found = _taken(halves, count)
            arrays = {name: found[column.number] for name, column in columns.items()}
            if given is not None:
                other = next(given, None)
                if other is None or other.num_rows != count:
                    raise Odd
                arrays |= {name: other.column(name) for name in others}
            yield pa.RecordBatch.from_arrays(
                [arrays[name] for name in self._names], names=self._names
            )


def _halves(columns: dict[str, Column]) -> list[list[Column]]:
    """Return the columns in two lists that are about as much work."""
    halves: list[list[Column]] = [[], []]
    for column in sorted(columns.values(), key=lambda c: -c.work):
        min(halves, key=lambda half: sum(c.work for c in half)).append(column)
    return halves


def _taken(halves: list[list[Column]], count: int) -> dict[int, pa.Array]:
    """Decode the next rows of all columns; the second half in another thread, if one is idle."""

    def take(half: list[Column]) -> dict[int, pa.Array]:
        return {column.number: column.take(count) for column in half}

    if not halves[1]:
        return take(halves[0])
    second = _pool().submit(take, halves[1])
    try:
        found = take(halves[0])
    finally:
        if not second.cancel():
            wait([second])
    return found | (take(halves[1]) if second.cancelled() else second.result())


@cache
def _pool() -> ThreadPoolExecutor:
    """Return the threads that decode a part of the columns."""
    return ThreadPoolExecutor(os.cpu_count() or 1, "tailer-pages")


def _flat_columns(parquet: ParquetColumns, names: Sequence[str]) -> dict[str, Flat]:
    """Return those of these columns that may be decoded here."""
    schema = parquet.metadata.schema
    found = {}
    for name in names:
        numbers = parquet.numbers([(name,)])
        if len(numbers) != 1:
            continue
        leaf = schema.column(numbers[0])
        data_type = parquet.schema.field(name).type
        form = _form(leaf, data_type)
        if form is not None:
            length = leaf.length if form == DECIMAL_FIXED else LENGTHS.get(form, 1)
            is_nullable = leaf.max_definition_level == 1
            physical = _PHYSICAL[leaf.physical_type]
            found[name] = Flat(numbers[0], physical, form, length, is_nullable, data_type)
    return found


#: Numbers of parquet.thrift.
_PHYSICAL = {
    "INT32": 1, "INT64": 2, "FLOAT": 4, "DOUBLE": 5, "BYTE_ARRAY": 6, "FIXED_LEN_BYTE_ARRAY": 7,
}  # fmt: skip
_COPIED = {
    "INT32": (COPY4, (pa.int32(), pa.date32())),
    "INT64": (COPY8, (pa.int64(),)),
    "FLOAT": (COPY4, (pa.float32(),)),
    "DOUBLE": (COPY8, (pa.float64(),)),
    "BYTE_ARRAY": (TEXT, (pa.string(), pa.binary())),
}
_DECIMALS = {"INT32": DECIMAL4, "INT64": DECIMAL8, "FIXED_LEN_BYTE_ARRAY": DECIMAL_FIXED}


def _form(leaf: Any, data_type: pa.DataType) -> int | None:
    """Return the form of a column's values; None if pyarrow does more than to copy them."""
    types = pa.types
    if leaf.max_repetition_level or leaf.max_definition_level > 1 or types.is_nested(data_type):
        return None
    if types.is_decimal128(data_type):
        return _DECIMALS.get(leaf.physical_type)
    form, copied = _COPIED.get(leaf.physical_type, (None, ()))
    if data_type in copied:
        return form
    micros = types.is_timestamp(data_type) and data_type.unit == "us"
    return form if micros and leaf.physical_type == "INT64" else None
