"""Many small files of one form, decoded in one step.

Opening a file by pyarrow costs several times as much as decoding a hundred rows. So the crate in
``native/`` decodes many of them in one call, on all cores. Only files come together whose footers
are equal but for their row groups. If anything is wrong, the files are decoded one by one
(:mod:`tailer.decode.rows`), which finds the file at fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Generic, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from tailer.changes import METADATA_FIELDS, ChangeFile, DecodedRows
from tailer.decode.constants import repeat_kind, repeat_value
from tailer.decode.file_opening import check_nested
from tailer.decode.options import SMALL_FILE_BYTES_MAX, DecodeOptions
from tailer.decode.output import FileLayout, FileLayouts, convert_columns
from tailer.decode.unreadable_files import UNREADABLE
from tailer.delta.parquet_columns import ParquetColumns
from tailer.errors import TableError
from tailer.native.parquet import native
from tailer.native.values import make_integers, make_texts

R = TypeVar("R", pa.RecordBatch, DecodedRows)


class DecodedTogether(NamedTuple, Generic[R]):
    """The number of rows of each file, and the rows of all of them."""

    counts: list[int]
    rows: R | None


class SmallFiles:
    """Decodes small files in one step, if they are alike and all of their rows are wanted."""

    def __init__(self, options: DecodeOptions, layouts: FileLayouts) -> None:
        self._options = options
        self._layouts = layouts
        self._growth = 1.0  # how much larger rows are when they are decoded

    def can_take(self, file: ChangeFile) -> bool:
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

    def decode_files(
        self, files: Sequence[ChangeFile], contents: Sequence[bytes]
    ) -> DecodedTogether[DecodedRows]:
        """Decode files, as many of the first ones as are alike and within the bounds of a batch.

        There is at least one. Without rows, these files have to be decoded one by one.
        """
        options = self._options
        alike = len(files)
        for at, file in enumerate(files):
            if not self._layouts.are_alike(files[0], file):
                alike = at
                break
        try:
            parquet = ParquetColumns(pa.BufferReader(contents[0]), checksums=options.page_checksums)
            layout = self._layouts.find_layout(parquet, files[0])
        except (TableError, *UNREADABLE):
            return DecodedTogether([0], None)
        if not layout.names:
            return DecodedTogether([0], None)
        counts, rows = self._decode_rows(layout.names, contents[:alike])
        logged = (file.num_records for file in files)
        if rows is None or any(n not in (None, c) for n, c in zip(logged, counts, strict=False)):
            return DecodedTogether(
                counts or [0], None
            )  # what contradicts the log is found by its own reading
        try:
            if not layout.plain:
                check_nested(rows)
            output = _build_output(layout, rows, files, counts)
        except (TableError, *UNREADABLE):
            return DecodedTogether(counts, None)
        if options.on_read is not None:
            options.on_read(sum(len(content) for content in contents[: len(counts)]))
        return DecodedTogether(counts, output)

    def _decode_rows(
        self, names: Sequence[str], contents: Sequence[bytes]
    ) -> DecodedTogether[pa.RecordBatch]:
        """Return the rows of each file, and all of them, as far as they are in one batch."""
        options = self._options
        stored_bytes_max = int(options.batch_bytes_max / self._growth)
        bounds = options.batch_rows_max, stored_bytes_max, options.batch_bytes_max
        counts, rows, is_outgrown = native.small_files(
            list(contents), list(names), bounds, pa.cpu_count()
        )
        self._growth *= 2 if is_outgrown else 1
        return DecodedTogether(counts, rows)


def _build_output(
    layout: FileLayout, batch: pa.RecordBatch, files: Sequence[ChangeFile], counts: list[int]
) -> DecodedRows:
    """Return the rows of the output: those of the first files, with these numbers of rows."""
    filled = [(file, count) for file, count in zip(files, counts, strict=False) if count]
    ends = list(accumulate(count for _, count in filled))
    kind, version, time = (field.type for field in METADATA_FIELDS)
    columns = [
        *convert_columns(layout.parts, batch, ends[-1]),
        _spread_values([file.change_type for file, _ in filled], ends, kind),
        _spread_values([file.version for file, _ in filled], ends, version),
        _spread_values([file.timestamp_ms * 1000 for file, _ in filled], ends, time),
    ]
    rows = pa.RecordBatch.from_arrays(columns, schema=layout.schema)
    begun = _spread_values([0, *ends[:-1]], ends, pa.int64())
    return DecodedRows(rows, pc.subtract(pa.arange(0, ends[-1]), begun))


def _spread_values(values: list[Any], ends: list[int], data_type: pa.DataType) -> pa.Array:
    """Return an array with the first value up to its end, then the next one."""
    is_text = pa.types.is_string(data_type)
    if all(value == values[0] for value in values):
        if is_text:
            return repeat_kind(values[0], ends[-1])
        return repeat_value(make_integers(values[:1], data_type)[0], ends[-1])
    each = make_texts(values) if is_text else make_integers(values, data_type)
    runs = pa.RunEndEncodedArray.from_buffers(  # from_arrays makes a scalar without a type
        pa.run_end_encoded(pa.int32(), data_type), ends[-1], [None],
        children=[make_integers(ends, pa.int32()), each],
    )  # fmt: skip
    return pc.run_end_decode(runs)
