"""Columns of a Parquet file, read by the crate in ``native/`` and by pyarrow.

pyarrow opens each file, and stays the judge: what the crate refuses, it decodes, or it says what is
wrong. It is used without ``pyarrow.parquet``, which wraps the same reader and loads all of its
file systems besides, those of S3 among them: this takes half as long as to load pyarrow. Once it
loads them on demand, it can replace this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from tailer.delta.arrow_views import plain_type, without_views
from tailer.delta.damaged_bytes import UNREADABLE
from tailer.errors import UnsupportedTable
from tailer.native.parquet import native

if TYPE_CHECKING:
    import pyarrow.parquet as pq

__all__ = ["ColumnPath", "ParquetColumns", "TooManyValues", "footer_bytes"]

#: A column by its name, or a field of nested columns by its names.
ColumnPath: TypeAlias = "str | tuple[str, ...]"

#: pyarrow's refusal of a file with a map whose keys are declared optional, as Flink, Hive, Athena
#: and Trino do. The crate reads it.
_OPTIONAL_KEYS = "Map keys must be annotated as required"
#: pyarrow takes up to 25 times the bytes of a footer, and 1.7 kB for each column.
_FOOTER_BYTES_MAX, _FOOTER_ITEMS_MAX = 64 * 1024 * 1024, 100_000
#: The crate's refusal of rows with too many values in lists.
_TOO_MANY = "the rows of a batch have too many values"
#: Each has a batch of its own columns in memory, and few files have enough columns for more.
_THREADS_MAX = 4


class TooManyValues(Exception):
    """Rows have so many values in lists that they can't be decoded at once; fewer rows may."""


