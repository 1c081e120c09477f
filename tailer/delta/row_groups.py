"""What a footer says of its row groups, and whether it contradicts itself or the log.

Of columns and pages only the crate in ``native/`` tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

import pyarrow as pa

from tailer.delta.damaged_bytes import UNREADABLE
from tailer.delta.parquet_columns import ColumnPath, ParquetColumns
from tailer.delta.parquet_footer import RowGroup
from tailer.errors import CorruptLog
from tailer.native.parquet import native

#: The number of a physical type in parquet.thrift.
BYTE_ARRAY = 6

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


def find_chunk(group: RowGroup, leaf: int) -> Chunk | None:
    """Return a column of a row group; None if nothing is known of it."""
    numbers = None if group.chunks is None else group.chunks[leaf]
    return None if numbers is None else Chunk._make(numbers)


class RowGroups:
    """The row groups of an open file, as far as its footer tells."""

    def __init__(self, parquet: ParquetColumns, source: pa.NativeFile) -> None:
        self._parquet = parquet
        self._source = source
        self._pages: dict[int, list[PageSize]] = {}

    def __getitem__(self, number: int) -> RowGroup | None:
        """Return a row group; None if nothing is known of its columns."""
        group = self._parquet.groups[number]
        return None if group.chunks is None else group

    def check(self, logged: int | None, flat: Iterable[str]) -> None:
        """Raise :class:`CorruptLog` if the numbers of rows contradict each other: those of the
        file, its row groups, their ``flat`` columns, which have a value for each row, and what the
        log says, if it does (``logged``)."""
        parquet = self._parquet
        rows = sum(group.rows for group in parquet.groups)
        if rows != parquet.num_rows:
            raise _make_contradiction(
                f"its footer says that it has {parquet.num_rows} rows, and its row groups have "
                f"{rows}"
            )
        if logged is not None and logged != parquet.num_rows:
            raise _make_contradiction(
                f"the log says that it has {logged} rows (numRecords), and its footer "
                f"{parquet.num_rows}"
            )
        for name in flat:
            for leaf in parquet.find_numbers([(name,)]):
                self._check_leaf(name, leaf)

    def _check_leaf(self, name: str, leaf: int) -> None:
        begun = set()
        for number, group in enumerate(self._parquet.groups):
            values = group.values[leaf]
            if values is not None and values != group.rows:
                raise _make_contradiction(
                    f"row group {number} has {group.rows} rows, and its column {name!r} "
                    f"{values} values"
                )
            chunk = find_chunk(group, leaf)
            if chunk is None:
                continue
            if chunk.values and chunk.start in begun:
                raise _make_contradiction(
                    f"the values of the column {name!r} in row group {number} are those of an "
                    "earlier row group"
                )
            begun.add(chunk.start)

    def find_dictionary_size(self, chunk: Chunk) -> int:
        """Return the size of a column's dictionary of texts, by its page; 0 if it has none."""
        pages = self.read_pages(chunk) if chunk.physical == BYTE_ARRAY else []
        return pages[0].unpacked if pages and pages[0].kind == _DICTIONARY_PAGE else 0

    def find_longest_text(self, chunk: Chunk) -> int:
        """Return the size of the longest text in a column's dictionary; 0 if it has none. If it
        can't be unpacked here, that is the size of the dictionary."""
        size = self.find_dictionary_size(chunk)
        if not size:
            return 0
        page = self.read_pages(chunk)[0]
        try:
            texts = bytes(self._source.read_at(page.stored, chunk.start + page.header))
            if chunk.codec:
                texts = pa.Codec(_CODECS[chunk.codec]).decompress(texts, size, asbytes=True)
        except (KeyError, *UNREADABLE):
            return size
        return int(native.longest(texts))

    def read_pages(self, chunk: Chunk) -> list[PageSize]:
        """Return the sizes of a column's first pages: of all, if it is small. They are what is
        unpacked, whatever the footer says."""
        if chunk.start not in self._pages:
            count = chunk.size if chunk.size <= _WALKED_BYTES_MAX else _HEADER_BYTES
            start = bytes(self._source.read_at(count, chunk.start))
            self._pages[chunk.start] = [PageSize._make(page) for page in native.page_sizes(start)]
        return self._pages[chunk.start]

    def find_ranges(self, group: int, names: Sequence[ColumnPath]) -> list[tuple[int, int]]:
        """Return the bytes [start, end) of these columns' chunks of a row group, as far as they are
        known, in the order of the file."""
        row_group = self[group]
        if row_group is None:
            return []
        chunks = (find_chunk(row_group, leaf) for leaf in self._parquet.find_numbers(names))
        placed = [chunk for chunk in chunks if chunk is not None]
        return sorted((chunk.start, chunk.start + chunk.size) for chunk in placed)

    def count_bytes(self, group: int, names: Sequence[str]) -> int:
        """Return how many bytes these top-level columns of a row group take in the file."""
        return sum(end - start for start, end in self.find_ranges(group, names))

    def announce(self, columns: Sequence[ColumnPath], groups: Sequence[int]) -> None:
        """Let a remote file fetch these columns of these row groups, which are read from now on.

        Such a file has a method ``will_read``, which takes ranges of bytes by row group, ascending.
        Nothing depends on it: bytes that were not announced are fetched when they are read.
        """
        will_read = getattr(self._source, "will_read", None)
        if will_read is None or any(self[group] is None for group in groups):
            return
        ranges = [self.find_ranges(group, columns) for group in groups]
        # Ranges that overlap are damage: the decoder says how.
        if all(left <= right for each in ranges for left, right in pairwise([0, *chain(*each)])):
            will_read(ranges)


def _make_contradiction(what: str) -> CorruptLog:
    return CorruptLog(
        f"the data file contradicts itself or the log: {what}",
        hint="restore it from a backup, or skip this version",
    )
