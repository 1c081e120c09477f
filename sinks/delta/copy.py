"""Reading a copy in a Delta table back: the rows near some keys, and all rows.

Only the log's statistics say which files may have a key, and only for types of which these
are exact: deltalake writes decimals as floating-point numbers, which may leave the value out, and
cuts timestamps to milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from sinks.formats.json import variant_text
from sinks.shared.history import HistoryNames
from tailer.changes import Offset, is_arrow_variant


def find_keys(
    table: DeltaTable, schema: pa.Schema, asked: pa.Table, where: pc.Expression | None = None
) -> pa.Table:
    """Return those of the asked keys that the table has, each as often as it is there, and maybe
    some that have only their first column in common with one of them. ``schema`` has the key's
    columns as the table has them, and those of ``where``, which its rows have to meet. Memory is
    for what is returned and some batches."""
    key = asked.column_names
    # Of the other columns the package would make an expression for each file's statistics.
    dataset = table.to_pyarrow_dataset(schema=schema)
    near = _find_bounds(asked, key)
    files = list(dataset.get_fragments() if near is None else dataset.get_fragments(filter=near))
    chosen = ds.FileSystemDataset(files, schema, dataset.format, dataset.filesystem)
    wanted, types = pc.unique(asked[key[0]]), asked.select(key).schema
    found = []
    for batch in chosen.scanner(columns=key, filter=where).to_batches():
        keys = _cast_columns(batch, types)
        keys = keys.filter(pc.is_in(keys.column(0), value_set=wanted))
        if keys.num_rows:
            found.append(keys)
    return pa.Table.from_batches(found, schema=types)


def _find_bounds(asked: pa.Table, key: Sequence[str]) -> pc.Expression | None:
    """Return the bounds of the asked keys in the first column whose statistics are exact."""
    for name in key:
        if _has_exact_bounds(asked.schema.field(name).type):
            bounds = pc.min_max(asked[name].combine_chunks())
            return (pc.field(name) >= bounds["min"]) & (pc.field(name) <= bounds["max"])
    return None


def _has_exact_bounds(data_type: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_integer(data_type) or types.is_date(data_type) or types.is_string(data_type)
    )


def _cast_columns(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [batch.column(field.name).cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class DeltaCopy:
    """See :class:`tailer.sink.MirrorCopy`."""

    def __init__(
        self,
        table: DeltaTable | None,
        offset: Offset | None,
        key: tuple[str, ...],
        history: HistoryNames | None = None,
    ) -> None:
        self.offset = offset
        self.key = key
        self.at: int | None = None
        self._table = table
        self._history = history

    def as_held(self, column: pa.Array) -> pa.Array:
        return variant_text(column) if is_arrow_variant(column.type) else column

    def rows(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        held = [self.as_held(pa.array([], field.type)).type for field in schema]
        types = pa.schema(list(zip(schema.names, held, strict=True)))
        if self._table is not None:
            dataset = self._table.to_pyarrow_dataset()
            where = None if self._history is None else _is_valid(self._history, self.at)
            for batch in dataset.scanner(columns=schema.names, filter=where).to_batches():
                yield _cast_columns(batch, types)


def _is_valid(names: HistoryNames, version: int | None) -> pc.Expression:
    """Return the condition that a history's row is of a version; None is the newest."""
    first, last = pc.field(names.from_version), pc.field(names.to_version)
    if version is None:
        return last.is_null()
    return (first <= version) & (last.is_null() | (last > version))
