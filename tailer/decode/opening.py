"""Opening a data file, and checks of what pyarrow decodes from it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pyarrow as pa

from tailer.changes import CHANGE_TYPE, ChangeFile
from tailer.decode.options import DecodeOptions
from tailer.delta.arrow_views import plain_type, without_views
from tailer.delta.parquet_columns import ParquetColumns, parse_footer
from tailer.errors import CorruptLog, CorruptRow

__all__ = ["SMALL_BYTES", "open_parquet", "usable"]

#: A file up to this size is read without buffers of its columns, and decoded by one thread.
SMALL_BYTES = 1024 * 1024
_BUFFER_BYTES = 256 * 1024


def open_parquet(source: pa.NativeFile, file: ChangeFile, options: DecodeOptions) -> ParquetColumns:
    """Open the Parquet file, to be read a buffer at a time: memory for whole column chunks would
    be bounded only by the writer's row group size."""
    large = source.size() > SMALL_BYTES
    opened = partial(
        ParquetColumns,
        source,
        buffer_bytes=_BUFFER_BYTES if large else 0,
        checksums=options.page_checksums,
        # Four values, repeated millions of times.
        dictionaries=[CHANGE_TYPE] if file.change_type is None else None,
    )
    try:
        parquet = opened()
        if large and any(plain_type(field.type) != field.type for field in parquet.schema):
            return opened(metadata=_without_arrow_types(source))
    except KeyError:
        raise CorruptRow(f"the cdc file has no column {CHANGE_TYPE}") from None
    return parquet


def _without_arrow_types(source: pa.NativeFile) -> Any:
    """Return the footer without the writer's Arrow types: pyarrow would decode strings to views, of
    which each value is then copied once more."""
    end = int(source.size()) - 8
    size = int.from_bytes(source.read_at(4, end), "little")
    footer = source.read_at(size + 8, end - size).replace(b"ARROW:schema", b"arrow:schema")
    return parse_footer(b"PAR1" + footer)


def usable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch without views, after its nested columns were checked."""
    for column in batch.columns:
        if pa.types.is_nested(column.type):
            column.validate()
            _check_maps(column)
    columns = [without_views(column) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _check_maps(array: pa.Array) -> None:
    """Check maps: damaged pages may give a map different numbers of keys and values, which pyarrow
    accepts."""
    types = pa.types
    if types.is_map(array.type):
        if len(array.keys) != len(array.items):
            raise CorruptLog("a map of the data file has a key without a value, or the reverse")
        _check_maps(array.items)
    elif types.is_list(array.type) or types.is_large_list(array.type):
        _check_maps(array.values)
    elif types.is_struct(array.type):
        for i in range(array.type.num_fields):
            _check_maps(array.field(i))
