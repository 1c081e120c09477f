"""Columns of a Parquet file, read by the crate in ``native/`` and by pyarrow.

The crate opens each file and decodes it. What it refuses, pyarrow opens or decodes from there on,
or it says what is wrong. So ``pyarrow.parquet`` is loaded for few files: it takes half as long as
to load pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tailer.delta.arrow_views import without_views
from tailer.delta.damaged_bytes import UNREADABLE
from tailer.delta.parquet_footer import (
    Footer,
    LeafPath,
    RowGroup,
    build_from_crate,
    build_from_pyarrow,
    make_size_error,
    read_footer_size,
)
from tailer.errors import UnsupportedTable
from tailer.native.parquet import native

if TYPE_CHECKING:
    import pyarrow.parquet as pq

#: A column by its name, or a field of nested columns by its names.
ColumnPath: TypeAlias = "str | LeafPath"

#: pyarrow's refusal of a file with a map whose keys are declared optional, as Flink, Hive, Athena
#: and Trino do. The crate reads it.
_OPTIONAL_KEYS = "Map keys must be annotated as required"
#: The most columns or row groups of a footer, as in the crate: each takes up to 1.7 kB.
_ITEMS_MAX = 100_000
#: Microseconds of a time before 1970 with negative nanoseconds, as pyarrow reads it.
_UNSURE_MICROS = (2**63 // 1000, 2**64 // 1000)
#: The crate's refusal of rows with too many values in lists.
_TOO_MANY = "the rows of a batch have too many values"
#: Each has a batch of its own columns in memory, and few files have enough columns for more.
_THREADS_MAX = 4


class TooManyValues(ValueError):
    """Rows have so many values in lists that they can't be decoded at once; fewer rows may."""


