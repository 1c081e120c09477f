"""What really changed in a version that rewrites files: the rows that survive a comparison.

A rewritten file holds mostly rows that were there before. Two ways tell them apart:

* **Row ids** (:func:`by_row_ids`): a row whose id and row commit version both leave and come was
  only copied; one whose commit version differs was updated. Only the two tracking columns are read.
* **Cancel-out** (:func:`by_value`): rows that leave and rows that come are cancelled as multisets,
  over all columns. NaN equals NaN, -0.0 equals 0.0, null equals null, maps have no order. What is
  compared is 128 bits of hash, or values where hashes would not tell all of them apart.

Either way the result is a set of row positions for each file, so the changed rows are then decoded
as any others are; there is no second decoder. Among equal rows the one in the lowest file and
position stays, so that the result is the same on every run.

The engine (:mod:`tailer.decode.engine`) groups out of core, so memory stays bounded whatever the
size of the commit.
"""

from __future__ import annotations

import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from tailer.changes import METADATA_FIELDS, ChangeFile
from tailer.decode.engine import COMING, LEAVING, REF_FIELDS, DiffOptions, Engine, RowStream
from tailer.decode.rows import DecodeOptions, Skip, decode_file, output_schema
from tailer.decode.tracking import TRACKED, tracked_rows
from tailer.decode.variant import canonical_variants
from tailer.decode.vectors import RowSelection
from tailer.delta.snapshot import TableState

__all__ = ["DiffOptions", "Difference", "OpenFile", "by_row_ids", "by_value"]

#: Opens a file of the plan: its bytes and the rows of it that are meant. Called in the same thread.
OpenFile = Callable[[ChangeFile], tuple[pa.NativeFile, RowSelection]]

#: A row's reference in the engine: file number and position in one 64-bit integer.
_POSITION_BITS = 40
_POSITION_MASK = (1 << _POSITION_BITS) - 1


@dataclass(slots=True)
class Difference:
    """The changed rows of each file of the plan, by its number; and which of them are updates.

    ``noops`` counts the rows that were rewritten as updates, with equal values.
    """

    leaving: dict[int, BitMap64] = field(default_factory=dict)
    coming: dict[int, BitMap64] = field(default_factory=dict)
    updated_leaving: dict[int, BitMap64] = field(default_factory=dict)
    updated_coming: dict[int, BitMap64] = field(default_factory=dict)
    noops: int = 0


@dataclass(frozen=True, slots=True)
class _Sides:
    """The files of both sides, and how their rows are read for the comparison."""

    leaving: Sequence[ChangeFile]
    coming: Sequence[ChangeFile]
    open_file: OpenFile
    decode: DecodeOptions

    def files(self) -> Iterator[tuple[int, int, ChangeFile]]:
        for side, files in ((LEAVING, self.leaving), (COMING, self.coming)):
            for number, file in enumerate(files):
                yield side, number, file


def by_value(
    leaving: Sequence[ChangeFile],
    coming: Sequence[ChangeFile],
    after: TableState,
    open_file: OpenFile,
    decode: DecodeOptions,
    options: DiffOptions,
    key: Sequence[str] = (),
) -> Difference:
    """Cancel out the rows that leave and the rows that come, compared in the later schema.

    ``key`` names columns that pair what is left into updates. Raises :class:`CorruptRow` where
    rows that leave can't be read in the later schema.
    """
    sides = _Sides(leaving, coming, open_file, replace(decode, target=after, columns=None))
    difference = Difference()
    with Engine(options) as engine:
        left, came = engine.unmatched(lambda: _value_rows(sides, after))
        difference.leaving, difference.coming = _bitmaps(left), _bitmaps(came)
        if key and len(left) and len(came):
            survivors = _restricted(sides, difference.leaving, difference.coming)
            narrow = replace(survivors, decode=replace(survivors.decode, columns=tuple(key)))
            alone_left, alone_came = engine.unmatched(
                lambda: _value_rows(narrow, after, tuple(key))
            )
            difference.updated_leaving = _without(difference.leaving, _bitmaps(alone_left))
            difference.updated_coming = _without(difference.coming, _bitmaps(alone_came))
    return difference


