"""A file that leaves and the file that replaces it, read side by side.

Without row ids, the changed rows are known only after all rows are compared. But most writers keep
a file's order when they rewrite it, so equal rows are mostly at the same place of both files:

    leaves   a   b   c   d   e
    comes    a   b   x   d
             =   =   !   =   ?

Rows that are equal at one place (``=``) become one row, ``PLACED``, which halves the rows of the
comparison. The others (``!``, ``?``) go to the comparison unchanged, and into the cache, because
most of them are changes. If more rows differ than are equal, then the files are not rewrites of
each other, or one row more or less has shifted all others: the rest of both is compared as usual.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tailer.changes import METADATA_FIELDS, ChangeFile, DecodedRows
from tailer.compare.equal_rows import DifferingRows, find_differing_rows
from tailer.compare.row_cache import RowCache
from tailer.compare.stream import PLACED

_PAIRED_FILES_MAX = 64
#: If more than this share of their rows differ, two files are not rewrites of each other.
_DIFFERENT_MAX = 0.5


@dataclass(frozen=True, slots=True)
class DecodedSide:
    """Rows of a file: their side, the file's number on that side, and the rows.

    Where the side is ``PLACED``, they leave and come: ``came`` has the number of the file that
    comes, and their positions there.
    """

    side: int
    number: int
    rows: DecodedRows
    came: tuple[int, pa.Int64Array] | None = None


@dataclass(slots=True)
class FileRows:
    """The rows of one file, read in step with its partner."""

    side: int
    number: int
    batches: Iterator[DecodedRows]
    head: DecodedRows | None = None

    def peek_rows(self) -> DecodedRows | None:
        """Return some of the next rows; None at the end."""
        if self.head is None:
            self.head = next(self.batches, None)
        return self.head

    def skip_rows(self, count: int) -> None:
        """Skip the first ``count`` rows of :meth:`peek_rows`."""
        rows, self.head = self.head, None
        if rows is not None and count < rows.batch.num_rows:
            self.head = rows.slice(count)

    def read_rest(self) -> Iterator[DecodedRows]:
        """Yield all rows that were not skipped."""
        while (rows := self.peek_rows()) is not None:
            self.skip_rows(rows.batch.num_rows)
            yield rows


def read_side_by_side(left: FileRows, came: FileRows, cache: RowCache) -> Iterator[DecodedSide]:
    """Yield the rows of both files; rows that are equal at one place are one row, ``PLACED``.

    The others go into the cache, until the files turn out to differ too much: then both are
    dropped from it.
    """
    seen = different = 0
    while different <= seen * _DIFFERENT_MAX:
        one, other = left.peek_rows(), came.peek_rows()
        if one is None or other is None:
            break
        count = min(one.batch.num_rows, other.batch.num_rows)
        mask, found = _find_differences(one, other, count)
        seen, different = seen + count, different + found
        if found < count:
            equal = pc.invert(mask)
            there = other.positions.slice(0, count).filter(equal)
            yield DecodedSide(PLACED, left.number, one.filter(equal), (came.number, there))
        for file, rows in ((left, one), (came, other)):
            if found:
                changed = rows.filter(mask)
                cache.add_rows(file.side, file.number, changed)
                yield DecodedSide(file.side, file.number, changed)
            file.skip_rows(count)
    similar = different <= seen * _DIFFERENT_MAX
    for file in (left, came):
        for rows in file.read_rest():
            if similar:
                cache.add_rows(file.side, file.number, rows)
            else:
                cache.drop_file(file.side, file.number)
            yield DecodedSide(file.side, file.number, rows)


def match_heads(
    leaving: Sequence[DecodedRows | None], coming: Sequence[DecodedRows | None]
) -> dict[int, int]:
    """Guess which file that comes is the rewrite of which that leaves, by their first rows: at
    least half of them must be equal."""
    free, found = set(range(len(coming))), {}
    for number, head in enumerate(leaving):
        scores = {n: _score_match(head, coming[n]) for n in sorted(free)}
        best = max(scores, key=lambda n: scores[n], default=None)
        if best is not None and scores[best] >= 1 - _DIFFERENT_MAX:
            found[number] = best
            free.remove(best)
    return found


def may_match(leaving: Sequence[ChangeFile], coming: Sequence[ChangeFile]) -> bool:
    """Return whether comparing the files' first rows may be useful."""
    if max(len(leaving), len(coming)) > _PAIRED_FILES_MAX:
        return False
    sizes = {f.num_records for f in leaving}  # a remove may lack it
    return None in sizes or any(f.num_records is None or f.num_records in sizes for f in coming)


def _score_match(one: DecodedRows | None, other: DecodedRows | None) -> float:
    """Return the share of rows that are the same at the same place."""
    if one is None or other is None:
        return 0.0
    count = int(min(one.batch.num_rows, other.batch.num_rows))
    _, different = _find_differences(one, other, count)
    return 1.0 - different / count


def _find_differences(one: DecodedRows, other: DecodedRows, count: int) -> DifferingRows:
    """Return which of the first ``count`` rows differ in their data, and how many."""
    a, b = (r.batch.slice(0, count).columns[: -len(METADATA_FIELDS)] for r in (one, other))
    return find_differing_rows(a, b, count)
