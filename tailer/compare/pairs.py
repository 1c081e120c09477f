"""Which images of a version's updates are partners: found before any row is handed on.

Only what identifies partners is read: row ids where changes were derived by them, else the ``key``
columns, else the order of images in a cdc file that is strictly preimage, postimage, preimage,
postimage. With a key, partners have equal keys: an update that changes the key is a delete of the
old one and an insert of the new one, so its images stay alone.

Rows are named by their place in the plain sequence, which is what an offset's index counts. Pairs
are sorted by the engine and held out of core.
"""

from __future__ import annotations

import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import structs
from pyroaring import BitMap64

from tailer.changes import CHANGE_TYPE, METADATA_FIELDS, ChangeFile, DecodedRows
from tailer.compare.engine import Engine
from tailer.compare.stream import COMING, LEAVING, REF_FIELDS, RowStream
from tailer.decode.options import DecodeOptions, DiffOptions
from tailer.decode.output import build_output_schema
from tailer.decode.rows import OpenFile, Skip, decode_file
from tailer.decode.variant import canonicalize_variants
from tailer.delta.snapshot import TableState

#: A pair: the places of the preimage (that leaves) and of the postimage (that comes).
PAIR = pa.schema([("l", pa.int64()), ("c", pa.int64())])

_PRE, _POST = "update_preimage", "update_postimage"
_ROW_ID = pa.field("row_id", pa.int64())
#: How many runs of pairs are listed at a time.
_RUN_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class VersionRows:
    """How the files of one version are read: what both passes share.

    ``select`` is applied to each row before it may be published, also to a preimage. ``lost``
    returns, for a file that is recorded as lost, how many changes are counted for it, and None for
    any other file.
    """

    files: Sequence[ChangeFile]
    after: TableState
    open_file: OpenFile
    decode: DecodeOptions
    select: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda rows: rows
    lost: Callable[[ChangeFile], int | None] = lambda _: None

    @property
    def version(self) -> int | None:
        """Return the version; None if it has no files."""
        return self.files[0].version if self.files else None

    def read_rows(
        self, options: DecodeOptions, *, images_only: bool = False
    ) -> Iterator[tuple[ChangeFile, int, Any]]:
        """Yield file, place of the first row in the plain sequence, and rows: of all files, or only
        of those that may hold images of updates."""
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


@dataclass(frozen=True, slots=True)
class Pairs:
    """The pairs of one version.

    ``paired`` are the places of the preimages with a partner; ``early`` says that some preimages
    are after their postimage. ``by_postimage`` lists the pairs in the order of their postimages,
    once. ``adjacent``, where a key identifies pairs, are the paths of cdc files in which the images
    of each update are neighbours, whatever is between the updates: two neighbours there without a
    partner of equal key are an update of the key.
    """

    paired: BitMap64
    early: bool
    by_postimage: Callable[[], Iterator[pa.RecordBatch]]
    adjacent: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.paired or self.adjacent)


def may_have_images(files: Sequence[ChangeFile]) -> bool:
    """Return whether any of these files can hold an update's image."""
    return any(file.change_type is None or file.updated is not None for file in files)


def plan_pairs(
    reading: VersionRows, options: DiffOptions, key: tuple[str, ...], stack: ExitStack
) -> Pairs:
    """Find the pairs of a version; ``stack`` closes what lists them."""
    if not key and all(file.origin != "row_ids" for file in reading.files):
        runs = _find_adjacent_runs(reading)
        return _list_pairs(
            lambda order: _list_run_pairs(sorted(runs, key=lambda run: run[order == "c"])),
            frozenset(),
        )
    engine = stack.enter_context(Engine(options))
    counts: dict[str, _Counts] = {}
    engine.find_partners(_stream_images(reading, key, counts))
    adjacent = frozenset(path for path, found in counts.items() if found.adjacent)
    return _list_pairs(engine.list_partners, adjacent)


def _list_pairs(
    pairs: Callable[[Literal["l", "c"]], Iterator[pa.RecordBatch]], adjacent: frozenset[str]
) -> Pairs:
    """Return the pairs, which can be listed in the order of ``l`` or of ``c``."""
    paired, early = BitMap64(), False
    for batch in pairs("l"):
        left = batch.column("l")
        members = array.array("Q")
        members.frombytes(left.buffers()[1].slice(left.offset * 8, len(left) * 8))
        paired |= BitMap64(members)
        early |= bool(pc.any(pc.greater(left, batch.column("c"))).as_py())
    return Pairs(paired, early, lambda: pairs("c"), adjacent)


