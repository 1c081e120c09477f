"""Changed rows that the comparison has decoded already, kept so that no file is read a second time.

The cache is bounded in bytes and only ever saves time: a file whose changed rows are not all in it
is decoded again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from tailer.changes import CHANGE_TYPE, METADATA_FIELDS, ChangeFile, DecodedRows
from tailer.decode.rows import Skip, build_kinds
from tailer.decode.vectors import positions_within


class RowCache:
    """Rows by side and file; at most ``bytes_max`` of them.

    ``sides`` says for each side whether its rows are useful later.
    """

    def __init__(self, bytes_max: int, sides: tuple[bool, bool]) -> None:
        self._sides = sides
        self._bytes_left = bytes_max
        self._kept: dict[tuple[int, int], list[DecodedRows]] = {}
        self._dropped: set[tuple[int, int]] = set()

    @property
    def complete(self) -> bool:
        """Return whether no file was given up."""
        return not self._dropped

    def keep_sides(self, sides: tuple[bool, bool]) -> RowCache:
        """Return the same rows of these sides only."""
        for side, number in [place for place in self._kept if not sides[place[0]]]:
            self.drop_file(side, number)
        return self

    def add_rows(self, side: int, number: int, rows: DecodedRows) -> None:
        """Keep these rows, unless the file was given up or they exceed the bound."""
        place = side, number
        if place in self._dropped or not self._sides[side]:
            return
        self._bytes_left -= int(rows.batch.nbytes)
        if self._bytes_left < 0:
            self.drop_file(side, number)
        else:
            self._kept.setdefault(place, []).append(rows)

    def drop_file(self, side: int, number: int) -> None:
        """Give this file up: it will be decoded again."""
        self._dropped.add((side, number))
        for rows in self._kept.pop((side, number), []):
            self._bytes_left += int(rows.batch.nbytes)

    def select_side(self, side: int) -> dict[int, list[DecodedRows]]:
        """Return the kept rows of one side, by the number of the file."""
        return {n: rows for (s, n), rows in self._kept.items() if s == side}


def find_cached_rows(
    file: ChangeFile, cached: Sequence[DecodedRows]
) -> tuple[DecodedRows, ...] | None:
    """Return the changed rows of a change file from the kept ones; None if some are missing."""
    wanted = file.rows or BitMap64()
    pieces, count = [], 0
    for rows in cached:
        positions = _select_members(rows.positions, wanted)
        if not len(positions):
            continue
        count += len(positions)
        piece = rows
        if len(positions) < len(rows.positions):
            piece = rows.filter(pc.is_in(rows.positions, value_set=positions))
        kinds = build_kinds(file, positions, positions[0].as_py(), positions[-1].as_py() + 1)
        at = piece.batch.num_columns - len(METADATA_FIELDS)
        batch = piece.batch.set_column(at, pa.field(CHANGE_TYPE, pa.string()), kinds)
        pieces.append(DecodedRows(batch, positions, piece.row_ids, piece.utf8))
    return tuple(pieces) if count == len(wanted) else None


def _select_members(positions: pa.Int64Array, wanted: BitMap64) -> pa.Int64Array:
    """Return which of these positions are wanted; they are in ascending order."""
    among = positions_within(wanted, positions[0].as_py(), positions[-1].as_py() + 1)
    return (
        among if among.equals(positions) else positions.filter(pc.is_in(positions, value_set=among))
    )


def iterate_kept_rows(file: ChangeFile, skip: Skip) -> Iterator[DecodedRows]:
    """Yield rows as :func:`tailer.decode.rows.decode_file` does, for a change file that holds its
    rows."""
    for rows in file.kept or ():
        passed = min(skip.remaining, rows.batch.num_rows)
        skip.remaining -= passed
        if passed < rows.batch.num_rows:
            yield rows.slice(passed)
