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

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from tailer.changes import METADATA_FIELDS, ChangeFile, Rows
from tailer.decode.bucket import Bucket
from tailer.decode.engine import DiffOptions, Engine
from tailer.decode.idsets import ManyVersions, changed_ids
from tailer.decode.noops import equal_images
from tailer.decode.row_cache import RowCache
from tailer.decode.rows import DecodeOptions, Skip, decode_file, output_schema
from tailer.decode.side_by_side import Decoded, FileRows, alike, pairable, side_by_side
from tailer.decode.stream import (
    COMING,
    LEAVING,
    OTHER_FIELD,
    PLACED,
    REF_FIELDS,
    RowStream,
    has_map,
)
from tailer.decode.tracking import TRACKED, tracked_rows
from tailer.decode.variant import canonical_variants
from tailer.decode.vectors import RowSelection, bitmap_of, positions_of
from tailer.delta.snapshot import TableState
from tailer.errors import CorruptRow

__all__ = ["DiffOptions", "Difference", "OpenFile", "by_row_ids", "by_value"]

#: Opens a file of the plan: its bytes and the rows of it that are meant. Called in the same thread.
OpenFile = Callable[[ChangeFile], tuple[pa.NativeFile, RowSelection]]

#: A row's reference in the engine: file number and position in one 64-bit integer.
_POSITION_BITS = 40
_POSITION_MASK = (1 << _POSITION_BITS) - 1

_NO_PAIRS: Mapping[int, int] = MappingProxyType({})

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
        version = next((f.version for f in (*leaving, *coming)), None)
        compared = replace(
            decode, target=after, target_version=version, columns=None, own_columns=True
        )
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

    ``key`` names columns that pair what is left into updates: a bucket then has all rows of its
    keys. Raises :class:`CorruptRow` where rows that leave can't be read in the later schema.
    """
    sides = _Sides.of(leaving, coming, after, open_file, decode)
    # Only of rows that the engine sees can it be said which bucket they are in.
    pairs = _NO_PAIRS if options.bucket else _pairs(sides)
    by = [after.schema.names.index(name) for name in key]
    cache = RowCache(options.keep_bytes_max, sides.keeps)
    read = partial(_value_rows, sides, pairs=pairs, cache=cache if pairs else None)
    difference = Difference()
    with Engine(options) as engine:
        found = engine.unmatched(read, options.bucket, by)
        if found.doubtful_leaving:
            few = _restricted(
                sides, _by_file(found.doubtful_leaving), _by_file(found.doubtful_coming)
            )
            again = engine.unmatched(lambda: _value_rows(few))
            found.leaving = found.leaving - found.doubtful_leaving | again.leaving
            found.coming = found.coming - found.doubtful_coming | again.coming
        difference.leaving, difference.coming = _by_file(found.leaving), _by_file(found.coming)
        difference.kept_leaving, difference.kept_coming = cache.of(LEAVING), cache.of(COMING)
        if key and found.leaving and found.coming:
            survivors = _restricted(sides, difference.leaving, difference.coming)
            narrow = replace(survivors, decode=replace(survivors.decode, columns=tuple(key)))
            alone = engine.unmatched(lambda: _value_rows(narrow, tuple(key)))
            difference.updated_leaving = _by_file(found.leaving - alone.leaving)
            difference.updated_coming = _by_file(found.coming - alone.coming)
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

    Updates whose two images are equal are dropped and counted; images that the later schema can't
    hold are not equal. None if an id is there twice on one
    side, which no valid writer makes: then only values tell.
    """
    sides = _Sides.of(leaving, coming, after, open_file, decode)
    changed = _changed_ids(sides, options)
    if changed is None:
        return None
    changed = _bucket_of(changed, options.bucket)
    updated, cache = _both(changed), None
    noops = pa.array([], pa.int64())
    if updated.num_rows:
        try:
            cache, noops = _noops(_with_updates(sides, changed, updated), updated, options)
        except CorruptRow:
            if all(file.state == after for file in leaving):
                raise
    if len(noops):
        changed = changed.filter(pc.invert(pc.is_in(changed["row_id"], value_set=noops)))
        updated = _both(changed)
    left, came = ({} if cache is None else cache.of(side) for side in (LEAVING, COMING))
    return Difference(
        _by_file(_refs_of(changed["left"])),
        _by_file(_refs_of(changed["came"])),
        _by_file(_refs_of(updated["left"])),
        _by_file(_refs_of(updated["came"])),
        len(noops),
        left,
        came,
    )