class ParquetColumns:
    """An open Parquet file, whose pages are checked unless ``checksums`` is false.

    It is read ``buffer_bytes`` at a time, 0: whole column
    chunks; with ``prefetch``, those of a row group are requested together. The values of the
    top-level columns in ``dictionaries`` come as dictionaries.

    Raises :class:`pyarrow.ArrowException` or OSError for a file that pyarrow refuses, KeyError if a
    column of ``dictionaries`` does not exist, :class:`UnsupportedTable` for a footer that would
    take too much memory.
    """

    def __init__(
        self,
        source: pa.NativeFile,
        *,
        buffer_bytes: int = 0,
        prefetch: bool = False,
        dictionaries: Sequence[str] | None = None,
        checksums: bool = True,
    ) -> None:
        from pyarrow._parquet import ParquetReader  # on demand: many logs have no checkpoint

        self.dictionaries = frozenset(dictionaries or ())
        self._source = source
        self._is_native = not prefetch  # pyarrow alone requests many ranges together
        self._refusal: pa.ArrowInvalid | None = None
        self._reader = ParquetReader()
        footer_size = _checked_footer(source)
        try:
            self._reader.open(
                source,
                buffer_size=buffer_bytes,
                pre_buffer=prefetch,
                read_dictionary=dictionaries,
                coerce_int96_timestamp_unit="us",
                page_checksum_verification=checksums,
                thrift_container_size_limit=_FOOTER_ITEMS_MAX,
                arrow_extensions_enabled=True,
            )
        except OSError as e:
            if "Exceeded size limit" not in str(e) or footer_size < _FOOTER_ITEMS_MAX:
                raise  # it has not the items that it counts
            raise _large_footer(f"more than {_FOOTER_ITEMS_MAX} columns or row groups") from None
        except pa.ArrowInvalid as refusal:
            if native is None or _OPTIONAL_KEYS not in str(refusal):
                raise
            self._refusal, self._is_native = refusal, True

    @cached_property
    def schema(self) -> pa.Schema:
        """The file's schema, as Arrow types without views."""
        fields = self._reader.schema_arrow if self._refusal is None else self._fields_of_crate()
        return pa.schema([field.with_type(plain_type(field.type)) for field in fields])

    def _fields_of_crate(self) -> list[pa.Field]:
        """Return the columns of a file that pyarrow refuses, as pyarrow would decode them."""
        parsed, leaves = self.metadata.schema, range(self.metadata.num_columns)
        physical = iter([parsed.column(i).physical_type for i in leaves])
        footer = footer_bytes(self._source, _FOOTER_BYTES_MAX)
        try:
            fields = native.Columns(self._source, footer or b"", None).schema(list(leaves))
        except ValueError:
            raise self._refusal from None  # type: ignore[misc]
        types = [_with_micros(field.type, physical) for field in fields]
        return [
            field.with_type(
                pa.dictionary(pa.int32(), kind) if field.name in self.dictionaries else kind
            )
            for field, kind in zip(fields, types, strict=True)
        ]

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
        paths = self._reader.column_paths if self._refusal is None else self._native.paths()
        for i, path in enumerate(paths):
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

    @cached_property
    def _native(self) -> Any:
        """The file as the crate opens it."""
        footer = footer_bytes(self._source, _FOOTER_BYTES_MAX)
        return native.Columns(self._source, footer or b"", self.schema)

    @property
    def skips_rows(self) -> bool:
        """Whether rows before those that are wanted are passed without decoding them."""
        return native is not None and self._is_native

    @property
    def gives_utf8(self) -> bool:
        """Whether all texts that were read until now are UTF-8: the crate checks the columns that
        are of such texts by the footer, and pyarrow none."""
        return self.skips_rows and self._is_utf8

    @cached_property
    def _is_utf8(self) -> bool:
        parsed, leaves = self.metadata.schema, range(self.metadata.num_columns)
        columns = (parsed.column(i) for i in leaves)
        return all(c.physical_type != "BYTE_ARRAY" or c.converted_type == "UTF8" for c in columns)

    def longest_text(self, group: int, leaf: int) -> int | None:
        """Return the size of the longest text in a leaf's dictionary, 0 if it has none; None if the
        crate does not read this."""
        if not self.skips_rows:
            return None
        try:
            return int(self._native.longest_text(group, leaf))
        except UNREADABLE:
            self._is_native = False
            return None

    def rows(
        self,
        rows_max: int,
        group: int,
        columns: Sequence[ColumnPath],
        *,
        threads: bool,
        first: int = 0,
        check: Callable[[], None] = lambda: None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a row group from ``first`` on: those that the crate decodes and, from
        where it gives up, pyarrow's. The crate itself refuses a page that would take too much
        memory; before pyarrow begins, ``check`` is called."""
        total = int(self.metadata.row_group(group).num_rows)
        if self.skips_rows:
            try:
                for batch in self._native_rows(rows_max, group, columns, first, threads=threads):
                    first += batch.num_rows
                    yield batch
            except UNREADABLE as e:
                if _TOO_MANY in str(e):
                    raise TooManyValues from None
                if self._refusal is not None:
                    raise
                self._is_native = False
        if first < total:
            check()
            found = self.batches(rows_max, [group], columns, threads=threads)
            for batch in _behind(found, first):
                arrays = [without_views(column) for column in batch.columns]
                yield pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)

    def _native_rows(
        self,
        rows_max: int,
        group: int,
        columns: Sequence[ColumnPath],
        first: int,
        *,
        threads: bool,
    ) -> Iterator[pa.RecordBatch]:
        parts = min(_THREADS_MAX, int(pa.cpu_count())) if threads else 1
        reader = self._native.rows(group, self.numbers(columns), first, rows_max, parts)
        wanted = pa.schema([self.schema.field(field.name) for field in reader.schema])
        if all(own.type == theirs.type for own, theirs in zip(reader.schema, wanted, strict=True)):
            yield from reader
        elif all(map(_is_same, reader.schema, wanted)):
            yield from (batch.cast(wanted) for batch in reader)
        else:
            raise ValueError("the crate takes a column for another type than pyarrow does")

    def batches(
        self,
        rows_max: int,
        groups: Sequence[int],
        columns: Sequence[ColumnPath],
        *,
        threads: bool,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some row groups as pyarrow decodes them, of these columns with all
        fields below them."""
        if self._refusal is not None:
            for group in groups:
                yield from self.rows(rows_max, group, columns, threads=threads)
            return
        yield from self._reader.iter_batches(
            rows_max,
            row_groups=groups,
            column_indices=self.numbers(columns),
            use_threads=threads,
        )


def _behind(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the batches without the first rows."""
    for batch in batches:
        passed = min(rows, batch.num_rows)
        rows -= passed
        if passed < batch.num_rows:
            yield batch.slice(passed) if passed else batch


def _checked_footer(source: pa.NativeFile) -> int:
    """Return how long the footer says that it is."""
    end = max(0, int(source.size()) - 8)
    size = int.from_bytes(source.read_at(4, end), "little")
    if _FOOTER_BYTES_MAX < size <= end:
        raise _large_footer(f"{size} bytes, of {_FOOTER_BYTES_MAX} at most")
    return size


def _large_footer(what: str) -> UnsupportedTable:
    return UnsupportedTable(
        f"the Parquet file has a footer of {what}",
        hint="rewrite it as several files, or with larger row groups, or skip this version",
    )


def footer_bytes(source: pa.NativeFile, bytes_max: int) -> bytes | None:
    """Return a file's footer, the Thrift struct alone; None if it is longer or has no such size."""
    end = max(0, int(source.size()) - 8)
    size = int.from_bytes(source.read_at(4, end), "little")
    return bytes(source.read_at(size, end - size)) if 0 < size <= min(end, bytes_max) else None


def _is_same(own: pa.Field, theirs: pa.Field) -> bool:
    """Return whether a column has the type that pyarrow takes it for, if also of more bytes: 38
    digits may lie in 20, which pyarrow itself does not read."""
    kind, wanted = own.type, theirs.type
    is_wide = pa.types.is_decimal256(kind) and pa.types.is_decimal128(wanted)
    return kind == wanted or (
        is_wide and (kind.precision, kind.scale) == (wanted.precision, wanted.scale)
    )


def _with_micros(kind: pa.DataType, physical: Iterator[str]) -> pa.DataType:
    """Return a type with microseconds for INT96. ``physical``: the types of its leaves in the
    file."""
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([f.with_type(_with_micros(f.type, physical)) for f in kind])
    if types.is_map(kind):
        key, item = (
            f.with_type(_with_micros(f.type, physical)) for f in (kind.key_field, kind.item_field)
        )
        return pa.map_(key, item)
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(kind.value_field.with_type(_with_micros(kind.value_type, physical)))
    return pa.timestamp("us", kind.tz) if next(physical) == "INT96" else kind
