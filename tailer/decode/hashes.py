"""A comparison by value in three steps, for a cluster that moves rows between them.

1. Each task decodes some of the files and gives, of each row, its place and a hash of its values
   (:func:`row_hashes`).
2. Rows with equal hashes come together. What has no partner has changed (:func:`unmatched`).
3. The changed rows are decoded once more, file by file (:func:`difference`).

So only hashes travel, and in blocks: Spark takes longer to move a row of some numbers than the
engine to compare it. A block (:data:`BLOCK`) is what one batch has for one of the labels by which
rows come together. The hash has 128 bits and distinguishes all that a comparison distinguishes;
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

from tailer.decode.comparison import Comparison, files_and_positions, refs_by_file
from tailer.decode.diff import Difference, updates
from tailer.decode.engine import Engine
from tailer.decode.options import DiffOptions
from tailer.decode.row_cache import RowCache
from tailer.decode.stream import COMING, LEAVING, REF_FIELDS, RowStream
from tailer.decode.vectors import bitmap_of, positions_of

__all__ = ["BLOCK", "HASHES", "difference", "row_hashes", "unmatched"]

_VALUE_HASHES = ("h1", "h2")
_KEY_HASHES = ("k1", "k2")

#: What step 1 gives of a row: side, reference, the hash of its values and that of its key (zeros
#: without a key).
HASHES = pa.schema([*REF_FIELDS, *((name, pa.uint64()) for name in (*_VALUE_HASHES, *_KEY_HASHES))])

#: What step 2 gives of a changed row. ``#updated``: a row of the same key is on the other side.
_CHANGED = pa.schema([*REF_FIELDS, ("#updated", pa.bool_())])

#: What Spark moves: a label, and a serialized batch of rows that have it.
BLOCK = pa.schema([("label", pa.int32()), ("rows", pa.binary())])

#: Rows within so many of a file are decoded together in step 3.
_PLACE_BITS = 20


def row_hashes(
    sides: Comparison, key: tuple[str, ...], labels: int, *, paired: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the hashes of the rows of those files that a comparison reads, in blocks; rows of equal
    values (keys, where there is a key) have one of so many ``labels``."""
    pairs = sides.pairs() if paired else {}
    rows = sides.value_rows(pairs, RowCache(0, (False, False)) if pairs else None)
    by = [sides.after.schema.names.index(name) for name in key]
    with Engine(sides.options) as engine:
        for batch in engine.hashes(rows, by):
            hashes = pa.RecordBatch.from_arrays(batch.columns, schema=HASHES)
            yield from _blocks(hashes, hashes["k1" if key else "h1"], labels)


def _blocks(rows: pa.RecordBatch, numbers: pa.Array, labels: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows in blocks; those of equal numbers have one label."""
    count = pa.scalar(labels, numbers.type)
    rest = pc.subtract(numbers, pc.multiply(pc.divide(numbers, count), count)).cast(pa.int32())
    order = pc.array_sort_indices(rest)
    rows, at, found = rows.take(order), 0, []
    counts = sorted((e["values"], e["counts"]) for e in pc.value_counts(rest).to_pylist())
    for _, length in counts:
        found.append(rows.slice(at, length).serialize().to_pybytes())
        at += length
    if found:
        columns = [pa.array([label for label, _ in counts], pa.int32()), pa.array(found)]
        yield pa.RecordBatch.from_arrays(columns, schema=BLOCK)


def _unpacked(blocks: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    serialized = (rows.as_buffer() for batch in blocks for rows in batch.column(1))
    return pa.Table.from_batches(
        (pa.ipc.read_record_batch(buffer, schema) for buffer in serialized), schema
    )


def unmatched(
    blocks: Iterable[pa.RecordBatch], options: DiffOptions, labels: int, *, keyed: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the places of the changed rows among all rows of some labels, in blocks; near places
    of one file have one of so many ``labels``. ``keyed``: their keys pair updates."""
    table = _unpacked(blocks, HASHES)
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
        rows = pa.RecordBatch.from_arrays([sides, places, updated], schema=_CHANGED)
        yield from _blocks(rows, _near(places), labels)


def _near(places: pa.Int64Array) -> pa.Int64Array:
    """Return a number for each place, equal for near places of one file."""
    numbers, positions = files_and_positions(places)
    return pc.add(numbers, pc.shift_right(positions, pa.scalar(_PLACE_BITS, pa.int64())))


def _stream(table: pa.Table, hashes: Sequence[str]) -> RowStream:
    """Return the rows for the engine, with these hashes for their values."""
    chosen = table.select([*(field.name for field in REF_FIELDS), *hashes])
    named = chosen.rename_columns([*(f.name for f in REF_FIELDS), "c0", "c1"])
    return RowStream(named.schema, iter(named.to_batches()))


def _members(table: pa.Table, refs: tuple[BitMap64, BitMap64]) -> pa.ChunkedArray:
    """Return which rows have one of these references, given by side."""
    left, came = (pc.is_in(table["#ref"], value_set=positions_of(some)) for some in refs)
    return pc.if_else(pc.equal(table["#side"], pa.scalar(LEAVING, pa.int8())), left, came)


def difference(blocks: Iterable[pa.RecordBatch]) -> Difference:
    """Return the changed rows that :func:`unmatched` has found, of some labels."""
    table = _unpacked(blocks, _CHANGED)
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
