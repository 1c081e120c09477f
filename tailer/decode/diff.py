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

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from tailer.changes import METADATA_FIELDS, ChangeFile, Rows
from tailer.decode.engine import COMING, LEAVING, REF_FIELDS, DiffOptions, Engine, RowStream
from tailer.decode.idsets import ManyVersions, changed_ids
from tailer.decode.kept import Decoded, Keeper, alike, pairable, side_by_side
from tailer.decode.rows import DecodeOptions, Skip, decode_file, output_schema
from tailer.decode.share import Share
from tailer.decode.tracking import TRACKED, tracked_rows
from tailer.decode.variant import canonical_variants
from tailer.decode.vectors import RowSelection, bitmap_of
from tailer.delta.snapshot import TableState

__all__ = ["DiffOptions", "Difference", "OpenFile", "by_row_ids", "by_value"]

#: Opens a file of the plan: its bytes and the rows of it that are meant. Called in the same thread.
OpenFile = Callable[[ChangeFile], tuple[pa.NativeFile, RowSelection]]

#: A row's reference in the engine: file number and position in one 64-bit integer.
_POSITION_BITS = 40
_POSITION_MASK = (1 << _POSITION_BITS) - 1

#: So many rows tell which file is the rewrite of which.
_HEAD_ROWS = 64