class ParquetColumns:
    """An open Parquet file, whose pages are checked unless ``checksums`` is false.

    pyarrow reads it ``buffer_bytes`` at a time, 0: whole column chunks. The values of the top-level
    columns in ``dictionaries`` come as dictionaries.

    Raises :class:`pyarrow.ArrowException` or OSError for a file that is refused, KeyError if a
    column of ``dictionaries`` does not exist, :class:`UnsupportedTable` for a footer that would
    take too much memory.
    """

    def __init__(
        self,
        source: pa.NativeFile,
        *,
        buffer_bytes: int = 0,
        dictionaries: Sequence[str] = (),
        checksums: bool = True,
    ) -> None:
        self.dictionaries = frozenset(dictionaries)
        self._source = source
        self._buffer_bytes, self._checksums = buffer_bytes, checksums
        self._refusal: BaseException | None = None
        self._footer_bytes = b""
        size = read_footer_size(source)
        self._native = self._open_native(size) if native is not None and size else None
        self._is_native = self._native is not None
        if self._native is None:
            self.footer: Footer = build_from_pyarrow(self._pyarrow, self._read_footer_bytes(size))
        else:
            self.footer = build_from_crate(self._native, size)
        for name in self.dictionaries.difference(self.footer.schema.names):
            raise KeyError(name)

    def _open_native(self, size: int) -> Any | None:
        """Return the file as the crate opens it; None if it refuses it."""
        try:
            self._footer_bytes = self._read_footer_bytes(size)
            return native.Columns(self._source, self._footer_bytes, list(self.dictionaries))
        except ValueError:
            return None

    def _read_footer_bytes(self, size: int) -> bytes:
        return bytes(self._source.read_at(size, self._source.size() - 8 - size))

    @cached_property
    def _pyarrow(self) -> pq.ParquetFile:
        """The file as pyarrow opens it."""
        from pyarrow.parquet import ParquetFile  # on demand: the crate reads most files

        try:
            return ParquetFile(
                self._source,
                buffer_size=self._buffer_bytes,
                read_dictionary=list(self.dictionaries),
                coerce_int96_timestamp_unit="us",
                page_checksum_verification=self._checksums,
                thrift_container_size_limit=_ITEMS_MAX,
                arrow_extensions_enabled=True,
            )
        except OSError as e:
            if "Exceeded size limit" not in str(e) or read_footer_size(self._source) < _ITEMS_MAX:
                raise  # it has not the items that it counts
            raise make_size_error(f"more than {_ITEMS_MAX} columns or row groups") from None

    @property
    def size(self) -> int:
        """The bytes of the file."""
        return int(self._source.size())

    @property
    def schema(self) -> pa.Schema:
        """The file's schema, as Arrow types without views."""
        return self.footer.schema

    @property
    def groups(self) -> list[RowGroup]:
        """The row groups."""
        return self.footer.groups

    @property
    def num_rows(self) -> int:
        """The number of rows, by the footer."""
        return self.footer.rows

    @property
    def num_row_groups(self) -> int:
        """The number of row groups."""
        return len(self.footer.groups)

    @cached_property
    def _leaves(self) -> dict[str, list[tuple[int, LeafPath]]]:
        """The number and path of each column that has values itself, by its top-level column."""
        found: dict[str, list[tuple[int, LeafPath]]] = {}
        for i, path in enumerate(self.footer.leaves):
            found.setdefault(path[0], []).append((i, path))
        return found

    def find_numbers(self, columns: Iterable[ColumnPath]) -> list[int]:
        """Return the numbers, in the footer, of these columns and of all fields below them, as far
        as they are known."""
        paths = ((column,) if isinstance(column, str) else column for column in columns)
        return [
            i
            for path in paths
            for i, leaf in self._leaves.get(path[0], ())
            if leaf[: len(path)] == path
        ]

    @property
    def skips_rows(self) -> bool:
        """Whether rows before those that are wanted are passed without decoding them."""
        return self._is_native

    @property
    def gives_utf8(self) -> bool:
        """Whether all texts that were read until now are UTF-8: the crate checks the columns that
        are of such texts by the footer, and pyarrow none."""
        return self._is_native and self.footer.has_texts_alone

    def find_bounds(self, leaves: Sequence[int]) -> list[list[tuple[int, int, int | None] | None]]:
        """Return for each row group the least and the largest value of these leaves, and their
        nulls, if these are known; None for a leaf without statistics, or of other values than whole
        numbers. They are believed. Nothing is known without the crate, or of statistics that are
        damaged."""
        if self._native is None or not self._is_native:
            return []
        try:
            return list(native.bounds(self._footer_bytes, list(leaves)))
        except ValueError:
            return []

    def find_longest_text(self, group: int, leaf: int) -> int | None:
        """Return the size of the longest text in a leaf's dictionary, 0 if it has none; None if the
        crate does not read this."""
        if self._native is None or not self._is_native:
            return None
        try:
            return int(self._native.longest_text(group, leaf))
        except UNREADABLE:
            self._is_native = False
            return None

    def read_rows(
        self,
        rows_max: int,
        group: int,
        columns: Sequence[ColumnPath],
        *,
        threads: bool,
        first: int = 0,
        check: Callable[[], None] = lambda: None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a row group from ``first`` on, of these columns with all fields below
        them: those that the crate decodes and, from where it gives up, pyarrow's. The crate itself
        refuses a page that would take too much memory; before pyarrow begins, ``check`` is
        called."""
        if self._is_native:
            try:
                for batch in self._read_native_rows(
                    rows_max, group, columns, first, threads=threads
                ):
                    first += batch.num_rows
                    yield batch
            except UNREADABLE as e:
                if _TOO_MANY in str(e):
                    raise TooManyValues from None
                self._is_native, self._refusal = False, e
        if first < self.groups[group].rows:
            check()
            yield from _skip_rows(
                self._read_pyarrow_rows(rows_max, group, columns, threads=threads), first
            )

    def _read_native_rows(
        self,
        rows_max: int,
        group: int,
        columns: Sequence[ColumnPath],
        first: int,
        *,
        threads: bool,
    ) -> Iterator[pa.RecordBatch]:
        parts = min(_THREADS_MAX, int(pa.cpu_count())) if threads else 1
        assert self._native is not None
        reader = self._native.rows(group, self.find_numbers(columns), first, rows_max, parts)
        yield from reader

    def _read_pyarrow_rows(
        self, rows_max: int, group: int, columns: Sequence[ColumnPath], *, threads: bool
    ) -> Iterator[pa.RecordBatch]:
        try:
            file = self._pyarrow
        except pa.ArrowInvalid as refusal:
            if self._refusal is None or _OPTIONAL_KEYS not in str(refusal):
                raise
            raise self._refusal from None
        paths = [(column,) if isinstance(column, str) else column for column in columns]
        wanted = {path[0] for path in paths}
        found = file.iter_batches(
            rows_max,
            row_groups=[group],
            columns=[".".join(path) for path in paths],
            use_threads=threads,
        )
        for batch in found:
            # A column whose name has a dot may have the path of a field of another one.
            names = [name for name in batch.schema.names if name in wanted]
            for name in self.footer.old_timestamps.intersection(names):
                _check_old_timestamps(name, batch.column(name))
            arrays = [_to_native_type(batch.column(n), self.schema.field(n).type) for n in names]
            yield pa.RecordBatch.from_arrays(arrays, names=names)

    def read_batches(
        self,
        rows_max: int,
        groups: Iterable[int],
        columns: Sequence[ColumnPath],
        *,
        threads: bool,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some row groups."""
        for group in groups:
            yield from self.read_rows(rows_max, group, columns, threads=threads)


def _check_old_timestamps(name: str, array: pa.Array) -> None:
    """Refuse INT96 that may be wrong: pyarrow takes negative nanoseconds of a day, as some writers
    have them before 1970, for 584 years more."""
    if pa.types.is_nested(array.type):
        children = [array.keys, array.items] if pa.types.is_map(array.type) else array.flatten()
        for child in children if isinstance(children, list) else [children]:
            _check_old_timestamps(name, child)
    elif pa.types.is_timestamp(array.type):
        micros = array.view(pa.int64())
        first, last = (pa.scalar(bound, pa.int64()) for bound in _UNSURE_MICROS)
        unsure = pc.and_(pc.greater_equal(micros, first), pc.less(micros, last))
        if pc.any(unsure).as_py():
            raise UnsupportedTable(
                f"the column {name!r} has old timestamps (INT96) from 2262 to 2554, which may be "
                "others from before 1970, that only the crate in native/ reads",
                hint="install it (pip has it for most machines; `make native` builds it), or skip "
                "this version",
            )


def _skip_rows(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the batches without the first rows."""
    for batch in batches:
        passed = min(rows, batch.num_rows)
        rows -= passed
        if passed < batch.num_rows:
            yield batch.slice(passed) if passed else batch


def _to_native_type(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return pyarrow's values in the type that the crate gives: without views, and without what the
    writer noted of its own types. A struct may have fewer fields."""
    plain = without_views(array)
    if plain.type == wanted:
        return plain
    if not (pa.types.is_struct(plain.type) and pa.types.is_struct(wanted)):
        return plain.cast(wanted)
    fields = [wanted.field(field.name) for field in plain.type]
    children = [_to_native_type(plain.field(i), field.type) for i, field in enumerate(fields)]
    mask = plain.is_null() if plain.null_count else None
    types = [child.type for child in children]
    fields = [field.with_type(kind) for field, kind in zip(fields, types, strict=True)]
    return pa.StructArray.from_arrays(children, fields=fields, mask=mask)
