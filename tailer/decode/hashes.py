"""A comparison by value in three steps, for a cluster that moves rows between them.

1. Each task decodes some of the files and gives, of each row, its place and a hash of its values
   (:func:`row_hashes`).
2. Rows with equal hashes come together. What has no partner has changed (:func:`unmatched`).
3. The changed rows are decoded once more, file by file (:func:`difference`).

So only hashes travel. The hash has 128 bits and distinguishes all that a comparison distinguishes;
columns that it can't represent are not compared in this way
(:func:`tailer.decode.stream.is_hashable_type`). Rows that are equal at one place of a file that
leaves and of one that comes, in one task, are partners already and don't travel at all. Then a row
without a partner may not be the first of its value, as it otherwise is; so ``paired`` is for those
who do not see places.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from tailer.decode.comparison import Comparison, refs_by_file
from tailer.decode.diff import Difference, updates
from tailer.decode.engine import Engine
from tailer.decode.options import DiffOptions
from tailer.decode.row_cache import RowCache
from tailer.decode.stream import COMING, LEAVING, REF_FIELDS, RowStream
from tailer.decode.vectors import bitmap_of, positions_of

__all__ = ["CHANGED", "HASHES", "difference", "row_hashes", "unmatched"]

_VALUE_HASHES = ("h1", "h2")
_KEY_HASHES = ("k1", "k2")

#: What step 1 gives of a row: side, reference, the hash of its values and that of its key (zeros
#: without a key).
HASHES = pa.schema([*REF_FIELDS, *((name, pa.int64()) for name in (*_VALUE_HASHES, *_KEY_HASHES))])

#: What step 2 gives of a changed row. ``#updated``: a row of the same key is on the other side.
CHANGED = pa.schema([*REF_FIELDS, ("#updated", pa.bool_())])


def row_hashes(
    sides: Comparison, key: tuple[str, ...], *, paired: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of those files that a comparison reads, as :data:`HASHES`."""
    pairs = sides.pairs() if paired else {}
    rows = sides.value_rows(pairs, RowCache(0, (False, False)) if pairs else None)
    by = [sides.after.schema.names.index(name) for name in key]
    with Engine(sides.options) as engine:
        for batch in engine.hashes(rows, by):
            places, hashes = batch.columns[:2], batch.columns[2:]
            signed = [column.view(pa.int64()) for column in hashes]
            yield pa.RecordBatch.from_arrays([*places, *signed], schema=HASHES)


def unmatched(
    batches: Iterable[pa.RecordBatch], options: DiffOptions, *, keyed: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the changed rows, as :data:`CHANGED`, among all rows of some values; ``keyed``: among
    all rows of some keys."""
    table = pa.Table.from_batches(batches, HASHES)
    if not table.num_rows:
        return
    with Engine(options) as engine:
        found = engine.unmatched(lambda: _stream(table, _VALUE_HASHES))
        changed, paired = (found.leaving, found.coming), (BitMap64(), BitMap64())
        if keyed and all(changed):
            some = table.filter(_members(table, changed))
            paired = updates(engine, found, lambda: _stream(some, _KEY_HASHES))
    for side, refs, partners in zip((LEAVING, COMING), changed, paired, strict=True):
        places = positions_of(refs)
        updated = pc.is_in(places, value_set=positions_of(partners))
        sides = pa.repeat(pa.scalar(side, pa.int8()), len(places))
        yield pa.RecordBatch.from_arrays([sides, places, updated], schema=CHANGED)


def _stream(table: pa.Table, hashes: Sequence[str]) -> RowStream:
    """Return the rows for the engine, with these hashes for their values."""
    chosen = table.select([*(field.name for field in REF_FIELDS), *hashes])
    named = chosen.rename_columns([*(f.name for f in REF_FIELDS), "c0", "c1"])
    return RowStream(named.schema, iter(named.to_batches()))


def _members(table: pa.Table, refs: tuple[BitMap64, BitMap64]) -> pa.ChunkedArray:
    """Return which rows have one of these references, given by side."""
    left, came = (pc.is_in(table["#ref"], value_set=positions_of(some)) for some in refs)
    return pc.if_else(pc.equal(table["#side"], pa.scalar(LEAVING, pa.int8())), left, came)


def difference(batches: Iterable[pa.RecordBatch]) -> Difference:
    """Return the changed rows that :func:`unmatched` has found, of some files or of all."""
    table = pa.Table.from_batches(batches, CHANGED)
    found = Difference()
    for side, changed, updated in (
        (LEAVING, found.leaving, found.updated_leaving),
        (COMING, found.coming, found.updated_coming),
    ):
        rows = table.filter(pc.equal(table["#side"], pa.scalar(side, pa.int8())))
        changed.update(_by_file(rows))
        updated.update(_by_file(rows.filter(rows["#updated"])))
    return found


def _by_file(rows: pa.Table) -> dict[int, BitMap64]:
    return refs_by_file(bitmap_of(rows["#ref"].combine_chunks()))
