"""Which row ids leave and which come, as bitmaps: ids are dense, so each takes about a bit.

A row is kept if it leaves and comes with the same commit version; every other row is changed. For a
version whose rows have very many commit versions this would be slow: then the engine groups them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from tailer.compare.stream import COMING, LEAVING
from tailer.decode.vectors import build_bitmap, list_positions, positions_within

#: The columns of changed rows; ``left`` and ``came`` are references, null on the other side.
CHANGED = pa.schema([("row_id", pa.int64()), ("left", pa.int64()), ("came", pa.int64())])

#: Side, references, and a batch with ``row_id`` and ``row_commit_version``.
Tracked = Callable[[], Iterator[tuple[int, pa.Int64Array, pa.RecordBatch]]]

_VERSIONS_MAX = 64
_LONG_MAX = 2**63 - 1


class ManyVersions(Exception):
    """The rows have too many commit versions for one bitmap each."""


def find_changed_ids(tracked: Tracked, keep_bytes_max: int = 0) -> pa.Table | None:
    """Return the rows that are not kept, as :data:`CHANGED`; updated rows have both references.

    They are read twice, unless all ids fit into ``keep_bytes_max``: runs of ids take almost no
    memory. None if an id occurs twice on one side. Raises :class:`ManyVersions`.
    """
    memory = _Memory(keep_bytes_max)
    sets = _collect_by_version(tracked, memory)
    if sets is None:
        return None
    changed = [BitMap64(), BitMap64()]
    for version in sets[LEAVING].keys() | sets[COMING].keys():
        left, came = (sets[side].get(version, BitMap64()) for side in (LEAVING, COMING))
        changed[LEAVING] |= left - came
        changed[COMING] |= came - left
    return _find_references(memory.read_batches(tracked), changed)


@dataclass(frozen=True, slots=True)
class _Run:
    """Consecutive numbers, each one more than the number before it."""

    first: int
    count: int

    @classmethod
    def from_numbers(cls, numbers: pa.Int64Array) -> _Run | None:
        """Return these numbers as a run if they are one."""
        count = len(numbers)
        first = int(numbers[0].as_py()) if count else 0
        if not 0 <= first <= _LONG_MAX - count:  # not a valid id, but a file can hold it
            return None
        if count and numbers[-1].as_py() - first != count - 1:
            return None
        return cls(first, count) if numbers.equals(pa.arange(first, first + count)) else None


class _Memory:
    """References and ids of all rows, as long as they fit into a number of bytes."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_left = bytes_max
        self._kept: list[tuple[int, list[_Run | pa.Int64Array]]] | None = []

    def add_ids(self, side: int, refs: pa.Int64Array, ids: pa.Int64Array) -> None:
        if self._kept is None:
            return
        columns = [_Run.from_numbers(numbers) or numbers for numbers in (refs, ids)]
        self._bytes_left -= sum(c.nbytes for c in columns if not isinstance(c, _Run))
        self._kept.append((side, columns))
        if self._bytes_left < 0:
            self._kept = None

    def read_batches(self, tracked: Tracked) -> Iterator[tuple[int, pa.Int64Array, pa.Int64Array]]:
        """Yield side, references and ids again, read from the files if they are not all in
        memory."""
        if self._kept is None:
            yield from ((side, refs, batch.column("row_id")) for side, refs, batch in tracked())
        for side, columns in self._kept or ():
            refs, ids = (
                pa.arange(c.first, c.first + c.count) if isinstance(c, _Run) else c for c in columns
            )
            yield side, refs, ids


def _collect_by_version(
    tracked: Tracked, memory: _Memory
) -> tuple[dict[int, BitMap64], dict[int, BitMap64]] | None:
    """Return the ids by commit version of each side; None if there are fewer ids than rows."""
    sets: tuple[dict[int, BitMap64], dict[int, BitMap64]] = ({}, {})
    rows = [0, 0]
    for side, refs, batch in tracked():
        rows[side] += batch.num_rows
        ids, versions = batch.column("row_id"), batch.column("row_commit_version")
        memory.add_ids(side, refs, ids)
        for version, same in _split_by_version(ids, versions):
            sets[side].setdefault(version, BitMap64()).update(same)
        if len(sets[side]) > _VERSIONS_MAX:
            raise ManyVersions
    for side in (LEAVING, COMING):
        every = BitMap64()
        for ids in sets[side].values():
            every |= ids
        if len(every) < rows[side]:
            return None
    return sets


def _split_by_version(ids: pa.Int64Array, versions: pa.Int64Array) -> list[tuple[int, BitMap64]]:
    """Split the ids by version. Most rows have the same version: only the others are picked."""
    bounds = pc.min_max(versions)
    if bounds["min"] == bounds["max"]:
        return [(bounds["min"].as_py(), _build_set(ids))] if len(ids) else []
    counts = {entry["values"]: entry["counts"] for entry in versions.value_counts().to_pylist()}
    usual = max(counts, key=lambda version: counts[version])
    rest, sets = _build_set(ids), []
    for version in counts.keys() - {usual}:
        members = build_bitmap(ids.filter(pc.equal(versions, version)))
        rest -= members
        sets.append((version, members))
    return [*sets, (usual, rest)]


def _build_set(ids: pa.Int64Array) -> BitMap64:
    run = _Run.from_numbers(ids)
    return build_bitmap(ids) if run is None else BitMap64(range(run.first, run.first + run.count))


def _find_wanted(ids: pa.Int64Array, wanted: BitMap64) -> pa.Array:
    """Return the indices of the wanted ids."""
    run = _Run.from_numbers(ids)
    if run is not None:
        common = positions_within(wanted, run.first, run.first + run.count)
        return pc.subtract(common, pa.scalar(run.first, pa.int64()))
    common = list_positions(build_bitmap(ids) & wanted)
    return pc.indices_nonzero(pc.is_in(ids, value_set=common)) if len(common) else common


def _find_references(
    rows: Iterator[tuple[int, pa.Int64Array, pa.Int64Array]], changed: list[BitMap64]
) -> pa.Table:
    """Return the changed ids with their references, which are looked up in a second pass."""
    tables_by_side: list[list[pa.Table]] = [[], []]
    for side, refs, ids in rows:
        at = _find_wanted(ids, changed[side])
        if len(at):
            columns = [ids.take(at), refs.take(at)]
            tables_by_side[side].append(pa.table(columns, names=["row_id", "ref"]))
    empty = pa.schema(list(CHANGED)[:2]).empty_table().rename_columns(["row_id", "ref"])
    left, came = (pa.concat_tables([empty, *tables]).sort_by("row_id") for tables in tables_by_side)
    both = list_positions(changed[LEAVING] & changed[COMING])
    in_left, in_came = (pc.is_in(t["row_id"], value_set=both) for t in (left, came))
    updated_left, updated_came = left.filter(in_left), came.filter(in_came)
    deleted, inserted = left.filter(pc.invert(in_left)), came.filter(pc.invert(in_came))

    def part(ids: pa.Table, left: pa.Table | None, came: pa.Table | None) -> pa.Table:
        refs = [
            pa.nulls(ids.num_rows, pa.int64()) if side is None else side["ref"]
            for side in (left, came)
        ]
        return pa.table([ids["row_id"], *refs], schema=CHANGED)

    return pa.concat_tables(
        [
            part(updated_left, updated_left, updated_came),
            part(deleted, deleted, None),
            part(inserted, None, inserted),
        ]
    ).combine_chunks()
