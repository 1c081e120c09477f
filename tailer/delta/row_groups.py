"""What a footer says of its row groups, and whether it contradicts itself or the log.

pyarrow has this too, but ``RowGroupMetaData.column()`` must never be called: for an encrypted
column, and for some damaged ones, it throws out of a function that must not throw, which ends the
whole process and all feeds in it. So the footer is read here: by the crate in ``native/``, or
where that is absent or finds something unusual, by :mod:`tailer.delta.footer`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from msgspec import Struct

from tailer.delta.damaged_bytes import UNREADABLE
from tailer.delta.footer import group_numbers, page_sizes
from tailer.delta.parquet_columns import ParquetColumns, footer_bytes
from tailer.errors import CorruptLog
from tailer.native.parquet import native

__all__ = ["BYTE_ARRAY", "Chunk", "PageSize", "RowGroup", "RowGroups"]

#: The number of a physical type in parquet.thrift.
BYTE_ARRAY = 6

#: Longer footers are not read here: the compiled module takes some 2 ms for a MiB, Python 200.
_BYTES_MAX = 64 * 1024 * 1024
_BYTES_MAX_PYTHON = 1024 * 1024
#: A dictionary's header is shorter. The number of its kind is parquet.thrift's.
_HEADER_BYTES, _DICTIONARY_PAGE = 256, 2
#: The codecs that are known here, by the numbers of parquet.thrift, with pyarrow's names.
_CODECS = {1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd"}
#: Of a column chunk up to this size, all pages are looked up.
_WALKED_BYTES_MAX = 1024 * 1024


class Chunk(NamedTuple):
    """A column of a row group: numbers of parquet.thrift, the encodings as a mask; the bytes from
    ``start`` on are ``size``, and ``unpacked`` of them without compression."""

    physical: int
    codec: int
    encodings: int
    values: int
    unpacked: int
    start: int
    size: int


class PageSize(NamedTuple):
    """The kind of a page, by parquet.thrift, its bytes, unpacked and as they are stored, those of
    its header, and its values, nulls included."""

    kind: int
    unpacked: int
    stored: int
    header: int
    values: int


class RowGroup(Struct, frozen=True):
    """A row group. ``numbers`` are those of its columns, in the order of the schema's leaves; None
    for a column that is encrypted, that lies in another file, or whose numbers can't be right."""

    rows: int
    bytes: int
    numbers: Sequence[tuple[int, ...] | None]

    def chunk(self, leaf: int) -> Chunk | None:
        """Return a column; None if nothing is known of it."""
        numbers = self.numbers[leaf]
        return None if numbers is None else Chunk._make(numbers)


