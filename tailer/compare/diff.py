"""What really changed in a version that rewrites files: the rows that survive a comparison.

A rewritten file holds mostly rows that were there before. There are two ways to find the others:

* **Row ids** (:func:`compare_by_row_ids`): a row whose id and row commit version both leave and
  come was only copied; a row with another commit version was updated. Only the two tracking columns
  are read.
* **Cancel-out** (:func:`compare_by_value`): rows that leave and rows that come are cancelled as
  multisets, over all columns. NaN equals NaN, -0.0 equals 0.0, null equals null, maps have no
  order. Rows are compared by 128 bits of hash, or by values where hashes would not distinguish all
  of them.

Both ways give a set of row positions for each file, so the changed rows are then decoded like any
other rows; there is no second decoder. Among equal rows, the one in the lowest file and position is
kept, so that every run gives the same result.

The engine (:mod:`tailer.compare.engine`) groups out of core, so memory stays bounded whatever the
size of the commit.

For example, a file with the rows ``1 a``, ``2 b`` and ``3 c`` is rewritten as ``1 a``, ``2 B`` and
``3 c``. By row ids, the row at position 1 of both files is an update. By value, ``1 a`` and ``3 c``
cancel out, and the row at position 1 is a delete and an insert: an update if the feed has a key.

What must never happen: a row that was only copied is a change; a change cancels out because two
hashes are equal; which of two equal rows is kept depends on threads or on the order of files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import structs
from pyroaring import BitMap64

from tailer.changes import METADATA_FIELDS, ChangeFile, DecodedRows, Origin
from tailer.compare.comparison import Comparison, build_file_refs, group_refs_by_file
from tailer.compare.engine import Engine
from tailer.compare.equal_rows import find_differing_rows
from tailer.compare.idsets import ManyVersions, find_changed_ids
from tailer.compare.row_cache import RowCache, find_cached_rows
from tailer.compare.stream import COMING, LEAVING, RowStream, has_map
from tailer.compare.unmatched import Unmatched, find_unmatched
from tailer.decode.options import Bucket
from tailer.decode.output import build_output_schema
from tailer.decode.variant import canonicalize_variants
from tailer.decode.vectors import build_bitmap
from tailer.errors import CorruptRow
from tailer.plan.rules import Rewrite

#: The rows of one side, by the number of their file.
_Kept = Mapping[int, Sequence[DecodedRows]]

_ROWS_AT_ONCE = 65_536


@dataclass(slots=True)
class Difference:
    """The changed rows of each file of the plan, by its number; and which of them are updates.

    ``noops`` counts the rows that were rewritten as updates with equal values. ``kept_leaving``
    and ``kept_coming`` hold rows that were decoded on the way; they may lack some changed rows, and
    may hold other rows too.
    """

    leaving: dict[int, BitMap64] = field(default_factory=dict)
    coming: dict[int, BitMap64] = field(default_factory=dict)
    updated_leaving: dict[int, BitMap64] = field(default_factory=dict)
    updated_coming: dict[int, BitMap64] = field(default_factory=dict)
    noops: int = 0
    kept_leaving: dict[int, list[DecodedRows]] = field(default_factory=dict)
    kept_coming: dict[int, list[DecodedRows]] = field(default_factory=dict)


def compare_by_value(sides: Comparison, key: tuple[str, ...] = ()) -> Difference:
    """Cancel out the rows that leave and the rows that come.

    ``key`` names the columns that pair the remaining rows into updates. Raises :class:`CorruptRow`
    if rows that leave can't be read in the later schema.
    """
    options, rewritten = sides.options, sides.match_rewritten()
    cache = RowCache(options.keep_bytes_max, sides.find_reusable_sides())
    difference = Difference()
    with Engine(options) as engine:
        result = find_unmatched(
            engine, lambda: sides.stream_values(rewritten, cache if rewritten else None)
        )
        if result.doubtful_leaving:
            # Rows at one place of two files were taken for partners. Some of their value have none,
            # so these rows are compared a second time, all together and without regard to places.
            doubtful = (
                group_refs_by_file(result.doubtful_leaving),
                group_refs_by_file(result.doubtful_coming),
            )
            again = find_unmatched(engine, sides.restrict_to(doubtful).stream_values)
            result.leaving = result.leaving - result.doubtful_leaving | again.leaving
            result.coming = result.coming - result.doubtful_coming | again.coming
        difference.leaving = group_refs_by_file(result.leaving)
        difference.coming = group_refs_by_file(result.coming)
        difference.kept_leaving, difference.kept_coming = (
            cache.select_side(LEAVING),
            cache.select_side(COMING),
        )
        if key and result.leaving and result.coming:
            keys = sides.restrict_to((difference.leaving, difference.coming), key)
            left, came = find_updates(engine, result, keys.stream_values)
            difference.updated_leaving = group_refs_by_file(left)
            difference.updated_coming = group_refs_by_file(came)
    return difference


def find_updates(
    engine: Engine, result: Unmatched, keys: Callable[[], RowStream]
) -> tuple[BitMap64, BitMap64]:
    """Return, by side, which of the changed rows have a partner of their key. ``keys`` are their
    keys with their references."""
    alone = find_unmatched(engine, keys)
    return result.leaving - alone.leaving, result.coming - alone.coming


def compare_by_row_ids(sides: Comparison) -> Difference | None:
    """Find kept, updated, deleted and inserted rows by their ids and commit versions.

    Updates whose two images are equal are dropped and counted; images that don't fit the later
    schema are not equal. None if an id occurs twice on one side, which no valid writer produces:
    then rows must be compared by value.
    """
    changed = _find_changed_ids(sides)
    if changed is None:
        return None
    changed = _select_bucket(changed, sides.options.bucket)
    updated, cache = _select_updated(changed), None
    noops = pa.array([], pa.int64())
    if updated.num_rows:
        try:
            cache, noops = _find_noops(_restrict_to_updated_files(sides, changed, updated), updated)
        except CorruptRow:
            if all(file.state == sides.after for file in sides.leaving):
                raise
    if len(noops):
        changed = changed.filter(pc.invert(pc.is_in(changed["row_id"], value_set=noops)))
        updated = _select_updated(changed)
    left, came = _group_positions(changed)
    updated_left, updated_came = _group_positions(updated)
    kept_left, kept_came = (
        {} if cache is None else cache.select_side(s) for s in (LEAVING, COMING)
    )
    return Difference(left, came, updated_left, updated_came, len(noops), kept_left, kept_came)


def _select_bucket(changed: pa.Table, bucket: Bucket | None) -> pa.Table:
    """Return the changed rows of one bucket."""
    if bucket is None:
        return changed
    first, end = (changed.num_rows * n // bucket.of for n in (bucket.number, bucket.number + 1))
    return changed.sort_by("row_id").slice(first, end - first).combine_chunks()


def _find_changed_ids(sides: Comparison) -> pa.Table | None:
    try:
        return find_changed_ids(sides.read_tracked, sides.options.keep_bytes_max)
    except ManyVersions:
        with Engine(sides.options) as engine:
            return engine.find_changed_ids(sides.stream_tracked)


class _Noops(NamedTuple):
    """The ids of updated rows whose images are equal, and a cache with output rows."""

    cache: RowCache
    ids: pa.Int64Array


def _find_noops(narrow: Comparison, updated: pa.Table) -> _Noops:
    """Find the updated rows whose images are equal.

    They are compared in memory where all of them can be kept.
    """
    bytes_max = narrow.options.keep_bytes_max
    if not any(has_map(f.type) for f in build_output_schema(narrow.after)):
        images = RowCache(bytes_max, (True, True))
        with closing(narrow.decode_files(cache=images)) as decoded:
            while images.complete and next(decoded, None) is not None:
                pass
        if images.complete:
            noops = _find_equal_images(
                images.select_side(LEAVING), images.select_side(COMING), updated
            )
            if noops is not None:
                return _Noops(images.keep_sides(narrow.find_reusable_sides()), noops)
    cache = RowCache(bytes_max, narrow.find_reusable_sides())
    with Engine(narrow.options) as engine:
        noops = engine.find_equal_images(lambda: narrow.stream_values(cache=cache), updated)
        return _Noops(cache, noops)


def _select_updated(changed: pa.Table) -> pa.Table:
    """Return the rows that left and came."""
    return changed.filter(pc.and_(changed["left"].is_valid(), changed["came"].is_valid()))


def _restrict_to_updated_files(
    sides: Comparison, changed: pa.Table, updated: pa.Table
) -> Comparison:
    """Return all changed rows of the files with updated rows: decoding them costs the same."""
    left, came = (
        {number: every[number] for number in chosen}
        for every, chosen in zip(_group_positions(changed), _group_positions(updated), strict=True)
    )
    return sides.restrict_to((left, came))


def _group_positions(rows: pa.Table) -> tuple[dict[int, BitMap64], dict[int, BitMap64]]:
    """Return the positions by file of rows that leave, and of rows that come."""
    left, came = (
        group_refs_by_file(build_bitmap(rows[name].drop_null().combine_chunks()))
        for name in ("left", "came")
    )
    return left, came


def build_changed_files(
    rewrite: Rewrite, difference: Difference, origin: Origin
) -> list[ChangeFile]:
    """Return the change files of a derived version: only the changed rows of each file."""
    d, files_changed = difference, []
    for files, changed, updated, kept_rows in (
        (rewrite.leaving, d.leaving, d.updated_leaving, d.kept_leaving),
        (rewrite.coming, d.coming, d.updated_coming, d.kept_coming),
    ):
        for number, file in enumerate(files):
            if number in changed:
                changed_file = structs.replace(
                    file, origin=origin, rows=changed[number], updated=updated.get(number)
                )
                files_changed.append(
                    structs.replace(
                        changed_file, kept=find_cached_rows(changed_file, kept_rows.pop(number, ()))
                    )
                )
    return files_changed


class _SideRows(NamedTuple):
    refs: pa.Int64Array
    columns: list[pa.Array]


def _find_equal_images(left: _Kept, came: _Kept, updated: pa.Table) -> pa.Int64Array | None:
    """Return the ids of the updated rows (``row_id``, ``left``, ``came``) with two equal images.

    Rows with maps are not supported: maps have no order. None if a row is missing on its side.
    """
    sides = [_join_rows(kept) for kept in (left, came)]
    found = [
        pc.index_in(updated[name].combine_chunks(), value_set=refs)
        for name, (refs, _) in zip(("left", "came"), sides, strict=True)
    ]
    if any(indices.null_count for indices in found):
        return None
    ids, equal = updated["row_id"].combine_chunks(), [pa.array([], pa.int64())]
    for first in range(0, len(ids), _ROWS_AT_ONCE):
        rows = ids.slice(first, _ROWS_AT_ONCE)
        one, other = (
            [
                canonicalize_variants(column.take(indices.slice(first, _ROWS_AT_ONCE)))
                for column in columns
            ]
            for indices, (_, columns) in zip(found, sides, strict=True)
        )
        mask, count = find_differing_rows(one, other, len(rows))
        if count < len(rows):
            equal.append(rows.filter(pc.invert(mask)))
    return pa.concat_arrays(equal)


def _join_rows(kept: _Kept) -> _SideRows:
    """Return the references of all rows, and their data columns in the same order."""
    refs, batches = [pa.array([], pa.int64())], []
    for number, many in kept.items():
        refs += [build_file_refs(number, rows.positions) for rows in many]
        batches += [rows.batch for rows in many]
    columns = [batch.columns[: -len(METADATA_FIELDS)] for batch in batches]
    arrays = [pa.concat_arrays(parts) for parts in zip(*columns, strict=True)]
    return _SideRows(pa.concat_arrays(refs), arrays)
