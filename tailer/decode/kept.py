"""Changed rows that the comparison has decoded already, kept so that no file is read a second time.

Keeping is bounded in bytes and only ever saves time: a file whose changed rows were not all kept is
decoded again. Without row ids nobody knows which rows change until all are compared; but most
writers rewrite a file in its own order, so the file that leaves and the one that comes are read
side by side, and where two rows at one place differ, both are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from tailer.changes import CHANGE_TYPE, METADATA_FIELDS, ChangeFile, Rows
from tailer.decode.engine import COMING, LEAVING
from tailer.decode.rows import Skip, given_kinds
from tailer.decode.vectors import positions_of

__all__ = ["Decoded", "Keeper", "alike", "kept_rows", "pairable", "settled", "side_by_side"]

#: Side, number of the file on that side, and rows of it.
Decoded = tuple[int, int, Rows]

_PAIRED_FILES_MAX = 64
#: Two files that differ in more of their rows than this are not one the rewrite of the other.
_DIFFERENT_MAX = 0.5


class Keeper:
    """The rows that are kept, by side and file; at most ``bytes_max`` of them.

    ``sides`` says of each side whether its rows are of any use later.
    """

    def __init__(self, bytes_max: int, sides: tuple[bool, bool]) -> None:
        self._sides = sides
        self._bytes_max = self._bytes_left = bytes_max
        self._kept: dict[tuple[int, int], list[Rows]] = {}
        self._dropped: set[tuple[int, int]] = set()

    def clear(self) -> None:
        """Begin anew."""
        self._bytes_left = self._bytes_max
        self._kept.clear()
        self._dropped.clear()

    def add(self, side: int, number: int, rows: Rows) -> None:
        """Keep these rows, unless the file was given up or this would be too much."""
        place = side, number
        if place in self._dropped or not self._sides[side]:
            return
        self._bytes_left -= int(rows.batch.nbytes)
        if self._bytes_left < 0:
            self.drop(side, number)
        else:
            self._kept.setdefault(place, []).append(rows)

    def drop(self, side: int, number: int) -> None:
        """Give this file up: it will be decoded again."""
        self._dropped.add((side, number))
        for rows in self._kept.pop((side, number), []):
            self._bytes_left += int(rows.batch.nbytes)

    def of(self, side: int) -> dict[int, list[Rows]]:
        """What is kept of one side, by the number of the file."""
        return {n: rows for (s, n), rows in self._kept.items() if s == side}


def settled(file: ChangeFile, kept: Sequence[Rows]) -> tuple[Rows, ...] | None:
    """The changed rows of a work order, from those that were kept; None if some are missing."""
    wanted = positions_of(file.rows or BitMap64())
    found, count = [], 0
    for rows in kept:
        mask = pc.is_in(rows.positions, value_set=wanted)
        positions = rows.positions.filter(mask)
        if not len(positions):
            continue
        count += len(positions)
        batch = rows.batch.filter(mask)
        at = batch.num_columns - len(METADATA_FIELDS)
        kinds = given_kinds(file, positions, positions[0].as_py(), positions[-1].as_py() + 1)
        batch = batch.set_column(at, pa.field(CHANGE_TYPE, pa.string()), kinds)
        ids = None if rows.row_ids is None else rows.row_ids.filter(mask)
        found.append(Rows(batch, positions, ids))
    return tuple(found) if count == len(wanted) else None


def kept_rows(file: ChangeFile, skip: Skip) -> Iterator[Rows]:
    """As :func:`tailer.decode.rows.decode_file`, of a work order that has its rows with it."""
    for rows in file.kept or ():
        passed = min(skip.remaining, rows.batch.num_rows)
        skip.remaining -= passed
        if passed < rows.batch.num_rows:
            yield rows.slice(passed)


def alike(leaving: Sequence[Rows | None], coming: Sequence[Rows | None]) -> dict[int, int]:
    """Which file that comes may be the rewrite of which that leaves: a guess by their first rows,
    at least half of which must be the same."""
    free, found = set(range(len(coming))), {}
    for number, head in enumerate(leaving):
        scores = {n: _score(head, coming[n]) for n in sorted(free)}
        best = max(scores, key=lambda n: scores[n], default=None)
        if best is not None and scores[best] >= 1 - _DIFFERENT_MAX:
            found[number] = best
            free.remove(best)
    return found


def pairable(leaving: Sequence[ChangeFile], coming: Sequence[ChangeFile]) -> bool:
    """Whether a look at the files' first rows may be worth it."""
    if max(len(leaving), len(coming)) > _PAIRED_FILES_MAX:
        return False
    sizes = {f.num_records for f in leaving}  # a remove need not tell
    return None in sizes or any(f.num_records is None or f.num_records in sizes for f in coming)


def _score(one: Rows | None, other: Rows | None) -> float:
    """The share of rows that are the same at the same place."""
    if one is None or other is None:
        return 0.0
    count = min(one.batch.num_rows, other.batch.num_rows)
    mask = _differ(one.batch.slice(0, count), other.batch.slice(0, count))
    return 1.0 - float(pc.mean(mask).as_py())


def side_by_side(
    left: tuple[int, Iterator[Rows]], came: tuple[int, Iterator[Rows]], keeper: Keeper
) -> Iterator[Decoded]:
    """The rows of two files, and into the keeper those of both that differ at one place."""
    sides = (LEAVING, COMING)
    numbers, streams = (left[0], came[0]), (left[1], came[1])
    rest: list[Rows | None] = [None, None]
    seen = different = 0
    while True:
        for side in sides:
            if rest[side] is None and (rows := next(streams[side], None)) is not None:
                yield side, numbers[side], rows
                rest[side] = rows
        one, other = rest
        if one is None or other is None:
            break
        count = min(one.batch.num_rows, other.batch.num_rows)
        mask = _differ(one.batch.slice(0, count), other.batch.slice(0, count))
        seen, different = seen + count, different + (pc.sum(mask).as_py() or 0)
        if different > seen * _DIFFERENT_MAX:
            break
        for side, rows in zip(sides, (one, other), strict=True):
            ids = None if rows.row_ids is None else rows.row_ids.slice(0, count).filter(mask)
            batch = rows.batch.slice(0, count).filter(mask)
            positions = rows.positions.slice(0, count).filter(mask)
            keeper.add(side, numbers[side], Rows(batch, positions, ids))
            rest[side] = rows.slice(count) if count < rows.batch.num_rows else None
    if different > seen * _DIFFERENT_MAX or rest != [None, None]:
        for side in sides:
            keeper.drop(side, numbers[side])
    for side in sides:
        for rows in streams[side]:
            yield side, numbers[side], rows


def _differ(one: pa.RecordBatch, other: pa.RecordBatch) -> pa.BooleanArray:
    """Where two batches of one schema differ in a data column that is quickly compared."""
    mask = pa.repeat(pa.scalar(False), one.num_rows)
    columns = len(one.columns) - len(METADATA_FIELDS)
    for a, b in zip(one.columns[:columns], other.columns[:columns], strict=True):
        if not (pa.types.is_nested(a.type) or a.type.equals(pa.null())):
            differ = pc.not_equal(a, b)
            if differ.null_count:
                differ = pc.coalesce(differ, pc.xor(a.is_null(), b.is_null()))
            mask = pc.or_(mask, differ)
    return mask
