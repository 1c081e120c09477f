"""Which row ids leave and which come, as bitmaps: ids are dense, so each takes about a bit.

Kept is what both leaves and comes with one commit version; everything else changed. Where a version
has rows of very many commit versions this would be slow, and the engine groups instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from tailer.decode.stream import COMING, LEAVING
from tailer.decode.vectors import bitmap_of, positions_of

__all__ = ["CHANGED", "ManyVersions", "changed_ids"]

#: Tells the columns of what changed; ``left`` and ``came`` are references, null on the other side.
CHANGED = pa.schema([("row_id", pa.int64()), ("left", pa.int64()), ("came", pa.int64())])

#: Side, references, and a batch with ``row_id`` and ``row_commit_version``.
Tracked = Callable[[], Iterator[tuple[int, pa.Int64Array, pa.RecordBatch]]]

_VERSIONS_MAX = 64


class ManyVersions(Exception):
    """The rows have too many commit versions for one bitmap each."""


def changed_ids(tracked: Tracked) -> pa.Table | None:
    """The rows that are not kept, by :data:`CHANGED`; updated ones have both references.

    None if an id is there twice on one side. Raises :class:`ManyVersions`.
    """
    sets = _by_version(tracked)
    if sets is None:
        return None
    changed = [BitMap64(), BitMap64()]
    for version in sets[LEAVING].keys() | sets[COMING].keys():
        left, came = (sets[side].get(version, BitMap64()) for side in (LEAVING, COMING))
        changed[LEAVING] |= left - came
        changed[COMING] |= came - left
    return _referenced(tracked, changed)


def _by_version(tracked: Tracked) -> tuple[dict[int, BitMap64], dict[int, BitMap64]] | None:
    """Of each side the ids by commit version; None if there are fewer than rows."""
    sets: tuple[dict[int, BitMap64], dict[int, BitMap64]] = ({}, {})
    rows = [0, 0]
    for side, _, batch in tracked():
        rows[side] += batch.num_rows
        ids, versions = batch.column("row_id"), batch.column("row_commit_version")
        distinct = versions.unique().to_pylist()
        for version in distinct:
            same = ids if len(distinct) == 1 else ids.filter(pc.equal(versions, version))
            sets[side].setdefault(version, BitMap64()).update(bitmap_of(same))
        if len(sets[side]) > _VERSIONS_MAX:
            raise ManyVersions
    for side in (LEAVING, COMING):
        every = BitMap64()
        for ids in sets[side].values():
            every |= ids
        if len(every) < rows[side]:
            return None
    return sets


def _referenced(tracked: Tracked, changed: list[BitMap64]) -> pa.Table:
    """The changed ids with their references, which are looked up in a second pass."""
    found: list[list[pa.Table]] = [[], []]
    for side, refs, batch in tracked():
        ids = batch.column("row_id")
        wanted = bitmap_of(ids) & changed[side]
        if wanted:
            mask = pc.is_in(ids, value_set=positions_of(wanted))
            columns = [ids.filter(mask), refs.filter(mask)]
            found[side].append(pa.table(columns, names=["row_id", "ref"]))
    empty = pa.schema(list(CHANGED)[:2]).empty_table().rename_columns(["row_id", "ref"])
    left, came = (pa.concat_tables([empty, *tables]).sort_by("row_id") for tables in found)
    both = positions_of(changed[LEAVING] & changed[COMING])
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
