"""Updates whose two images are equal, found among rows that are kept in memory anyway."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tailer.changes import METADATA_FIELDS, Rows
from tailer.compare.comparison import build_file_refs
from tailer.compare.equal_rows import find_differing_rows
from tailer.decode.variant import canonicalize_variants

#: The rows of one side, by the number of their file.
Kept = Mapping[int, Sequence[Rows]]

_ROWS_AT_ONCE = 65_536


class _SideRows(NamedTuple):
    refs: pa.Int64Array
    columns: list[pa.Array]


def find_equal_images(left: Kept, came: Kept, updated: pa.Table) -> pa.Int64Array | None:
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


def _join_rows(kept: Kept) -> _SideRows:
    """Return the references of all rows, and their data columns in the same order."""
    refs, batches = [pa.array([], pa.int64())], []
    for number, many in kept.items():
        refs += [build_file_refs(number, rows.positions) for rows in many]
        batches += [rows.batch for rows in many]
    columns = [batch.columns[: -len(METADATA_FIELDS)] for batch in batches]
    arrays = [pa.concat_arrays(parts) for parts in zip(*columns, strict=True)]
    return _SideRows(pa.concat_arrays(refs), arrays)
