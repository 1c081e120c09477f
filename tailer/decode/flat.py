"""Flat columns of large data files, decoded without pyarrow's decoder (:mod:`tailer.decode.pages`).

pyarrow needs more than twice the processor time for the same arrays. It stays the judge. Columns of
other types, encodings or codecs are its own, and where anything is not as expected here, it decodes
the row group from that row on: so what is damaged is found and named by pyarrow alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pyarrow as pa

from tailer.decode.damage import UNREADABLE
from tailer.decode.pages import (
    CODE,
    CODECS,
    COPY4,
    COPY8,
    DECIMAL4,
    DECIMAL8,
    DECIMAL_FIXED,
    ENCODINGS,
    LENGTHS,
    TEXT,
    Column,
    Flat,
    Odd,
    run,
)
from tailer.delta.bounded import BoundedColumns, halved
from tailer.delta.parquet_columns import ParquetColumns

__all__ = ["FlatColumns"]

#: So few rows of a group are not worth the set-up.
_ROWS_MIN = 4096
#: A kind of change, whose texts are few.
_CODED_BYTES = 16
#: What is read of a column at once: as much as fits all columns' share, within these.
_BUFFERS_BYTES = 8 * 1024 * 1024
_BUFFER_BYTES, _BUFFER_BYTES_MAX = 256 * 1024, 512 * 1024


class FlatColumns:
    """Decodes row groups of an open file: its flat columns here, all others by pyarrow."""

    def __init__(
        self,
        source: pa.NativeFile,
        others: BoundedColumns,
        names: Sequence[str],
        varying: Collection[str],
    ) -> None:
        self._parquet = others.parquet
        self._source = source
        self._others = others
        self._names = list(names)
        self._varying = frozenset(varying)
        self._flat = _flat_columns(self._parquet, names)
        self._opened: tuple[int, dict[str, Column]] | None = None

    def text_bytes(self, group: int, names: Sequence[str], rows: int) -> dict[str, int]:
        """Return the bytes of these columns' texts, on the average of the first ``rows``; of those
        columns that are decoded here."""
        columns = {n: c for n, c in self._columns(group).items() if n in names}
        measured = {n: c for n, c in columns.items() if c.is_text}
        try:
            for column in measured.values():
                column.measure(rows)
            run(list(measured.values()))
        except (Odd, *UNREADABLE):
            self._flat, self._opened = {}, None
            return {}
        coded = dict.fromkeys(columns.keys() - measured.keys(), _CODED_BYTES)
        return coded | {name: column.text_bytes() for name, column in measured.items()}

    def batches(self, rows_max: int, group: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a row group as :meth:`BoundedColumns.batches` does."""
        done = 0
        rows = int(self._parquet.metadata.row_group(group).num_rows)
        columns, self._opened = self._columns(group), None
        if columns:
            try:
                for batch in self._batches(columns, rows_max, group, rows):
                    done += batch.num_rows
                    yield batch
            except (Odd, *UNREADABLE):
                self._flat = {}  # pyarrow finds out whether it is damage
            else:
                return
        for batch in self._by_pyarrow(rows_max, group, self._names):
            passed = min(done, batch.num_rows)
            done -= passed
            if passed < batch.num_rows:
                yield batch.slice(passed)

    def _columns(self, group: int) -> dict[str, Column]:
        """Return the columns of a row group that are decoded here, at their beginning."""
        if self._opened is None or self._opened[0] != group:
            self._opened = group, self._begun(group)
        return self._opened[1]

    def _begun(self, group: int) -> dict[str, Column]:
        said = self._others.row_groups[group]
        if said is None or said.rows < _ROWS_MIN:
            return {}
        found = {}
        for name, flat in self._flat.items():
            chunk = said.chunk(flat.number)
            if chunk is None or chunk.codec not in CODECS or chunk.encodings & ~ENCODINGS:
                continue
            if (chunk.physical, chunk.values) == (flat.physical, said.rows):
                found[name] = Column(
                    self._source,
                    flat,
                    chunk,
                    _buffer_bytes(len(self._flat)),
                    checksums=self._parquet.checksums,
                )
        return found

    def _batches(
        self,
        columns: dict[str, Column],
        rows_max: int,
        group: int,
        rows: int,
    ) -> Iterator[pa.RecordBatch]:
        others = [name for name in self._names if name not in columns]
        given = self._by_pyarrow(rows_max, group, others) if others else iter(())
        texts = sum(column.is_text for column in columns.values())
        room = self._others.bytes_max // max(1, texts)
        there: dict[str, pa.Array] = {}  # what was decoded, and is not in a batch yet
        at = 0
        while at < rows:
            count = min(rows_max, rows - at)
            fresh = {name: c for name, c in columns.items() if name not in there}
            for column in fresh.values():
                column.begin(count, room)
            run(list(fresh.values()))
            there |= {name: column.array() for name, column in fresh.items()}
            if others and others[0] not in there:
                other = next(given, None)
                if other is None or not 0 < other.num_rows <= count:
                    raise Odd
                there |= {name: other.column(name) for name in others}
            # Of texts that grow there are fewer rows than were asked for.
            count = min(len(array) for array in there.values())
            arrays = [there[name].slice(0, count) for name in self._names]
            there = {n: array.slice(count) for n, array in there.items() if len(array) > count}
            at += count
            batch = pa.RecordBatch.from_arrays(arrays, names=self._names)
            yield from halved(batch, self._others.bytes_max)

    def _by_pyarrow(
        self, rows_max: int, group: int, names: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        varying = [name for name in names if name in self._varying]
        threads = len(names) > 1
        return self._others.batches(rows_max, group, names, varying=varying, threads=threads)


def _buffer_bytes(columns: int) -> int:
    """Return how much is read of each of so many columns at once."""
    return min(_BUFFER_BYTES_MAX, max(_BUFFER_BYTES, _BUFFERS_BYTES // columns))


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
        form = CODE if name in parquet.dictionaries else _form(leaf, data_type)
        if form is not None:
            length = leaf.length if form == DECIMAL_FIXED else LENGTHS.get(form, 1)
            is_nullable = leaf.max_definition_level == 1
            physical = _PHYSICAL.get(leaf.physical_type, -1)
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
