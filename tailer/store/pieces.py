"""Which ranges of a file to fetch, and in which order, for a decoder that streams its row groups.

A decoder reads the columns of a row group side by side, each from its beginning to its end. A row
group that fits into memory is fetched in the order of the file, neighbouring columns at once. Of a
larger one, each column is cut into pieces, and those at the same fraction of their columns are
needed at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

#: The bytes [start, end) of a file.
Range: TypeAlias = tuple[int, int]

#: A decoder reads this much of a column at once.
_STEP_BYTES = 256 * 1024
#: Unwanted bytes between two columns that are fetched with them: a request costs more time.
_GAP_BYTES_MAX = 1024 * 1024
_PIECE_BYTES_MIN = 1024 * 1024
PIECE_BYTES_MAX = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Piece:
    """One request: the bytes [start, end), needed for row group number ``group`` of those read."""

    start: int
    end: int
    group: int = 0

    @property
    def size(self) -> int:
        """The number of bytes."""
        return self.end - self.start


def plan_pieces(groups: Sequence[Sequence[Range]], bytes_max: int) -> Iterator[Piece]:
    """Yield the pieces of all row groups, in the order in which they are needed.

    A row group is given as its columns' ranges, ascending. ``bytes_max`` bounds what is kept of one
    row group while it is read.
    """
    for number, columns in enumerate(groups):
        runs = _join_ranges(columns, bytes_max)
        if sum(end - start for start, end in runs) <= bytes_max:
            found = [
                part for run in runs for part in _cut_range(run, min(PIECE_BYTES_MAX, bytes_max))
            ]
        else:
            found = _plan_side_by_side(columns, bytes_max)
        for start, end in found:
            yield Piece(start, end, number)


def _join_ranges(columns: Sequence[Range], size_max: int) -> list[Range]:
    """Join neighbours with a small gap between them, up to ``size_max`` bytes."""
    runs: list[Range] = []
    for start, end in columns:
        if runs and start - runs[-1][1] <= _GAP_BYTES_MAX and end - runs[-1][0] <= size_max:
            runs[-1] = runs[-1][0], end
        elif start < end:
            runs.append((start, end))
    return runs


def _cut_range(run: Range, size: int) -> list[Range]:
    start, end = run
    return [(at, min(at + size, end)) for at in range(start, end, max(1, size))]


def _plan_side_by_side(columns: Sequence[Range], bytes_max: int) -> list[Range]:
    """Return the pieces of columns that do not all fit: one of each column does."""
    least = min(_PIECE_BYTES_MIN, bytes_max // (2 * len(columns)))
    lanes = _join_ranges(columns, least)
    total = sum(end - start for start, end in lanes)
    rest = bytes_max - least * len(lanes)
    found: list[tuple[float, Range]] = []
    for start, end in lanes:
        share = (least + (end - start) * rest // total) // _STEP_BYTES * _STEP_BYTES
        parts = _cut_range((start, end), max(_STEP_BYTES, min(PIECE_BYTES_MAX, share)))
        found += [((part[0] - start) / (end - start), part) for part in parts]
    return [piece for _, piece in sorted(found)]
