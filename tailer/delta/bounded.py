"""Columns that are decoded in batches that are bounded by bytes.

A decoder is asked for a number of rows and gives them, however large they are: a dictionary of one
long text, repeated in a few bytes, becomes gigabytes. So before a row group is decoded, the longest
texts of its dictionaries are looked up, and it is decoded in steps of so few rows that they can't
outgrow a batch; small steps are joined. Where rows grow otherwise, the first batch that is too
large is halved, and what comes after it is decoded in smaller steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pyarrow as pa
from msgspec import Struct

from tailer.delta.parquet_columns import ColumnPath, ParquetColumns, TooManyValues
from tailer.delta.row_groups import BYTE_ARRAY, Chunk, PageSize, RowGroups, find_chunk
from tailer.errors import UnsupportedTable

#: This number of rows is decoded to measure how large they are.
SAMPLE_ROWS = 256
#: Writers make pages of a MiB by default. A page is refused that is unpacked to more bytes than
#: this, and than this number of batches...
_PAGE_BYTES_MAX = 64 * 1024 * 1024
_PAGE_BATCHES_MAX = 4
#: ... and to more than this multiple of its stored size, or to twice those bytes.
_PAGE_TIMES = 100
#: A column with so many values for each byte has lists of thousands of equal items. pyarrow takes
#: memory for all items of a row at once, and is not asked where they may not fit.
_VALUES_A_BYTE, _VALUE_BYTES = 1000, 8
#: The encoding in which each value may begin with all of the one before, however long that is.
_PREFIXED = 1 << 7
#: Where nothing tells how long texts may be: so few rows are measured, and decoded in one step.
_FEW_ROWS, _UNKNOWN_ROWS = 16, 1024
#: Of a text in an array, besides its own bytes; and the most of any other value.
_OFFSET_BYTES, _FIXED_BYTES = 5, 32


class Sizes(Struct, frozen=True):
    """The bytes of a row: on the average of the first ones, and if each of its texts is the longest
    of its dictionary."""

    average: int
    most: int


class BoundedColumns:
    """Decodes columns of an open file, in batches of up to ``bytes_max``. Pages are bounded by
    batches of ``page_batch_bytes``, if those are larger."""

    def __init__(
        self,
        parquet: ParquetColumns,
        row_groups: RowGroups,
        bytes_max: int,
        page_batch_bytes: int = 0,
    ) -> None:
        self.parquet = parquet
        self.row_groups = row_groups
        self.bytes_max = bytes_max
        batch = max(bytes_max, page_batch_bytes)
        self._page_bytes_max = max(_PAGE_BYTES_MAX, _PAGE_BATCHES_MAX * batch)
        self._known: dict[tuple[int, tuple[ColumnPath, ...]], Sizes] = {}
        self._longest: dict[tuple[int, int], int] = {}

    def measure_rows(self, group: int, names: Sequence[ColumnPath]) -> Sizes:
        """Measure these columns, whose values differ in size, in a row group.

        Raises :class:`UnsupportedTable` for a page that would take too much memory.
        """
        key = group, tuple(names)
        if key not in self._known:
            self._known[key] = self._measure_sample(group, names)
        return self._known[key]

    def read_batches(
        self,
        rows_max: int,
        group: int,
        names: Sequence[ColumnPath],
        *,
        varying: Sequence[ColumnPath],
        threads: bool,
        first: int = 0,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a row group from ``first`` on, of these columns; ``varying`` are those
        of them whose values differ in size. Their batches have ``rows_max`` rows, or fewer large
        ones.

        Raises :class:`UnsupportedTable` for a page that would take too much memory.
        """
        check = partial(self._check_pages, group, self.parquet.find_numbers(names))
        step = self._find_step(rows_max, group, varying)
        done, total = first, self.parquet.groups[group].rows
        while done < total:
            before = done
            found = self.parquet.read_rows(
                step, group, names, threads=threads, first=done, check=check
            )
            try:
                for batch in _join_batches(found, rows_max, self.bytes_max):
                    done += batch.num_rows
                    size = int(batch.nbytes)
                    if size <= self.bytes_max:
                        yield batch
                        continue
                    yield from halve_batch(batch, self.bytes_max)
                    if size > 2 * self.bytes_max and step > 1 and done < total:
                        step = max(1, min(step // 2, step * self.bytes_max // size))
                        break
                else:
                    return
            except TooManyValues:
                step = _reduce_rows(step)
                continue
            if done == before:
                return

    def fits(self, rows_max: int, group: int, names: Sequence[ColumnPath]) -> bool:
        """Return whether ``rows_max`` rows of these columns fit one batch, even if each value is
        the longest that its column may have."""
        said = self.row_groups[group]
        if said is None:
            return False
        most = 0
        for leaf in self.parquet.find_numbers(names):
            chunk = find_chunk(said, leaf)
            if chunk is None or chunk.encodings & _PREFIXED:
                return False
            count = chunk.values if chunk.values > said.rows else min(chunk.values, rows_max)
            each = _FIXED_BYTES
            if chunk.physical == BYTE_ARRAY:
                each = _OFFSET_BYTES + self._longest_text(group, leaf, chunk)
            most += count * each + max(chunk.unpacked, chunk.size)
        return most <= self.bytes_max

    def _find_step(self, rows_max: int, group: int, varying: Sequence[ColumnPath]) -> int:
        """Return how many rows of these columns can't outgrow a batch."""
        if not varying or self.fits(rows_max, group, varying):
            return rows_max
        return max(1, min(rows_max, self.bytes_max // self.measure_rows(group, varying).most))

    def _measure_sample(self, group: int, names: Sequence[ColumnPath]) -> Sizes:
        check = partial(self._check_pages, group, self.parquet.find_numbers(names))
        texts = self._longest_texts(group, names)
        if texts is None:
            some = _FEW_ROWS
        else:
            some = max(1, min(SAMPLE_ROWS, self.bytes_max // max(1, texts)))
        sample = self._first_rows(some, group, names, check)
        if sample is None or not sample.num_rows:
            return Sizes(1, 1)
        average = max(1, int(sample.nbytes) // sample.num_rows)
        if texts is None:
            return Sizes(average, max(average, self.bytes_max // _UNKNOWN_ROWS))
        return Sizes(average, average + texts)

    def _first_rows(
        self, count: int, group: int, names: Sequence[ColumnPath], check: Callable[[], None]
    ) -> pa.RecordBatch | None:
        """Return the first rows of a row group: ``count``, or as many as can be decoded at once."""
        while True:
            rows = self.parquet.read_rows(count, group, names, threads=False, check=check)
            try:
                return next(rows, None)
            except TooManyValues:
                count = _reduce_rows(count)

    def _longest_texts(self, group: int, names: Sequence[ColumnPath]) -> int | None:
        """Return the bytes of a row's texts if each is the longest of its dictionary; None if that
        is not known, or texts may be longer than what tells of them."""
        said, total = self.row_groups[group], 0
        if said is None:
            return None
        for leaf in self.parquet.find_numbers(names):
            chunk = find_chunk(said, leaf)
            if chunk is None or chunk.encodings & _PREFIXED:
                return None
            each = -(-chunk.values // max(1, said.rows))  # of a row, on the average
            total += each * self._longest_text(group, leaf, chunk)
        return total

    def _longest_text(self, group: int, leaf: int, chunk: Chunk) -> int:
        """Return the size of the longest text in a column's dictionary; 0 if it has none."""
        if chunk.physical != BYTE_ARRAY:
            return 0
        if (group, leaf) not in self._longest:
            longest = self.parquet.find_longest_text(group, leaf)
            if longest is None:
                self._check_pages(group, [leaf])
                longest = self.row_groups.find_longest_text(chunk)
            self._longest[group, leaf] = longest
        return self._longest[group, leaf]

    def _check_pages(self, group: int, leaves: Sequence[int]) -> None:
        """Refuse a page that would take much memory although it is small in the file. Where nothing
        is known of pages, that is a row group."""
        said = self.row_groups[group]
        most = self._page_bytes_max
        if said is None:
            stored, unpacked = self.parquet.size, self.parquet.groups[group].bytes
            if unpacked > most and unpacked > _PAGE_TIMES * stored:
                raise _make_size_error("row group", stored, unpacked, most)
            return
        for leaf in leaves:
            chunk = find_chunk(said, leaf)
            pages = self.row_groups.read_pages(chunk) if chunk is not None else []
            for page in pages:
                times = page.unpacked > _PAGE_TIMES * page.stored
                if page.unpacked > most and (times or page.unpacked > 2 * most):
                    raise _make_size_error("page", page.stored, page.unpacked, most)
            if chunk is not None:
                _check_lists(said.rows, chunk, pages, most)


def _make_size_error(what: str, stored: int, unpacked: int, most: int) -> UnsupportedTable:
    return UnsupportedTable(
        f"a {what} of {stored} bytes in the data file has {unpacked} when it is unpacked, and "
        f"{most} are the most that are held in memory",
        hint="rewrite the file with smaller pages, let batch_bytes_max be a quarter of it, or skip "
        "this version",
    )


def _check_lists(rows: int, chunk: Chunk, pages: Sequence[PageSize], most: int) -> None:
    """Refuse a column whose few bytes stand for many items of lists."""
    values = max(chunk.values, sum(page.values for page in pages))
    unpacked = max(chunk.size, sum(page.unpacked for page in pages))
    if values - rows > max(most // _VALUE_BYTES, _VALUES_A_BYTE * unpacked):
        raise _make_values_error()


def _reduce_rows(rows: int) -> int:
    """Return how many rows to try instead. Raises :class:`UnsupportedTable` after a single row."""
    if rows <= 1:
        raise _make_values_error()
    return max(1, rows // 16)


def _make_values_error() -> UnsupportedTable:
    return UnsupportedTable(
        "a row of the data file has lists of so many items that they would take too much memory",
        hint="rewrite the file with shorter lists, or skip this version",
    )


def _join_batches(
    batches: Iterator[pa.RecordBatch], rows_max: int, bytes_max: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of several batches together, as long as they stay within the bounds."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        count = batch.num_rows
        more = int(batch.nbytes) if held or count < rows_max else 0
        if held and (rows + count > rows_max or size + more > bytes_max):
            yield pa.concat_batches(held) if len(held) > 1 else held[0]
            held, rows, size = [], 0, 0
        if count >= rows_max:
            yield batch
        else:
            held.append(batch)
            rows, size = rows + count, size + more
    if held:
        yield pa.concat_batches(held) if len(held) > 1 else held[0]


def halve_batch(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows in parts of up to ``bytes_max`` bytes, or of one row."""
    rows = batch.num_rows
    if rows < 2 or int(batch.nbytes) <= bytes_max:
        yield batch
        return
    yield from halve_batch(batch.slice(0, rows // 2), bytes_max)
    yield from halve_batch(batch.slice(rows // 2), bytes_max)