class RowGroups:
    """The row groups of an open file, as far as its footer tells. Each is known, or none."""

    def __init__(self, parquet: ParquetColumns, source: pa.NativeFile) -> None:
        self._parquet = parquet
        self._source = source
        self._pages: dict[int, list[PageSize]] = {}
        self._found = _read(source)
        columns = int(parquet.metadata.num_columns)
        if self._found is not None and (
            len(self._found) != parquet.num_row_groups
            or any(len(group.numbers) != columns for group in self._found)
        ):
            self._found = None  # the file was opened with another footer, or this one is damaged

    def __getitem__(self, group: int) -> RowGroup | None:
        return None if self._found is None else self._found[group]

    def check(self, logged: int | None, flat: Iterable[str]) -> None:
        """Raise :class:`CorruptLog` if the numbers of rows contradict each other: those of the
        file, its row groups, their ``flat`` columns, which have a value for each row, and what the
        log says, if it does (``logged``)."""
        parquet = self._parquet
        said = [int(parquet.metadata.row_group(i).num_rows) for i in range(parquet.num_row_groups)]
        if sum(said) != parquet.num_rows:
            raise _contradiction(
                f"its footer says that it has {parquet.num_rows} rows, and its row groups have "
                f"{sum(said)}"
            )
        if logged is not None and logged != parquet.num_rows:
            raise _contradiction(
                f"the log says that it has {logged} rows (numRecords), and its footer "
                f"{parquet.num_rows}"
            )
        if self._found is not None:
            for name in flat:
                for leaf in parquet.numbers([(name,)]):
                    self._check_leaf(name, leaf)

    def _check_leaf(self, name: str, leaf: int) -> None:
        begun = set()
        for number, group in enumerate(self._found or ()):
            chunk = group.chunk(leaf)
            if chunk is None:
                continue
            if chunk.values != group.rows:
                raise _contradiction(
                    f"row group {number} has {group.rows} rows, and its column {name!r} "
                    f"{chunk.values} values"
                )
            if chunk.values and chunk.start in begun:
                raise _contradiction(
                    f"the values of the column {name!r} in row group {number} are those of an "
                    "earlier row group"
                )
            begun.add(chunk.start)

    def dictionary_bytes(self, chunk: Chunk) -> int:
        """Return the size of a column's dictionary of texts, by its page; 0 if it has none."""
        pages = self.pages(chunk) if chunk.physical == BYTE_ARRAY else []
        return pages[0].unpacked if pages and pages[0].kind == _DICTIONARY_PAGE else 0

    def longest_text(self, chunk: Chunk) -> int:
        """Return the size of the longest text in a column's dictionary; 0 if it has none. If it
        can't be unpacked here, that is the size of the dictionary."""
        size = self.dictionary_bytes(chunk)
        if not size:
            return 0
        page = self.pages(chunk)[0]
        try:
            texts = bytes(self._source.read_at(page.stored, chunk.start + page.header))
            if chunk.codec:
                texts = pa.Codec(_CODECS[chunk.codec]).decompress(texts, size, asbytes=True)
        except (KeyError, *UNREADABLE):
            return size
        return int(_longest(texts) if native is None else native.longest(texts))

    def pages(self, chunk: Chunk) -> list[PageSize]:
        """Return the sizes of a column's first pages: of all, if it is small. They are what is
        unpacked, whatever the footer says."""
        if chunk.start not in self._pages:
            count = chunk.size if chunk.size <= _WALKED_BYTES_MAX else _HEADER_BYTES
            start = bytes(self._source.read_at(count, chunk.start))
            sizes = page_sizes(start) if native is None else native.page_sizes(start)
            self._pages[chunk.start] = [PageSize._make(page) for page in sizes]
        return self._pages[chunk.start]

    def ranges(self, group: int, names: Sequence[str]) -> list[tuple[int, int]]:
        """Return the bytes [start, end) of these top-level columns' chunks of a row group, as far
        as they are known, in the order of the file."""
        row_group = self[group]
        if row_group is None:
            return []
        chunks = (row_group.chunk(leaf) for leaf in self._parquet.numbers(names))
        placed = [chunk for chunk in chunks if chunk is not None]
        return sorted((chunk.start, chunk.start + chunk.size) for chunk in placed)

    def read_bytes(self, group: int, names: Sequence[str]) -> int:
        """Return how many bytes these top-level columns of a row group take in the file."""
        return sum(end - start for start, end in self.ranges(group, names))


def _longest(texts: bytes) -> int:
    """Return the size of the longest of texts that lie behind their sizes."""
    at = most = 0
    while at + 4 <= len(texts):
        size = int.from_bytes(texts[at : at + 4], "little")
        at += 4 + size
        if at <= len(texts):
            most = max(most, size)
    return most


def _contradiction(what: str) -> CorruptLog:
    return CorruptLog(
        f"the data file contradicts itself or the log: {what}",
        hint="restore it from a backup, or skip this version",
    )


def _read(source: pa.NativeFile) -> list[RowGroup] | None:
    footer = footer_bytes(source, _BYTES_MAX)
    if footer is None:
        return None
    groups: Any = native.groups(footer) if native is not None else None
    if groups is None and len(footer) <= _BYTES_MAX_PYTHON:
        groups = group_numbers(footer)
    return (
        None
        if groups is None
        else [RowGroup(rows, size, numbers) for rows, size, numbers in groups]
    )
