"""Columns of a Parquet file, read without ``pyarrow.parquet``.

That module wraps the reader that is used here, and loads all of pyarrow's file systems besides,
those of S3 among them: this takes as long as to load pyarrow, and a quarter of its memory. Once it
loads them on demand, it can replace this one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

__all__ = ["ParquetColumns", "parse_footer"]


class ParquetColumns:
    """An open Parquet file, whose pages are checked. ``metadata`` replaces its own footer.

    Raises :class:`pyarrow.ArrowException` or OSError for a file that pyarrow refuses.
    """

    def __init__(self, source: pa.NativeFile, metadata: Any = None) -> None:
        from pyarrow._parquet import ParquetReader  # on demand: many logs have no checkpoint

        self._reader = ParquetReader()
        how = {"page_checksum_verification": True, "arrow_extensions_enabled": True}
        self._reader.open(source, metadata=metadata, **how)

    @property
    def schema(self) -> pa.Schema:
        """The file's schema, as Arrow types."""
        return self._reader.schema_arrow

    @property
    def metadata(self) -> Any:
        """The file's footer."""
        return self._reader.metadata

    @property
    def num_row_groups(self) -> int:
        """The number of row groups."""
        return int(self._reader.num_row_groups)

    def batches(
        self, rows_max: int, groups: Sequence[int], columns: Sequence[str], *, threads: bool
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some row groups. A column is its path with dots, and includes the
        columns below it."""
        paths = [".".join(path) + "." for path in self._reader.column_paths]
        indices = [i for c in columns for i, path in enumerate(paths) if path.startswith(f"{c}.")]
        yield from self._reader.iter_batches(
            rows_max, row_groups=groups, column_indices=indices, use_threads=threads
        )


def parse_footer(file: bytes) -> Any:
    """Return the parsed footer of a file that has no more than that."""
    return ParquetColumns(pa.BufferReader(file)).metadata
