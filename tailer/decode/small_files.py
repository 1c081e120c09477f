"""Many small files of one form, decoded in one step.

Opening a file and each of its columns costs several times as much as decoding a hundred rows. So
the files are merged to one Parquet file in memory, whose row groups they are (``_footers.c``). Only
files are merged whose footers are equal but for their row groups. If anything is wrong, the files
are decoded one by one (:mod:`tailer.decode.rows`), which finds the file at fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tailer.changes import METADATA_FIELDS, ChangeFile, Rows
from tailer.decode.damage import UNREADABLE
from tailer.decode.options import SMALL_FILE_BYTES_MAX, DecodeOptions
from tailer.decode.output import Shape, Shapes, converted
from tailer.delta.bounded import SAMPLE_ROWS
from tailer.delta.parquet_columns import ParquetColumns
from tailer.errors import TableError
from tailer.native.compiled import loaded

__all__ = ["SmallFiles", "native"]

#: The version of ``_footers.c`` that this file needs.
_INTERFACE = 1

native: Any = loaded("_footers", _INTERFACE)

#: Of row groups up to this size, some rows may be decoded although each may be as large.
_LARGEST_BYTES = 512 * 1024


class SmallFiles:
    """Decodes small files in one step, if they are alike and all of their rows are wanted."""

    def __init__(self, options: DecodeOptions, shapes: Shapes) -> None:
        self._options = options
        self._shapes = shapes
        self._growth = 1.0  # how much larger rows are when they are decoded

    def takes(self, file: ChangeFile) -> bool:
        """Return whether a file may be decoded together with others like it."""
        return (
            native is not None
            and file.change_type is not None
            and file.size is not None
            and file.size <= SMALL_FILE_BYTES_MAX
            and file.only is None
            and file.without is None
            and file.rows is None
            and file.kept is None
            and not self._options.row_ids
        )

    def rows(
        self, files: Sequence[ChangeFile], contents: Sequence[pa.Buffer]
    ) -> tuple[list[int], Rows | None]:
        """Decode files, as many of the first ones as are alike and within the bounds of a batch.

        Return the number of rows of each of them, and all their rows. Without rows, these files
        have to be decoded one by one; it is at least one.
        """
        options = self._options
        alike = len(files)
        for at, file in enumerate(files):
            if not self._shapes.alike(files[0], file):
                alike = at
                break
        bytes_max = int(options.batch_bytes_max / self._growth)
        data, counts, largest = native.merge(
            list(contents[:alike]), options.batch_rows_max, bytes_max
        )
        logged = (file.num_records for file in files)
        if len(counts) < 2 or any(n not in (None, c) for n, c in zip(logged, counts, strict=False)):
            return counts or [0], None  # what contradicts the log is found by its own reading
        try:
            rows = self._decoded(files, counts, data, largest)
        except (TableError, *UNREADABLE):
            return counts, None
        if rows is not None and options.on_read is not None:
            options.on_read(sum(content.size for content in contents[: len(counts)]))
        return counts, rows

    def _decoded(
        self, files: Sequence[ChangeFile], counts: list[int], data: bytes, largest: int
    ) -> Rows | None:
        """Return the rows of a merged file; None if they are too large for one batch, or not as
        many as the footers say."""
        options = self._options
        parquet = ParquetColumns(pa.BufferReader(data), checksums=options.page_checksums)
        shape = self._shapes.of(parquet, files[0])
        if not shape.plain or not shape.names:
            return None  # how many rows a nested column has, only its values say
        # With a dictionary, each row may have a value that is as large as its row group.
        size = min(options.batch_rows_max, options.batch_bytes_max // max(1, largest))
        size = max(size, SAMPLE_ROWS if largest <= _LARGEST_BYTES else 1)
        groups = range(parquet.num_row_groups)
        batches, held = [], 0
        for batch in parquet.batches(size, groups, shape.names, threads=False):
            batches.append(batch)
            held += int(batch.nbytes)
            if held > options.batch_bytes_max:
                self._growth *= 2
                return None
        if not batches or sum(b.num_rows for b in batches) != sum(counts):
            return None
        return _output(shape, pa.concat_batches(batches), files, counts)


def _output(
    shape: Shape, batch: pa.RecordBatch, files: Sequence[ChangeFile], counts: list[int]
) -> Rows:
    """Return the rows of the output: those of the first files, with these numbers of rows."""
    filled = [(file, count) for file, count in zip(files, counts, strict=False) if count]
    ends = list(accumulate(count for _, count in filled))
    kind, version, time = (field.type for field in METADATA_FIELDS)
    columns = [
        *converted(shape.parts, batch, ends[-1]),
        _spread([file.change_type for file, _ in filled], ends, kind),
        _spread([file.version for file, _ in filled], ends, version),
        _spread([file.timestamp_ms * 1000 for file, _ in filled], ends, time),
    ]
    rows = pa.RecordBatch.from_arrays(columns, schema=shape.schema)
    begun = _spread([0, *ends[:-1]], ends, pa.int64())
    return Rows(rows, pc.subtract(pa.arange(0, ends[-1]), begun))


def _spread(values: list[Any], ends: list[int], data_type: pa.DataType) -> pa.Array:
    """Return an array with the first value up to its end, then the next one."""
    if all(value == values[0] for value in values):
        return pa.repeat(pa.scalar(values[0], data_type), ends[-1])
    runs = pa.RunEndEncodedArray.from_arrays(
        pa.array(ends, pa.int32()), pa.array(values, data_type)
    )
    return pc.run_end_decode(runs)
