"""Opening a data file, and checks of what pyarrow decodes from it."""

from __future__ import annotations

import pyarrow as pa

from tailer.changes import CHANGE_TYPE, ChangeFile
from tailer.decode.options import DecodeOptions
from tailer.delta.parquet_columns import ParquetColumns
from tailer.errors import CorruptLog, CorruptRow

#: A file up to this size is read without buffers of its columns.
SMALL_BYTES = 1024 * 1024
_BUFFER_BYTES = 256 * 1024


def open_parquet(source: pa.NativeFile, file: ChangeFile, options: DecodeOptions) -> ParquetColumns:
    """Open the Parquet file, to be read a buffer at a time: memory for whole column chunks would
    be bounded only by the writer's row group size."""
    large = source.size() > SMALL_BYTES
    try:
        return ParquetColumns(
            source,
            buffer_bytes=_BUFFER_BYTES if large else 0,
            checksums=options.page_checksums,
            # Four values, repeated millions of times.
            dictionaries=[CHANGE_TYPE] if file.change_type is None else (),
        )
    except KeyError:
        raise CorruptRow(f"the cdc file has no column {CHANGE_TYPE}") from None


def check_nested(batch: pa.RecordBatch) -> None:
    """Check nested columns. Raises :class:`CorruptLog` or a :class:`pyarrow.ArrowException`."""
    for column in batch.columns:
        if pa.types.is_nested(column.type):
            column.validate()
            _check_maps(column)


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
