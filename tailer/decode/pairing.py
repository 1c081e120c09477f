"""Updates as one row: a preimage waits for its postimage and then travels beside it.

Two readings of a version. The first (:func:`find_pairs`) looks only at what tells partners: row
ids where changes were derived by them, else the ``key`` columns, else the order of images in a
cdc file that is strictly preimage, postimage, preimage, postimage. With a key, partners have equal
keys: an update that changes the key is a delete of the old one and an insert of the new one, so
its images stay alone. The second is the plain sequence of the version's rows, from which
:class:`Pairing` takes the paired preimages out.

Rows are named by their place in the plain sequence, which is what an offset's index counts, so
offsets mean the same whether updates are paired or not. Pairs are sorted by the engine and held
out of core; preimages that wait lie in memory up to a bound, then in files.
"""

from __future__ import annotations

import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from tailer.changes import CHANGE_TYPE, METADATA_FIELDS, ChangeBatch, ChangeFile, Rows
from tailer.decode.engine import DiffOptions, Engine
from tailer.decode.preimages import Numbers, Preimages
from tailer.decode.rows import DecodeOptions, OpenFile, Skip, decode_file, output_schema
from tailer.decode.stream import COMING, LEAVING, REF_FIELDS, RowStream
from tailer.decode.variant import canonical_variants
from tailer.decode.vectors import positions_within
from tailer.delta.snapshot import TableState
from tailer.errors import TableError

__all__ = [
    "Pairing",
    "VersionRows",
    "find_pairs",
    "from_index",
    "may_have_images",
]

_PRE, _POST = "update_preimage", "update_postimage"
_PAIR = pa.schema([("l", pa.int64()), ("c", pa.int64())])
_ROW_ID = pa.field("row_id", pa.int64())
#: Runs of pairs are listed so many at a time.
_RUN_ROWS = 65_536


