"""Columns of a Parquet file, read without ``pyarrow.parquet``.

That module wraps the reader that is used here, and loads all of pyarrow's file systems besides,
those of S3 among them: this takes half as long as to load pyarrow. Once it loads them on demand, it
can replace this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

if TYPE_CHECKING:
    import pyarrow.parquet as pq

__all__ = ["ColumnPath", "ParquetColumns", "footer_bytes", "parse_footer"]

#: A column by its name, or a field of nested columns by its names.
ColumnPath: TypeAlias = "str | tuple[str, ...]"


class ParquetColumns:
    """An open Parquet file, whose pages are checked unless ``checksums`` is false.

    ``metadata`` replaces its own footer. It is read ``buffer_bytes`` at a time, 0: whole column
    chunks; with ``prefetch``, those of a row group are requested together. The values of the
    top-level columns in ``dictionaries`` come as dictionaries.

    Raises :class:`pyarrow.ArrowException` or OSError for a file that pyarrow refuses, KeyError if a
    column of ``dictionaries`` does not exist.
    """

    def __init__(
        self,
        source: pa.NativeFile,
        metadata: pq.FileMetaData | None = None,
        *,
        buffer_bytes: int = 0,
        prefetch: bool = False,
        dictionaries: Sequence[str] | None = None,
        checksums: bool = True,
    ) -> None:
        from pyarrow._parquet import ParquetReader  # on demand: many logs have no checkpoint

        self.dictionaries = frozenset(dictionaries or ())
        self.checksums = checksums
        self._reader = ParquetReader()
        self._reader.open(
            source,
            metadata=metadata,
            buffer_size=buffer_bytes,
            pre_buffer=prefetch,
            read_dictionary=dictionaries,
            coerce_int96_timestamp_unit="us",
            page_checksum_verification=checksums,
            arrow_extensions_enabled=True,
        )

    @cached_property
    def schema(self) -> pa.Schema:
        """The file's schema, as Arrow types."""
        return self._reader.schema_arrow

    @cached_property
    def metadata(self) -> pq.FileMetaData:
        """The file's footer."""
        return self._reader.metadata

    @property
    def num_rows(self) -> int:
        """The number of rows, by the footer."""
        return int(self.metadata.num_rows)

    @property
    def num_row_groups(self) -> int:
        """The number of row groups."""
        return int(self.metadata.num_row_groups)

    @cached_property
    def _leaves(self) -> dict[str, list[tuple[int, tuple[str, ...]]]]:
        """The number and path of each column that has values itself, by its top-level column."""
        found: dict[str, list[tuple[int, tuple[str, ...]]]] = {}
        for i, path in enumerate(self._reader.column_paths):
            found.setdefault(path[0], []).append((i, tuple(path)))
        return found

    def numbers(self, columns: Iterable[ColumnPath]) -> list[int]:
        """Return the numbers, in the footer, of these columns and of all fields below them."""
        paths = ((column,) if isinstance(column, str) else column for column in columns)
        return [
            i
            for path in paths
            for i, leaf in self._leaves.get(path[0], ())
            if leaf[: len(path)] == path
        ]

    def batches(
        self,
        rows_max: int,
        groups: Sequence[int],
        columns: Sequence[ColumnPath],
        *,
        threads: bool,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some row groups, of these columns with all fields below them."""
        yield from self._reader.iter_batches(
            rows_max,
            row_groups=groups,
            column_indices=self.numbers(columns),
            use_threads=threads,
        )


def footer_bytes(source: pa.NativeFile, bytes_max: int) -> bytes | None:
    """Return a file's footer, the Thrift struct alone; None if it is longer or has no such size."""
    end = max(0, int(source.size()) - 8)
    size = int.from_bytes(source.read_at(4, end), "little")
    return bytes(source.read_at(size, end - size)) if 0 < size <= min(end, bytes_max) else None


def parse_footer(file: bytes) -> pq.FileMetaData:
    """Return the parsed footer of a file that has no more than that."""
    return ParquetColumns(pa.BufferReader(file)).metadata
