"""Changed rows that the comparison has decoded already, kept so that no file is read a second time.

Keeping is bounded in bytes and only ever saves time: a file whose changed rows were not all kept is
decoded again. Without row ids nobody knows which rows change until all are compared; but most
writers rewrite a file in its own order, so the file that leaves and the one that comes are read
side by side, and where two rows at one place differ, both are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from tailer.changes import CHANGE_TYPE, METADATA_FIELDS, ChangeFile, Rows
from tailer.decode.equal import differ
from tailer.decode.rows import Skip, given_kinds
from tailer.decode.stream import COMING, LEAVING, PLACED
from tailer.decode.vectors import positions_within

__all__ = ["Decoded", "Keeper", "alike", "kept_rows", "pairable", "settled", "side_by_side"]


@dataclass(frozen=True, slots=True)
class Decoded:
    """Rows of a file: their side, the file's number on that side, and the rows.

    Where the side is ``PLACED``, they leave and come: ``came`` has the number of the file that
    comes, and their positions there.
    """

    side: int
    number: int
    rows: Rows
    came: tuple[int, pa.Int64Array] | None = None


_PAIRED_FILES_MAX = 64
#: Two files that differ in more of their rows than this are not one the rewrite of the other.
_DIFFERENT_MAX = 0.5


class Keeper:
    """The rows that are kept, by side and file; at most ``bytes_max`` of them.

    ``sides`` says of each side whether its rows are of any use later.
    """

    def __init__(self, bytes_max: int, sides: tuple[bool, bool]) -> None:
        self._sides = sides
        self._bytes_left = bytes_max
        self._kept: dict[tuple[int, int], list[Rows]] = {}
        self._dropped: set[tuple[int, int]] = set()

    @property
    def complete(self) -> bool:
        """Whether no file was given up."""
        return not self._dropped

    def restricted(self, sides: tuple[bool, bool]) -> Keeper:
        """The same rows of these sides only."""
        for place in [place for place in self._kept if not sides[place[0]]]:
            self.drop(*place)
        return self

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
    wanted = file.rows or BitMap64()
    found, count = [], 0
    for rows in kept:
        here = _members(rows.positions, wanted)
        if not len(here):
            continue
        count += len(here)
        some = rows
        if len(here) < len(rows.positions):
            some = _where(rows, pc.is_in(rows.positions, value_set=here))
        kinds = given_kinds(file, here, here[0].as_py(), here[-1].as_py() + 1)
        at = some.batch.num_columns - len(METADATA_FIELDS)
        batch = some.batch.set_column(at, pa.field(CHANGE_TYPE, pa.string()), kinds)
        found.append(Rows(batch, here, some.row_ids))
    return tuple(found) if count == len(wanted) else None


def _members(positions: pa.Int64Array, wanted: BitMap64) -> pa.Int64Array:
    """Which of these positions are wanted; they are in ascending order."""
    here = positions_within(wanted, positions[0].as_py(), positions[-1].as_py() + 1)
    return here if here.equals(positions) else positions.filter(pc.is_in(positions, value_set=here))


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
    count = int(min(one.batch.num_rows, other.batch.num_rows))
    _, different = _differ(one, other, count)
    return 1.0 - different / count


def side_by_side(
    left: tuple[int, Iterator[Rows]], came: tuple[int, Iterator[Rows]], keeper: Keeper
) -> Iterator[Decoded]:
    """The rows of two files: of rows that are equal at one place those that leave, as
    :data:`~tailer.decode.engine.PLACED`; all others as they are, and into the keeper too."""
    sides = (LEAVING, COMING)
    numbers, streams = (left[0], came[0]), (left[1], came[1])
    rest: list[Rows | None] = [None, None]
    seen = different = 0
    while different <= seen * _DIFFERENT_MAX:
        for side in sides:
            if rest[side] is None:
                rest[side] = next(streams[side], None)
        one, other = rest
        if one is None or other is None:
            break
        count = min(one.batch.num_rows, other.batch.num_rows)
        mask, found = _differ(one, other, count)
        seen, different = seen + count, different + found
        if found < count:
            same, there = _where(one, pc.invert(mask)), _where(other, pc.invert(mask))
            yield Decoded(PLACED, numbers[0], same, (numbers[1], there.positions))
        for side, rows in zip(sides, (one, other), strict=True):
            if found:
                changed = _where(rows, mask)
                keeper.add(side, numbers[side], changed)
                yield Decoded(side, numbers[side], changed)
            rest[side] = rows.slice(count) if count < rows.batch.num_rows else None
    alike_so_far = different <= seen * _DIFFERENT_MAX
    for side in sides:
        last = rest[side]
        for rows in chain([] if last is None else [last], streams[side]):
            if alike_so_far:
                keeper.add(side, numbers[side], rows)
            else:
                keeper.drop(side, numbers[side])
            yield Decoded(side, numbers[side], rows)


def _where(rows: Rows, mask: pa.BooleanArray) -> Rows:
    """Those of the first rows that the mask tells."""
    ids = None if rows.row_ids is None else rows.row_ids.slice(0, len(mask)).filter(mask)
    batch = rows.batch.slice(0, len(mask)).filter(mask)
    return Rows(batch, rows.positions.slice(0, len(mask)).filter(mask), ids)


def _differ(one: Rows, other: Rows, count: int) -> tuple[pa.BooleanArray, int]:
    """Which of the first ``count`` rows differ in their data, and how many."""
    a, b = (r.batch.slice(0, count).columns[: -len(METADATA_FIELDS)] for r in (one, other))
    return differ(a, b, count)
