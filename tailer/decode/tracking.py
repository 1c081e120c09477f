"""Row tracking: stable row ids and row commit versions, without reading any other column.

"Reader Requirements for Row Tracking": the materialised value where the file has one, else the
base row id plus the position, and the file's default row commit version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tailer.changes import ChangeFile
from tailer.decode.unreadable_files import UNREADABLE, make_unreadable_error
from tailer.decode.vectors import RowSelection
from tailer.delta.features import row_tracking_enabled
from tailer.delta.parquet_columns import ParquetColumns
from tailer.delta.row_groups import RowGroups
from tailer.errors import CorruptLog

#: Called with the number of bytes read, from worker threads.
OnRead = Callable[[int], None]

#: The columns that :func:`read_tracked_rows` gives.
TRACKED = pa.schema(
    [("position", pa.int64()), ("row_id", pa.int64()), ("row_commit_version", pa.int64())]
)

_ID = "delta.rowTracking.materializedRowIdColumnName"
_COMMIT_VERSION = "delta.rowTracking.materializedRowCommitVersionColumnName"
_BATCH_ROWS = 131_072


def has_known_row_ids(file: ChangeFile) -> bool:
    """Return whether the stable ids of a file's rows are known: tracking was enabled when its
    version was written, and it is not a cdc file, whose rows store no ids."""
    if file.change_type is None or file.base_row_id is None:
        return False
    return row_tracking_enabled(file.state.protocol, file.state.metadata)


def find_row_id_column(file: ChangeFile, in_file: Sequence[str]) -> str | None:
    """Return the column that holds the materialised row ids, if the file has it."""
    name = file.state.metadata.configuration.get(_ID)
    return name if name in in_file else None


def build_row_ids(
    file: ChangeFile, positions: pa.Int64Array, materialised: pa.Array | None
) -> pa.Int64Array:
    """Return stable row ids: the materialised one, else the file's base and the position."""
    default = pc.add(positions, pa.scalar(file.base_row_id, pa.int64()))
    return default if materialised is None else pc.coalesce(materialised.cast(pa.int64()), default)


def read_tracked_rows(
    source: pa.NativeFile,
    file: ChangeFile,
    selection: RowSelection,
    on_read: OnRead | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield position, stable row id and stable row commit version of a file's selected rows.

    ``on_read`` is called with the number of bytes read.
    """
    if file.base_row_id is None or file.default_row_commit_version is None:
        raise CorruptLog("the file has no base row id", version=file.version, path=file.path)
    try:
        yield from _read_tracked(source, file, selection, on_read)
    except UNREADABLE as e:
        raise make_unreadable_error(file, e) from None


def _read_tracked(
    source: pa.NativeFile, file: ChangeFile, selection: RowSelection, on_read: OnRead | None
) -> Iterator[pa.RecordBatch]:
    parquet = ParquetColumns(source)
    row_groups = RowGroups(parquet, source)
    of_ids = find_row_id_column(file, parquet.schema.names)
    of_versions = file.state.metadata.configuration.get(_COMMIT_VERSION)
    present = [n for n in (of_ids, of_versions) if n is not None and n in parquet.schema.names]
    row_groups.check(file.num_records, present)
    row_groups.announce(present, range(parquet.num_row_groups))
    for first, columns, count in _read_column_batches(parquet, present):
        positions = pa.arange(first, first + count)
        versions = pa.repeat(pa.scalar(file.default_row_commit_version, pa.int64()), count)
        if of_versions in columns:
            versions = pc.coalesce(columns[of_versions].cast(pa.int64()), versions)
        ids = build_row_ids(file, positions, columns.get(of_ids))
        batch = pa.RecordBatch.from_arrays([positions, ids, versions], schema=TRACKED)
        indices = selection.find_indices(first, first + count)
        yield batch if indices is None else batch.take(indices)
    if on_read is not None:
        groups = range(parquet.num_row_groups)
        on_read(parquet.footer.size)
        on_read(sum(row_groups.count_bytes(group, present) for group in groups))


def _read_column_batches(
    parquet: ParquetColumns, names: list[str]
) -> Iterator[tuple[int, dict[str | None, pa.Array], int]]:
    """Yield first position, columns by name and row count of each batch."""
    first = 0
    if not names:
        for at in range(0, parquet.num_rows, _BATCH_ROWS):
            yield at, {}, min(_BATCH_ROWS, parquet.num_rows - at)
        return
    groups = range(parquet.num_row_groups)
    for batch in parquet.read_batches(_BATCH_ROWS, groups, names, threads=True):
        found: dict[str | None, pa.Array] = {n: batch.column(n) for n in batch.schema.names}
        yield first, found, batch.num_rows
        first += batch.num_rows