def _stream_images(
    reading: VersionRows, key: tuple[str, ...], counts: dict[str, _Counts]
) -> RowStream:
    """Stream all images of updates: side, place, then row id (if there is one) and key columns.

    ``counts`` is filled with the contents of the cdc files that are read in their own order.
    """
    by_id = any(file.origin == "row_ids" for file in reading.files)
    fields = list(build_output_schema(reading.after, key))[: -len(METADATA_FIELDS)]
    named = [pa.field(f"c{i}", f.type) for i, f in enumerate(fields)]
    schema = pa.schema([*REF_FIELDS, *([_ROW_ID] if by_id else []), *named])
    options = structs.replace(
        reading.decode,
        columns=key,
        target=reading.after,
        target_version=reading.version,
        row_ids=by_id,
    )

    def batches() -> Iterator[pa.RecordBatch]:
        for file, at, rows in reading.read_rows(options, images_only=True):
            found = rows.batch
            if file.change_type is None and file.kinds is None:
                counts.setdefault(file.path, _Counts()).count_rows(rows)
            values = [canonicalize_variants(c) for c in found.columns[: len(fields)]]
            if by_id:
                values.insert(0, rows.row_ids)
            yield _build_image_batch(found.column(CHANGE_TYPE), at, values, schema)

    return RowStream(schema, batches())


def _build_image_batch(
    kinds: pa.StringArray, at: int, values: list[pa.Array], schema: pa.Schema
) -> pa.RecordBatch:
    post = pc.equal(kinds, _POST)
    side = pc.if_else(post, pa.scalar(COMING, pa.int8()), pa.scalar(LEAVING, pa.int8()))
    refs = pa.arange(at, at + len(kinds))
    batch = pa.RecordBatch.from_arrays([side, refs, *values], schema=schema)
    return batch.filter(pc.or_(post, pc.equal(kinds, _PRE)))


#: Pairs of adjacent images: place of the first preimage and postimage, the step from one to the
#: next (2 where they alternate, 1 where each kind is read separately), and how many.
_Run = tuple[int, int, int, int]


def _find_adjacent_runs(reading: VersionRows) -> list[_Run]:
    """Return the cdc files that are strictly preimage, postimage, from first row to last."""
    options = structs.replace(reading.decode, columns=(), target=None, row_ids=False)
    whole = replace(
        reading, files=[structs.replace(f, kinds=None) for f in _cdc_files(reading.files)]
    )
    counts: dict[str, _Counts] = {}
    for file, _, rows in whole.read_rows(options):
        counts.setdefault(file.path, _Counts()).count_rows(rows)
    return _place_runs(reading.files, counts)


@dataclass(slots=True)
class _Counts:
    """The counts of a cdc file."""

    strict: bool = True
    rows: int = 0
    leaving: int = 0
    images: int = 0
    _apart: bool = False
    _open: int | None = None  # where the postimage of the last row, a preimage, must be

    def count_rows(self, rows: DecodedRows) -> None:
        """Count the file's next rows."""
        kinds = rows.batch.column(CHANGE_TYPE)
        self._add_images(kinds, rows.positions)
        even = pc.equal(pc.bit_wise_and(rows.positions, pa.scalar(1, pa.int64())), 0)
        expected = pc.if_else(even, pa.scalar(_PRE), pa.scalar(_POST))
        leaving = pc.or_(pc.equal(kinds, _PRE), pc.equal(kinds, "delete"))
        self.strict &= bool(pc.all(pc.equal(kinds, expected)).as_py())
        self.rows += len(kinds)
        self.leaving += pc.sum(leaving).as_py() or 0

    def _add_images(self, kinds: pa.StringArray, positions: pa.Int64Array) -> None:
        pre, post = (positions.filter(pc.equal(kinds, kind)) for kind in (_PRE, _POST))
        wanted = pc.add(pre, pa.scalar(1, pa.int64()))
        if self._open is not None:
            wanted = pa.concat_arrays([pa.array([self._open]), wanted])
        self._open = None
        if len(kinds) and kinds[-1].as_py() == _PRE:
            self._open, wanted = wanted[-1].as_py(), wanted.slice(0, len(wanted) - 1)
        self._apart |= not wanted.equals(post)
        self.images += len(pre) + len(post)

    @property
    def adjacent(self) -> bool:
        """Return whether it has updates, the images of each of them side by side."""
        return bool(self.images) and not self._apart and self._open is None

    @property
    def pairs(self) -> int:
        """Return how many pairs of adjacent images it has, if it has nothing else."""
        return self.rows // 2 if self.strict and self.rows % 2 == 0 else 0


def _cdc_files(files: Iterable[ChangeFile]) -> list[ChangeFile]:
    """Return each cdc file once: where kinds are read apart, a file is twice in the plan."""
    return list({f.path: f for f in files if f.change_type is None}.values())


def _place_runs(files: Iterable[ChangeFile], counts: Mapping[str, _Counts]) -> list[_Run]:
    """Return where the adjacent images are in the plain sequence."""
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


def _list_run_pairs(runs: Sequence[_Run]) -> Iterator[pa.RecordBatch]:
    for pre, post, step, count in runs:
        for at in range(0, count, _RUN_ROWS):
            numbers = pa.arange(at, min(at + _RUN_ROWS, count))
            steps = pc.multiply(numbers, pa.scalar(step, pa.int64()))
            columns = [pc.add(steps, pa.scalar(start, pa.int64())) for start in (pre, post)]
            yield pa.RecordBatch.from_arrays(columns, schema=PAIR)