def _bucket_of(changed: pa.Table, bucket: Bucket | None) -> pa.Table:
    """The changed rows of one bucket: a range of row ids.

    All have been found before: each bucket must notice ids that are there twice.
    """
    if bucket is None:
        return changed
    first, end = (changed.num_rows * n // bucket.of for n in (bucket.number, bucket.number + 1))
    return changed.sort_by("row_id").slice(first, end - first).combine_chunks()


def _changed_ids(sides: _Sides, options: DiffOptions) -> pa.Table | None:
    try:
        return changed_ids(lambda: _tracked(sides), options.keep_bytes_max)
    except ManyVersions:
        with Engine(options) as engine:
            return engine.changed_ids(lambda: _tracked_stream(sides))


def _noops(
    narrow: _Sides, updated: pa.Table, options: DiffOptions
) -> tuple[RowCache, pa.Int64Array]:
    """The ids of the updated rows whose images are equal, and a cache with rows to be output.

    They are compared in memory where all of them can be kept.
    """
    if not any(has_map(f.type) for f in output_schema(narrow.after)):
        images = RowCache(options.keep_bytes_max, (True, True))
        with closing(_decoded(narrow, cache=images)) as decoded:
            while images.complete and next(decoded, None) is not None:
                pass
        if images.complete:
            left, came = (
                {n << _POSITION_BITS: rows for n, rows in images.of(side).items()}
                for side in (LEAVING, COMING)
            )
            noops = equal_images(left, came, updated)
            if noops is not None:
                return images.restricted(narrow.keeps), noops
    cache = RowCache(options.keep_bytes_max, narrow.keeps)
    with Engine(options) as engine:
        return cache, engine.equal_images(lambda: _value_rows(narrow, cache=cache), updated)


def _both(changed: pa.Table) -> pa.Table:
    """Those that left and came."""
    return changed.filter(pc.and_(changed["left"].is_valid(), changed["came"].is_valid()))


def _with_updates(sides: _Sides, changed: pa.Table, updated: pa.Table) -> _Sides:
    """All changed rows of the files that have updated ones: decoding them costs the same."""
    rows = []
    for name in ("left", "came"):
        every, some = (_by_file(_refs_of(table[name])) for table in (changed, updated))
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
    return replace(sides, open_file=only)


def _refs(number: int, positions: pa.Int64Array) -> pa.Int64Array:
    return pc.add(positions, pa.scalar(number << _POSITION_BITS, pa.int64()))


def _value_rows(
    sides: _Sides,
    columns: tuple[str, ...] | None = None,
    pairs: Mapping[int, int] = _NO_PAIRS,
    cache: RowCache | None = None,
) -> RowStream:
    """All rows of both sides, with their references; placed ones where files are read in pairs."""
    data = list(output_schema(sides.after, columns))[: -len(METADATA_FIELDS)]
    # Columns go by number: two names of a table may differ by their case alone, or be reserved.
    numbered = [pa.field(f"c{i}", f.type) for i, f in enumerate(data)]
    schema = pa.schema([*REF_FIELDS, *numbered, *([OTHER_FIELD] if pairs else [])])

    def batches() -> Iterator[pa.RecordBatch]:
        for found in _decoded(sides, pairs, cache):
            rows = found.rows
            arrays = [
                pa.repeat(pa.scalar(found.side, pa.int8()), len(rows.positions)),
                _refs(found.number, rows.positions),
                *_comparable(rows.batch.columns[: len(data)], found.side),
            ]
            if found.came is not None:
                arrays.append(_refs(*found.came))
            elif pairs:
                arrays.append(pa.nulls(len(rows.positions), pa.int64()))
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    return RowStream(schema, batches())


def _comparable(columns: list[pa.Array], side: int) -> list[pa.Array]:
    """Variants in the form that equal ones share; those of placed rows were compared already."""
    return columns if side == PLACED else [canonical_variants(c) for c in columns]


def _decoded(
    sides: _Sides, pairs: Mapping[int, int] = _NO_PAIRS, cache: RowCache | None = None
) -> Generator[Decoded, None, None]:
    """The rows of all files; two at a time where one is the rewrite of the other."""
    for side, number, file in sides.files():
        if side == LEAVING and cache is not None and number in pairs:
            other = pairs[number]
            left = FileRows(LEAVING, number, _file_rows(sides, file))
            came = FileRows(COMING, other, _file_rows(sides, sides.coming[other]))
            yield from side_by_side(left, came, cache)
        elif side == LEAVING or number not in pairs.values():
            for rows in _file_rows(sides, file):
                if cache is not None and not pairs:
                    cache.add(side, number, rows)
                yield Decoded(side, number, rows)


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
    """The first few rows of a file; its bytes are counted when all of it is read."""
    few = replace(sides, decode=replace(sides.decode, batch_rows_max=_HEAD_ROWS, on_read=None))
    with closing(_file_rows(few, file)) as rows:
        return next(rows, None)


def _tracked(sides: _Sides) -> Iterator[tuple[int, pa.Int64Array, pa.RecordBatch]]:
    """Side, references and tracking columns of all rows."""
    for side, number, file in sides.files():
        source, selection = sides.open_file(file)
        with source:
            for rows in tracked_rows(source, file, selection, sides.decode.on_read):
                yield side, _refs(number, rows.column(0)), rows


def _tracked_stream(sides: _Sides) -> RowStream:
    schema = pa.schema([*REF_FIELDS, *list(TRACKED)[1:]])

    def batches() -> Iterator[pa.RecordBatch]:
        for side, refs, rows in _tracked(sides):
            sided = pa.repeat(pa.scalar(side, pa.int8()), len(refs))
            yield pa.RecordBatch.from_arrays([sided, refs, *rows.columns[1:]], schema=schema)

    return RowStream(schema, batches())


def _refs_of(column: pa.ChunkedArray) -> BitMap64:
    return bitmap_of(column.drop_null().combine_chunks())


def _by_file(references: BitMap64) -> dict[int, BitMap64]:
    """References by file: file number -> positions."""
    refs = positions_of(references)
    numbers = pc.shift_right(refs, pa.scalar(_POSITION_BITS, pa.int64()))
    positions = pc.bit_wise_and(refs, pa.scalar(_POSITION_MASK, pa.int64()))
    found: dict[int, BitMap64] = {}
    at = 0
    for entry in pc.value_counts(numbers).to_pylist():
        found[entry["values"]] = bitmap_of(positions.slice(at, entry["counts"]))
        at += entry["counts"]
    return found
