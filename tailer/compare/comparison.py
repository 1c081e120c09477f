"""The two sides of a rewrite, and their rows in the form that the engine takes."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import structs
from pyroaring import BitMap64

from tailer.changes import METADATA_FIELDS, ChangeFile, DecodedRows
from tailer.compare.row_cache import RowCache
from tailer.compare.side_by_side import (
    DecodedSide,
    FileRows,
    match_heads,
    may_match,
    read_side_by_side,
)
from tailer.compare.stream import COMING, LEAVING, OTHER_FIELD, PLACED, REF_FIELDS, RowStream
from tailer.decode.naming import Removal, find_removal
from tailer.decode.options import DecodeOptions, DiffOptions
from tailer.decode.output import build_output_schema
from tailer.decode.rows import OpenFile, Skip, decode_file
from tailer.decode.tracking import TRACKED, read_tracked_rows
from tailer.decode.variant import canonicalize_variants
from tailer.decode.vectors import RowSelection, build_bitmap, list_positions
from tailer.delta.snapshot import TableState

#: Rows of one side: positions by the number of the file.
Positions: TypeAlias = Mapping[int, BitMap64]

#: A row's reference in the engine: file number and position in one 64-bit integer.
_POSITION_BITS = 40
_POSITION_MASK = (1 << _POSITION_BITS) - 1

#: The number of rows that show which file is the rewrite of which.
_HEAD_ROWS = 64

_NONE_REWRITTEN: Mapping[int, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Comparison:
    """The files that leave and those that come, to be compared in the schema ``after``,
    independent of the schema of the output.

    ``decode`` are the options of the output. ``only`` and ``columns`` restrict a second pass to
    some rows and columns; None: all.
    """

    leaving: Sequence[ChangeFile]
    coming: Sequence[ChangeFile]
    after: TableState
    open_file: OpenFile
    decode: DecodeOptions
    options: DiffOptions = field(default_factory=DiffOptions)
    only: tuple[Positions, Positions] | None = None
    columns: tuple[str, ...] | None = None

    def restrict_to(
        self, only: tuple[Positions, Positions], columns: tuple[str, ...] | None = None
    ) -> Comparison:
        """Return a comparison of the same files with only these rows and columns."""
        return replace(self, only=only, columns=columns)

    def find_reusable_sides(self) -> tuple[bool, bool]:
        """Return, for each side, whether rows decoded here can be reused for the output."""
        if self.decode.columns is not None:
            return False, False
        left, came = (
            all((self.decode.target or f.state) == self.after for f in files)
            for files in (self.leaving, self.coming)
        )
        return left, came

    def match_rewritten(self) -> dict[int, int]:
        """Return the leaving files that may each have been rewritten as one that comes, by
        number."""
        left, came = (
            [number for its, number, _ in self._list_files() if its == side]
            for side in (LEAVING, COMING)
        )
        if not may_match([self.leaving[n] for n in left], [self.coming[n] for n in came]):
            return {}
        matches = match_heads(
            [self._read_head(LEAVING, number) for number in left],
            [self._read_head(COMING, number) for number in came],
        )
        return {left[one]: came[other] for one, other in matches.items()}

    def _read_head(self, side: int, number: int) -> DecodedRows | None:
        """Return the first few rows of a file; its bytes are counted when all of it is read."""
        few = structs.replace(self.decode, batch_rows_max=_HEAD_ROWS, on_read=None)
        with closing(self._decode_file_rows(side, number, few)) as rows:
            return next(rows, None)

    def stream_values(
        self, rewritten: Mapping[int, int] = _NONE_REWRITTEN, cache: RowCache | None = None
    ) -> RowStream:
        """Return the rows of both sides with their references; ``rewritten`` are read side by
        side and give placed rows."""
        schema = build_value_schema(self.after, self.columns)
        width = len(schema) - len(REF_FIELDS)
        if rewritten:
            schema = schema.append(OTHER_FIELD)

        def batches() -> Iterator[pa.RecordBatch]:
            for decoded in self.decode_files(rewritten, cache):
                rows = decoded.rows
                arrays = [
                    pa.repeat(pa.scalar(decoded.side, pa.int8()), len(rows.positions)),
                    build_file_refs(decoded.number, rows.positions),
                    *_make_comparable(rows.batch.columns[:width], decoded.side),
                ]
                if decoded.came is not None:
                    number, positions = decoded.came
                    arrays.append(build_file_refs(number, positions))
                elif rewritten:
                    arrays.append(pa.nulls(len(rows.positions), pa.int64()))
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)

        return RowStream(schema, batches())

    def decode_files(
        self, rewritten: Mapping[int, int] = _NONE_REWRITTEN, cache: RowCache | None = None
    ) -> Generator[DecodedSide, None, None]:
        """Yield the rows of all files; two files at a time where one is the rewrite of the other.

        Without ``rewritten``, all rows go into the cache, otherwise only those that differ.
        """
        for side, number, _ in self._list_files():
            if side == LEAVING and cache is not None and number in rewritten:
                other = rewritten[number]
                left = FileRows(LEAVING, number, self._decode_file_rows(LEAVING, number))
                came = FileRows(COMING, other, self._decode_file_rows(COMING, other))
                yield from read_side_by_side(left, came, cache)
            elif side == LEAVING or number not in rewritten.values():
                for rows in self._decode_file_rows(side, number):
                    if cache is not None and not rewritten:
                        cache.add_rows(side, number, rows)
                    yield DecodedSide(side, number, rows)

    def read_tracked(self) -> Iterator[tuple[int, pa.Int64Array, pa.RecordBatch]]:
        """Yield side, references and tracking columns of all rows."""
        for side, number, file in self._list_files():
            source, selection = self.open_file(file)
            with source:
                for rows in read_tracked_rows(source, file, selection, self.decode.on_read):
                    yield side, build_file_refs(number, rows.column(0)), rows

    def stream_tracked(self) -> RowStream:
        """Return :meth:`read_tracked` as a stream for the engine."""
        schema = pa.schema([*REF_FIELDS, *list(TRACKED)[1:]])

        def batches() -> Iterator[pa.RecordBatch]:
            for side, refs, rows in self.read_tracked():
                sided = pa.repeat(pa.scalar(side, pa.int8()), len(refs))
                yield pa.RecordBatch.from_arrays([sided, refs, *rows.columns[1:]], schema=schema)

        return RowStream(schema, batches())

    def _list_files(self) -> Iterator[tuple[int, int, ChangeFile]]:
        for side, files in ((LEAVING, self.leaving), (COMING, self.coming)):
            for number, file in enumerate(files):
                yield side, number, file

    def _decode_file_rows(
        self, side: int, number: int, decode: DecodeOptions | None = None
    ) -> Generator[DecodedRows, None, None]:
        file = (self.leaving, self.coming)[side][number]
        source, selection = self.open_file(file)
        if self.only is not None:
            selection = RowSelection.from_sets(self.only[side].get(number, BitMap64()), None)
        version = next(f.version for f in (*self.leaving, *self.coming))
        options = structs.replace(
            decode or self.decode,
            target=self.after,
            target_version=version,
            removals=self._find_removals(version),
            columns=self.columns,
            own_columns=True,
        )
        with source:
            yield from decode_file(source, file, selection, options, Skip())

    def _find_removals(self, version: int) -> tuple[Removal, ...]:
        """Return the removal of a column mapping in this very version, or nothing."""
        before = self.leaving[0].state if self.leaving else self.after
        mapping_removal = find_removal(version, before, self.after)
        return () if mapping_removal is None else (mapping_removal,)


def _make_comparable(columns: list[pa.Array], side: int) -> list[pa.Array]:
    """Return the columns with variants in canonical form, where equal variants are identical;
    placed rows were compared already, so theirs stay unchanged."""
    return columns if side == PLACED else [canonicalize_variants(c) for c in columns]


def build_value_schema(state: TableState, columns: tuple[str, ...] | None = None) -> pa.Schema:
    """Return the schema of the rows that are compared: side, reference, and these columns (None:
    all) by number, because two names may differ only in case, or be reserved words."""
    data = list(build_output_schema(state, columns))[: -len(METADATA_FIELDS)]
    return pa.schema([*REF_FIELDS, *(pa.field(f"c{i}", f.type) for i, f in enumerate(data))])


def build_file_refs(number: int, positions: pa.Int64Array) -> pa.Int64Array:
    """Return the references of rows at these positions of a file."""
    return pc.add(positions, pa.scalar(number << _POSITION_BITS, pa.int64()))


def _split_refs(refs: pa.Int64Array) -> tuple[pa.Int64Array, pa.Int64Array]:
    """Return the numbers of the files, and the positions there, of some references."""
    numbers = pc.shift_right(refs, pa.scalar(_POSITION_BITS, pa.int64()))
    return numbers, pc.bit_wise_and(refs, pa.scalar(_POSITION_MASK, pa.int64()))


def group_refs_by_file(references: BitMap64) -> dict[int, BitMap64]:
    """Group references by file: file number -> positions."""
    numbers, positions = _split_refs(list_positions(references))
    refs: dict[int, BitMap64] = {}
    at = 0
    for entry in pc.value_counts(numbers).to_pylist():
        refs[entry["values"]] = build_bitmap(positions.slice(at, entry["counts"]))
        at += entry["counts"]
    return refs
