"""Row tracking: stable row ids and row commit versions, without reading any other column.

"Reader Requirements for Row Tracking": the materialised value where the file has one, else the
base row id plus the position, and the file's default row commit version.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tailer.changes import ChangeFile
from tailer.decode.rows import UNREADABLE, unreadable
from tailer.decode.vectors import RowSelection
from tailer.delta.snapshot import TableState
from tailer.errors import CorruptLog

__all__ = ["TRACKED", "has_row_ids", "tracked_rows"]

#: The columns that :func:`tracked_rows` gives.
TRACKED = pa.schema(
    [("position", pa.int64()), ("row_id", pa.int64()), ("row_commit_version", pa.int64())]
)

_ID = "delta.rowTracking.materializedRowIdColumnName"
_COMMIT_VERSION = "delta.rowTracking.materializedRowCommitVersionColumnName"
_BATCH_ROWS = 131_072


def has_row_ids(file: ChangeFile) -> bool:
    """Whether the log gives what the default row ids and commit versions are made from."""
    return file.base_row_id is not None and file.default_row_commit_version is not None


def tracked_rows(
    source: pa.NativeFile, file: ChangeFile, selection: RowSelection
) -> Iterator[pa.RecordBatch]:
    """Position, stable row id and stable row commit version of a file's selected rows."""
    if file.base_row_id is None or file.default_row_commit_version is None:
        raise CorruptLog("the file has no base row id", version=file.version, path=file.path)
    names = [_materialised(file.state, key) for key in (_ID, _COMMIT_VERSION)]
    try:
        yield from _tracked(source, file, selection, names)
    except UNREADABLE as e:
        raise unreadable(file, e) from None


def _tracked(
    source: pa.NativeFile, file: ChangeFile, selection: RowSelection, names: list[str | None]
) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(source, page_checksum_verification=True) as parquet:
        present = [n for n in names if n is not None and n in parquet.schema_arrow.names]
        for first, columns, count in _column_batches(parquet, present):
            positions = pa.arange(first, first + count)
            defaults = (
                pc.add(positions, pa.scalar(file.base_row_id, pa.int64())),
                pa.repeat(pa.scalar(file.default_row_commit_version, pa.int64()), count),
            )
            values = [
                pc.coalesce(columns[name].cast(pa.int64()), default) if name in columns else default
                for name, default in zip(names, defaults, strict=True)
            ]
            batch = pa.RecordBatch.from_arrays([positions, *values], schema=TRACKED)
            indices = selection.indices(first, first + count)
            yield batch if indices is None else batch.take(indices)


def _materialised(state: TableState, key: str) -> str | None:
    return state.metadata.configuration.get(key)


def _column_batches(
    parquet: pq.ParquetFile, names: list[str]
) -> Iterator[tuple[int, dict[str | None, pa.Array], int]]:
    """First position, columns by name and row count of each batch."""
    first = 0
    if not names:
        for at in range(0, parquet.metadata.num_rows, _BATCH_ROWS):
            yield at, {}, min(_BATCH_ROWS, parquet.metadata.num_rows - at)
        return
    for batch in parquet.iter_batches(batch_size=_BATCH_ROWS, columns=names):
        found: dict[str | None, pa.Array] = {n: batch.column(n) for n in batch.schema.names}
        yield first, found, batch.num_rows
        first += batch.num_rows