def _as_it_is(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows


def _not_lost(_: ChangeFile) -> int | None:
    return None


@dataclass(frozen=True, slots=True)
class VersionRows:
    """How the files of one version are read: all that both readings share.

    ``select`` is what a row goes through before it may leave: a preimage, too. ``lost`` tells of
    a file that is recorded as lost how many changes are counted for it, and None of any other.
    """

    files: Sequence[ChangeFile]
    after: TableState
    open_file: OpenFile
    decode: DecodeOptions
    select: Callable[[pa.RecordBatch], pa.RecordBatch] = _as_it_is
    lost: Callable[[ChangeFile], int | None] = _not_lost

    @property
    def version(self) -> int | None:
        """The version; None where it has no files."""
        return self.files[0].version if self.files else None

    def rows(
        self, options: DecodeOptions, *, images_only: bool = False
    ) -> Iterator[tuple[ChangeFile, int, Any]]:
        """File, place of the first row in the plain sequence, and rows, of everything; or of the
        files that may hold images of updates."""
        at = 0
        for file in self.files:
            passed = self.lost(file)
            if passed is None and images_only and file.updated is None and file.rows is not None:
                passed = len(file.rows)
            if passed is not None:
                at += passed
                continue
            source, selection = self.open_file(file)
            with source:
                for rows in decode_file(source, file, selection, options, Skip()):
                    yield file, at, rows
                    at += rows.batch.num_rows


class Pairing:
    """The pairs of one version, and the preimages that wait. Close it to free what it holds.

    ``paired`` are the places of the preimages that have a partner. ``strict``, where a key tells
    pairs, are the paths of cdc files that are strictly preimage, postimage: two neighbours there
    without a partner of equal key are an update of the key.
    """

    def __init__(self, options: DiffOptions) -> None:
        self.paired = BitMap64()
        self.early = False
        self.strict: frozenset[str] = frozenset()
        self.stack = ExitStack()
        self._waiting = self.stack.enter_context(
            Preimages(options.memory_bytes_max // 8, options.spill_folder)
        )
        self._pairs: Iterator[pa.RecordBatch] = iter(())
        self._next = pa.RecordBatch.from_pylist([], schema=_PAIR)

    def close(self) -> None:
        """Free the engine and the files of waiting preimages."""
        self.stack.close()

    def fold(self, batch: ChangeBatch) -> ChangeBatch:
        """The batch without its paired preimages, those of its updates in ``before``.

        Batches of the plain sequence come here in order, from the version's first row on.
        """
        first = batch.offset.index
        places = pa.arange(first, first + batch.num_rows)
        partners = self._partners(first + batch.num_rows)
        batch = replace(batch, partner=self._neighbours(batch, places, partners))
        kept = None
        leaving = positions_within(self.paired, first, first + batch.num_rows)
        if len(leaving):
            alone = pc.invert(pc.is_in(places, value_set=leaving))
            if not self.early:
                taken = pc.subtract(leaving, pa.scalar(first, pa.int64()))
                self._waiting.add(leaving, _data(batch.rows.take(taken)))
            kept = pa.arange(0, batch.num_rows).filter(alone)
            places = places.filter(alone)
        before = self._before(partners, places, _data_fields(batch.rows.schema))
        return replace(_taken(batch, kept), before=before, indices=places)

    def _neighbours(
        self, batch: ChangeBatch, places: pa.Int64Array, partners: pa.RecordBatch
    ) -> pa.StructArray | None:
        """Beside each image of a strict file that has no partner the other one of its update, if
        that has none either."""
        if batch.file is None or batch.file.path not in self.strict:
            return None
        count = batch.num_rows
        taken = positions_within(self.paired, places[0].as_py(), places[0].as_py() + count)
        alone = pc.invert(
            pc.or_(
                pc.is_in(places, value_set=taken),
                pc.is_in(places, value_set=partners.column("c")),
            )
        )
        even = pc.equal(pc.bit_wise_and(batch.positions, pa.scalar(1, pa.int64())), 0)
        step = pc.if_else(even, pa.scalar(1, pa.int64()), pa.scalar(-1, pa.int64()))
        beside = pc.add(pa.arange(0, count), step)
        there = pc.and_(pc.greater_equal(beside, 0), pc.less(beside, count))
        beside = pc.if_else(pc.and_(alone, there), beside, pa.scalar(None, pa.int64()))
        beside = pc.if_else(pc.fill_null(alone.take(beside), False), beside, None)
        if beside.null_count == count:
            return None
        return _data(batch.rows).to_struct_array().take(beside)

    def _partners(self, end: int) -> pa.RecordBatch:
        """The pairs whose postimage lies before ``end`` and that were not asked for yet."""
        found: list[pa.RecordBatch] = []
        while True:
            count = bisect_left(Numbers(self._next.column("c")), end)
            found.append(self._next.slice(0, count))
            self._next = self._next.slice(count)
            if self._next.num_rows:
                break
            following = next(self._pairs, None)
            if following is None:
                break
            self._next = following
        return pa.concat_batches(found)

    def _before(
        self, partners: pa.RecordBatch, places: pa.Int64Array, fields: list[pa.Field]
    ) -> pa.StructArray:
        if not partners.num_rows:
            return pa.nulls(len(places), pa.struct(fields))
        images = self._waiting.take(partners.column("l"))
        at = pc.index_in(places, value_set=partners.column("c"))
        return images.take(at)

    def set_pairs(self, pairs: Callable[[Literal["l", "c"]], Iterator[pa.RecordBatch]]) -> None:
        """Take over the pairs, listed in the order of ``l`` or of ``c``."""
        for batch in pairs("l"):
            left = batch.column("l")
            members = array.array("Q")
            members.frombytes(left.buffers()[1].slice(left.offset * 8, len(left) * 8))
            self.paired |= BitMap64(members)
            self.early |= bool(pc.any(pc.greater(left, batch.column("c"))).as_py())
        self._pairs = pairs("c")

    def fill(self, reading: VersionRows) -> None:
        """Put all paired preimages aside at once: some come behind their postimage, or have to be
        read in the schema that the version leads to."""
        self.early = True
        options = replace(reading.decode, row_ids=False)
        if options.target is None:
            options = replace(options, target=reading.after, target_version=reading.version)
        for _, at, rows in reading.rows(options):
            places = positions_within(self.paired, at, at + rows.batch.num_rows)
            if len(places):
                taken = pc.subtract(places, pa.scalar(at, pa.int64()))
                self._waiting.add(places, _data(reading.select(rows.batch.take(taken))))


def find_pairs(
    reading: VersionRows,
    before: TableState | None,
    options: DiffOptions,
    key: tuple[str, ...] = (),
) -> Pairing | None:
    """The pairs of a version with these files; None if it has no update.

    ``before`` is the table's state before the version.
    """
    files, after = reading.files, reading.after
    _check_key(key, after)
    pairing = Pairing(options)
    try:
        if any(file.origin == "row_ids" for file in files) or key:
            engine = pairing.stack.enter_context(Engine(options))
            counts: dict[str, _Counts] = {}
            engine.find_partners(_images(reading, key, counts))
            pairing.set_pairs(engine.partners)
            pairing.strict = frozenset(path for path, found in counts.items() if found.pairs)
        else:
            runs = _runs(reading)
            pairing.set_pairs(
                lambda order: _run_pairs(sorted(runs, key=lambda run: run[order == "c"]))
            )
        if not pairing.paired and not pairing.strict:
            pairing.close()
            return None
        if pairing.early or (before is not None and before.schema != after.schema):
            pairing.fill(reading)
    except BaseException:
        pairing.close()
        raise
    return pairing


def _check_key(key: tuple[str, ...], after: TableState) -> None:
    for name in key:
        if name not in after.schema.names:
            raise TableError(
                f"the key column {name!r} does not exist in this version",
                hint=f"its columns are {', '.join(after.schema.names)}",
            )


def may_have_images(files: Sequence[ChangeFile]) -> bool:
    """Whether any of these files can hold an update's image."""
    return any(file.change_type is None or file.updated is not None for file in files)


def from_index(batch: ChangeBatch, index: int) -> ChangeBatch:
    """The rows of a folded batch from that place in the version on."""
    first = bisect_left(Numbers(batch.row_indices()), index)
    if not first:
        return batch
    places = batch.row_indices().slice(first)
    before = None if batch.before is None else batch.before.slice(first)
    kept = pa.arange(first, batch.num_rows)
    return replace(_taken(batch, kept), before=before, indices=places)


def _taken(batch: ChangeBatch, kept: pa.Int64Array | None) -> ChangeBatch:
    """The batch with only these of its rows; None: with all."""
    if kept is None:
        return batch
    return replace(
        batch,
        rows=batch.rows.take(kept),
        positions=batch.positions.take(kept),
        row_ids=None if batch.row_ids is None else batch.row_ids.take(kept),
        partner=None if batch.partner is None else batch.partner.take(kept),
    )


def _data_fields(schema: pa.Schema) -> list[pa.Field]:
    return list(schema)[: -len(METADATA_FIELDS)]


def _data(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The data columns alone."""
    fields = _data_fields(rows.schema)
    if not fields:
        return pa.RecordBatch.from_struct_array(
            pa.nulls(rows.num_rows, pa.struct([])).fill_null({})
        )
    return pa.RecordBatch.from_arrays(rows.columns[: len(fields)], schema=pa.schema(fields))


def _images(reading: VersionRows, key: tuple[str, ...], counts: dict[str, _Counts]) -> RowStream:
    """All images of updates: side, place, then row id (where there are some) and key columns.

    ``counts`` is filled with what the cdc files hold that are read in their own order.
    """
    by_id = any(file.origin == "row_ids" for file in reading.files)
    fields = list(output_schema(reading.after, key))[: -len(METADATA_FIELDS)]
    named = [pa.field(f"c{i}", f.type) for i, f in enumerate(fields)]
    schema = pa.schema([*REF_FIELDS, *([_ROW_ID] if by_id else []), *named])
    options = replace(
        reading.decode,
        columns=key,
        target=reading.after,
        target_version=reading.version,
        row_ids=by_id,
    )

    def batches() -> Iterator[pa.RecordBatch]:
        for file, at, rows in reading.rows(options, images_only=True):
            found = rows.batch
            if file.change_type is None and file.kinds is None:
                counts.setdefault(file.path, _Counts()).add(rows)
            values = [canonical_variants(c) for c in found.columns[: len(fields)]]
            if by_id:
                values.insert(0, rows.row_ids)
            yield _sided(found.column(CHANGE_TYPE), at, values, schema)

    return RowStream(schema, batches())


def _sided(
    kinds: pa.StringArray, at: int, values: list[pa.Array], schema: pa.Schema
) -> pa.RecordBatch:
    post = pc.equal(kinds, _POST)
    side = pc.if_else(post, pa.scalar(COMING, pa.int8()), pa.scalar(LEAVING, pa.int8()))
    refs = pa.arange(at, at + len(kinds))
    batch = pa.RecordBatch.from_arrays([side, refs, *values], schema=schema)
    return batch.filter(pc.or_(post, pc.equal(kinds, _PRE)))


#: Pairs of adjacent images: place of the first preimage and postimage, the step from one to the
#: next (2 where they take turns, 1 where each kind is read for itself), and how many.
_Run = tuple[int, int, int, int]


def _runs(reading: VersionRows) -> list[_Run]:
    """The cdc files that are strictly preimage, postimage, from the first row to the last."""
    options = replace(reading.decode, columns=(), target=None, row_ids=False)
    whole = replace(reading, files=[replace(f, kinds=None) for f in _cdc_files(reading.files)])
    counts: dict[str, _Counts] = {}
    for file, _, rows in whole.rows(options):
        counts.setdefault(file.path, _Counts()).add(rows)
    return _placed(reading.files, counts)


@dataclass(slots=True)
class _Counts:
    """What there is in a cdc file."""

    strict: bool = True
    rows: int = 0
    leaving: int = 0

    def add(self, rows: Rows) -> None:
        """Count the file's next rows."""
        kinds = rows.batch.column(CHANGE_TYPE)
        even = pc.equal(pc.bit_wise_and(rows.positions, pa.scalar(1, pa.int64())), 0)
        expected = pc.if_else(even, pa.scalar(_PRE), pa.scalar(_POST))
        leaving = pc.or_(pc.equal(kinds, _PRE), pc.equal(kinds, "delete"))
        self.strict &= bool(pc.all(pc.equal(kinds, expected)).as_py())
        self.rows += len(kinds)
        self.leaving += pc.sum(leaving).as_py() or 0

    @property
    def pairs(self) -> int:
        """How many pairs of adjacent images it has, if it has nothing else."""
        return self.rows // 2 if self.strict and self.rows % 2 == 0 else 0


def _cdc_files(files: Iterable[ChangeFile]) -> list[ChangeFile]:
    """Each cdc file once: where kinds are read apart, a file stands in the plan twice."""
    return list({f.path: f for f in files if f.change_type is None}.values())


def _placed(files: Iterable[ChangeFile], counts: Mapping[str, _Counts]) -> list[_Run]:
    """Where the adjacent images stand in the plain sequence."""
    runs: list[_Run] = []
    first: dict[str, int] = {}
    at = 0
    for file in files:
        count = counts.get(file.path, _Counts())
        if file.kinds is None:
            start, step, length = at + 1, 2, count.rows
            first[file.path] = at
        elif file.path in first:
            start, step, length = at, 1, count.rows - count.leaving
        else:
            first[file.path], at = at, at + count.leaving
            continue
        if count.pairs:
            runs.append((first[file.path], start, step, count.pairs))
        at += length
    return runs


def _run_pairs(runs: Sequence[_Run]) -> Iterator[pa.RecordBatch]:
    for pre, post, step, count in runs:
        for at in range(0, count, _RUN_ROWS):
            numbers = pa.arange(at, min(at + _RUN_ROWS, count))
            steps = pc.multiply(numbers, pa.scalar(step, pa.int64()))
            columns = [pc.add(steps, pa.scalar(start, pa.int64())) for start in (pre, post)]
            yield pa.RecordBatch.from_arrays(columns, schema=_PAIR)