@dataclass(slots=True)
class Difference:
    """The changed rows of each file of the plan, by its number; and which of them are updates.

    ``noops`` counts the rows that were rewritten as updates, with equal values. ``kept_leaving``
    and ``kept_coming`` hold rows that were decoded on the way, maybe not all and maybe others too.
    """

    leaving: dict[int, BitMap64] = field(default_factory=dict)
    coming: dict[int, BitMap64] = field(default_factory=dict)
    updated_leaving: dict[int, BitMap64] = field(default_factory=dict)
    updated_coming: dict[int, BitMap64] = field(default_factory=dict)
    noops: int = 0
    kept_leaving: dict[int, list[Rows]] = field(default_factory=dict)
    kept_coming: dict[int, list[Rows]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Sides:
    """The files of both sides, and how their rows are read for the comparison."""

    leaving: Sequence[ChangeFile]
    coming: Sequence[ChangeFile]
    open_file: OpenFile
    decode: DecodeOptions
    after: TableState
    #: Whether rows as they are decoded here are also those of the output, on either side.
    keeps: tuple[bool, bool]
    #: Whether only rows that changed are read.
    settled: bool = False

    @classmethod
    def of(
        cls,
        leaving: Sequence[ChangeFile],
        coming: Sequence[ChangeFile],
        after: TableState,
        open_file: OpenFile,
        decode: DecodeOptions,
    ) -> _Sides:
        """All rows are compared in the schema ``after``, whichever one they are written out in."""
        left, came = (
            decode.columns is None and all((decode.target or f.state) == after for f in files)
            for files in (leaving, coming)
        )
        compared = replace(decode, target=after, columns=None)
        return cls(leaving, coming, open_file, compared, after, (left, came))

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

    ``key`` names columns that pair what is left into updates: a share then has all rows of its
    keys. Raises :class:`CorruptRow` where rows that leave can't be read in the later schema.
    """
    sides = _Sides.of(leaving, coming, after, open_file, decode)
    difference = Difference()
    with Engine(options) as engine:
        keeper = Keeper(options.keep_bytes_max, sides.keeps)
        by = [after.schema.names.index(name) for name in key]
        every = partial(_value_rows, sides, keeper=keeper)
        left, came = engine.unmatched(every, options.share, by)
        difference.leaving, difference.coming = _bitmaps(left), _bitmaps(came)
        difference.kept_leaving, difference.kept_coming = keeper.of(LEAVING), keeper.of(COMING)
        if key and len(left) and len(came):
            survivors = _restricted(sides, difference.leaving, difference.coming)
            narrow = replace(survivors, decode=replace(survivors.decode, columns=tuple(key)))
            alone_left, alone_came = engine.unmatched(lambda: _value_rows(narrow, tuple(key)))
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
    sides = _Sides.of(leaving, coming, after, open_file, decode)
    keeper = Keeper(options.keep_bytes_max, sides.keeps)
    with Engine(options) as engine:
        try:
            changed = changed_ids(lambda: _tracked(sides))
        except ManyVersions:
            changed = engine.changed_ids(lambda: _tracked_stream(sides))
        if changed is None:
            return None
        changed = _shared(changed, options.share)
        updated = _both(changed)
        noops = pa.array([], pa.int64())
        if updated.num_rows:
            narrow = _with_updates(sides, changed, updated)
            noops = engine.equal_images(lambda: _value_rows(narrow, keeper=keeper), updated)
        if len(noops):
            changed = changed.filter(pc.invert(pc.is_in(changed["row_id"], value_set=noops)))
            updated = _both(changed)
    return Difference(
        _bitmaps(changed["left"].drop_null()),
        _bitmaps(changed["came"].drop_null()),
        _bitmaps(updated["left"]),
        _bitmaps(updated["came"]),
        len(noops),
        keeper.of(LEAVING),
        keeper.of(COMING),
    )


def _shared(changed: pa.Table, share: Share | None) -> pa.Table:
    """The part of the changed rows that belongs to the share: a run of row ids.

    All have been found before, for ids that are there twice must be noticed by every share.
    """
    if share is None:
        return changed
    edges = [changed.num_rows * number // share.of for number in (share.number, share.number + 1)]
    return changed.sort_by("row_id").slice(edges[0], edges[1] - edges[0]).combine_chunks()


def _both(changed: pa.Table) -> pa.Table:
    """Those that left and came."""
    return changed.filter(pc.and_(changed["left"].is_valid(), changed["came"].is_valid()))


def _with_updates(sides: _Sides, changed: pa.Table, updated: pa.Table) -> _Sides:
    """All changed rows of the files that have updated ones: decoding them costs the same."""
    rows = []
    for name in ("left", "came"):
        every, some = _bitmaps(changed[name].drop_null()), _bitmaps(updated[name])
        rows.append({number: every[number] for number in some})
    return _restricted(sides, *rows)


def _restricted(sides: _Sides, leaving: dict[int, BitMap64], coming: dict[int, BitMap64]) -> _Sides:
    """The same files with only these rows, for a second look at few rows."""

    def only(file: ChangeFile) -> tuple[pa.NativeFile, RowSelection]:
        side, number = places[id(file)]
        source, _ = sides.open_file(file)
        wanted = (leaving if side == LEAVING else coming).get(number)
        return source, RowSelection.of(wanted or BitMap64(), None)

    places = {id(file): (side, number) for side, number, file in sides.files()}
    return replace(sides, open_file=only, settled=True)


def _refs(side: int, number: int, positions: pa.Array) -> list[pa.Array]:
    base = pa.scalar(number << _POSITION_BITS, pa.int64())
    return [pa.repeat(pa.scalar(side, pa.int8()), len(positions)), pc.add(positions, base)]


def _value_rows(
    sides: _Sides, columns: tuple[str, ...] | None = None, keeper: Keeper | None = None
) -> RowStream:
    """All rows of both sides, with their references; some stay with the keeper."""
    data = list(output_schema(sides.after, columns))[: -len(METADATA_FIELDS)]
    # Columns go by number: two names of a table may differ by their case alone, or be reserved.
    schema = pa.schema([*REF_FIELDS, *(pa.field(f"c{i}", f.type) for i, f in enumerate(data))])

    def batches() -> Iterator[pa.RecordBatch]:
        if keeper is not None:
            keeper.clear()  # the engine may look at all rows twice
        for side, number, rows in _decoded(sides, keeper):
            values = [canonical_variants(c) for c in rows.batch.columns[: len(data)]]
            refs = _refs(side, number, rows.positions)
            yield pa.RecordBatch.from_arrays([*refs, *values], schema=schema)

    return RowStream(schema, batches())


def _decoded(sides: _Sides, keeper: Keeper | None) -> Iterator[Decoded]:
    """The rows of all files; two at a time where one is the rewrite of the other."""
    if keeper is None:
        pairs: dict[int, int] = {}
    elif sides.settled:
        for side, number, rows in _decoded(sides, None):
            keeper.add(side, number, rows)
            yield side, number, rows
        return
    else:
        pairs = _pairs(sides) if any(sides.keeps) else {}
    for number, file in enumerate(sides.leaving):
        if keeper is not None and number in pairs:
            other = pairs[number]
            streams = (
                (number, _file_rows(sides, file)), (other, _file_rows(sides, sides.coming[other]))
            )  # fmt: skip
            yield from side_by_side(*streams, keeper)
        else:
            yield from ((LEAVING, number, rows) for rows in _file_rows(sides, file))
    alone = set(range(len(sides.coming))) - set(pairs.values())
    for number in sorted(alone):
        yield from ((COMING, number, rows) for rows in _file_rows(sides, sides.coming[number]))


def _file_rows(sides: _Sides, file: ChangeFile) -> Generator[Rows, None, None]:
    source, selection = sides.open_file(file)
    with source:
        yield from decode_file(source, file, selection, sides.decode, Skip())


def _pairs(sides: _Sides) -> dict[int, int]:
    if not pairable(sides.leaving, sides.coming):
        return {}
    left, came = ([_head(sides, f) for f in files] for files in (sides.leaving, sides.coming))
    return alike(left, came)


def _head(sides: _Sides, file: ChangeFile) -> Rows | None:
    """The first few rows of a file."""
    few = replace(sides, decode=replace(sides.decode, batch_rows_max=_HEAD_ROWS))
    with closing(_file_rows(few, file)) as rows:
        return next(rows, None)


def _tracked(sides: _Sides) -> Iterator[tuple[int, pa.Int64Array, pa.RecordBatch]]:
    """Side, references and tracking columns of all rows."""
    for side, number, file in sides.files():
        source, selection = sides.open_file(file)
        with source:
            for rows in tracked_rows(source, file, selection, sides.decode.on_read):
                yield side, _refs(side, number, rows.column(0))[1], rows


def _tracked_stream(sides: _Sides) -> RowStream:
    schema = pa.schema([*REF_FIELDS, *list(TRACKED)[1:]])

    def batches() -> Iterator[pa.RecordBatch]:
        for side, refs, rows in _tracked(sides):
            sided = pa.repeat(pa.scalar(side, pa.int8()), len(refs))
            yield pa.RecordBatch.from_arrays([sided, refs, *rows.columns[1:]], schema=schema)

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
        found[entry["values"]] = bitmap_of(positions.slice(at, entry["counts"]))
        at += entry["counts"]
    return found


def _without(all_rows: dict[int, BitMap64], some: dict[int, BitMap64]) -> dict[int, BitMap64]:
    return {n: rows - some[n] if n in some else rows for n, rows in all_rows.items()}