def by_row_ids(
    leaving: Sequence[ChangeFile],
    coming: Sequence[ChangeFile],
    after: TableState,
    open_file: OpenFile,
    decode: DecodeOptions,
    options: DiffOptions,
) -> Difference | None:
    """Tell kept, updated, deleted and inserted rows by their ids and commit versions.

    Updates whose two images are equal are dropped and counted. None if an id is there twice on one
    side, which no valid writer makes: then only values tell.
    """
    sides = _Sides(leaving, coming, open_file, replace(decode, target=after, columns=None))
    with Engine(options) as engine:
        changed = engine.changed_ids(lambda: _tracked(sides))
        if changed is None:
            return None
        left, came = changed["left"], changed["came"]
        both = pc.and_(left.is_valid(), came.is_valid())
        updated = changed.filter(both)
        noops: set[int] = set()
        if updated.num_rows:
            narrow = _restricted(sides, _bitmaps(updated["left"]), _bitmaps(updated["came"]))
            equal = engine.equal_images(lambda: _value_rows(narrow, after), updated)
            noops = set(equal.to_pylist())
        if noops:
            keep = pc.invert(pc.is_in(changed["row_id"], value_set=equal))
            changed, updated = (
                changed.filter(keep),
                updated.filter(pc.invert(pc.is_in(updated["row_id"], value_set=equal))),
            )
    return Difference(
        _bitmaps(changed["left"].drop_null()),
        _bitmaps(changed["came"].drop_null()),
        _bitmaps(updated["left"]),
        _bitmaps(updated["came"]),
        len(noops),
    )


def _restricted(sides: _Sides, leaving: dict[int, BitMap64], coming: dict[int, BitMap64]) -> _Sides:
    """The same files with only these rows, for a second look at few rows."""

    def only(file: ChangeFile) -> tuple[pa.NativeFile, RowSelection]:
        side, number = places[id(file)]
        source, _ = sides.open_file(file)
        wanted = (leaving if side == LEAVING else coming).get(number)
        return source, RowSelection.of(wanted or BitMap64(), None)

    places = {id(file): (side, number) for side, number, file in sides.files()}
    return replace(sides, open_file=only)


def _refs(side: int, number: int, positions: pa.Array) -> list[pa.Array]:
    base = pa.scalar(number << _POSITION_BITS, pa.int64())
    return [pa.repeat(pa.scalar(side, pa.int8()), len(positions)), pc.add(positions, base)]


def _value_rows(
    sides: _Sides, after: TableState, columns: tuple[str, ...] | None = None
) -> RowStream:
    """All rows of both sides, with their references."""
    data = list(output_schema(after, columns))[: -len(METADATA_FIELDS)]
    # Columns go by number: two names of a table may differ by their case alone, or be reserved.
    schema = pa.schema([*REF_FIELDS, *(pa.field(f"c{i}", f.type) for i, f in enumerate(data))])

    def batches() -> Iterator[pa.RecordBatch]:
        for side, number, file in sides.files():
            source, selection = sides.open_file(file)
            with source:
                for rows in decode_file(source, file, selection, sides.decode, Skip()):
                    values = [canonical_variants(c) for c in rows.batch.columns[: len(data)]]
                    yield pa.RecordBatch.from_arrays(
                        [*_refs(side, number, rows.positions), *values], schema=schema
                    )

    return RowStream(schema, batches())


def _tracked(sides: _Sides) -> RowStream:
    schema = pa.schema([*REF_FIELDS, *list(TRACKED)[1:]])

    def batches() -> Iterator[pa.RecordBatch]:
        for side, number, file in sides.files():
            source, selection = sides.open_file(file)
            with source:
                for rows in tracked_rows(source, file, selection):
                    refs = _refs(side, number, rows.column(0))
                    yield pa.RecordBatch.from_arrays([*refs, *rows.columns[1:]], schema=schema)

    return RowStream(schema, batches())


def _bitmaps(refs: pa.Array | pa.ChunkedArray) -> dict[int, BitMap64]:
    """References by file: file number -> positions."""
    if isinstance(refs, pa.ChunkedArray):
        refs = refs.combine_chunks()
    refs = refs.sort()
    numbers = pc.shift_right(refs, pa.scalar(_POSITION_BITS, pa.int64()))
    positions = pc.bit_wise_and(refs, pa.scalar(_POSITION_MASK, pa.int64()))
    found, at = {}, 0
    for entry in pc.value_counts(numbers).to_pylist():
        found[entry["values"]] = _bitmap(positions.slice(at, entry["counts"]))
        at += entry["counts"]
    return found


def _bitmap(positions: pa.Int64Array) -> BitMap64:
    members = array.array("Q")
    start = positions.offset * 8
    members.frombytes(positions.buffers()[1].slice(start, len(positions) * 8))
    return BitMap64(members)


def _without(all_rows: dict[int, BitMap64], some: dict[int, BitMap64]) -> dict[int, BitMap64]:
    return {n: rows - some[n] if n in some else rows for n, rows in all_rows.items()}
