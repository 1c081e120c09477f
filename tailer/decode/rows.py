"""From one data file to its changed rows: a generator of Arrow batches, in bounded memory.

It runs in a worker thread and does nothing but decode: the file's bytes and its row selection are
given. Row groups stream one after the other; row groups without a wanted row are never decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from tailer.changes import (
    CHANGE_TYPE,
    CHANGE_TYPES,
    COMING_KINDS,
    LEAVING_KINDS,
    METADATA_FIELDS,
    ChangeFile,
    ChangeType,
    DecodedRows,
)
from tailer.decode.byte_range import ByteRange
from tailer.decode.constants import build_kinds_column, list_texts, repeat_kind, repeat_value
from tailer.decode.file_opening import SMALL_BYTES, check_nested, open_parquet
from tailer.decode.options import DecodeOptions
from tailer.decode.output import FileLayouts, convert_columns
from tailer.decode.row_order import is_ordered
from tailer.decode.tracking import build_row_ids
from tailer.decode.unreadable_files import MAY_BE_SOUND, UNREADABLE, make_unreadable_error
from tailer.decode.vectors import RowSelection, positions_within
from tailer.delta.bounded import BoundedColumns
from tailer.delta.parquet_columns import ParquetColumns
from tailer.delta.row_groups import RowGroups
from tailer.errors import CorruptLog, CorruptRow, TableError, UnsupportedTable
from tailer.native.values import make_flags, make_integers, make_texts

__all__ = [
    "EARLY_KINDS",
    "DecodeOptions",
    "DecodedRows",
    "LeftOut",
    "OpenFile",
    "Skip",
    "build_kinds",
    "decode_file",
]


class Skip(Struct):
    """How many changes of a version must still be skipped. One object for a span: whoever passes
    changes lowers it, the finder of the index or a decoder in a worker thread."""

    remaining: int = 0


class LeftOut(Struct):
    """What is left out of a file: ``find_groups`` gives the numbers of row groups whose rows are
    not decoded, though they count, and ``count`` is how many changes these were; whoever takes it
    sets it to zero."""

    find_groups: Callable[[ParquetColumns], Collection[int]]
    count: int = 0


#: The columns of a larger file are shared out among threads. It costs some, and of smaller files
#: another one is decoded at the same time.
_SHARED_BYTES = 16 * 1024 * 1024

#: This number of rows between wanted ones is passed over without decoding. A row group is read in
#: at most the second number of ranges.
_GAP_ROWS, _RANGES_MAX = 4096, 16

#: Change types as early writers spelled them.
EARLY_KINDS = {"update_pre": "update_preimage", "update_post": "update_postimage"}

#: The kinds of change that one pass over a cdc file gives; None: all of them.
_Kinds: TypeAlias = tuple[ChangeType, ...] | None

#: Opens a file of the plan: its bytes and its selected rows. Called in the same thread.
OpenFile: TypeAlias = Callable[[ChangeFile], tuple[pa.NativeFile, RowSelection]]


def decode_file(
    source: pa.NativeFile,
    file: ChangeFile,
    selection: RowSelection,
    options: DecodeOptions,
    skip: Skip,
    part: ByteRange | None = None,
    layouts: FileLayouts | None = None,
    left_out: LeftOut | None = None,
) -> Iterator[DecodedRows]:
    """Yield the changed rows of one file, or of a ``part`` of it, except those that ``skip`` skips.

    ``layouts`` are what the files before it were found to look like, under the same options. Of a
    file that does not say itself what its changes are, rows may be ``left_out``.
    Raises :class:`TableError`, naming version and file, if the file contradicts the log.
    """
    try:
        parquet = open_parquet(source, file, options)
        decoder = _Decoder(
            parquet, source, file, selection, options, layouts or FileLayouts(options)
        )
        if left_out is not None and file.change_type is not None:
            decoder.left_out = left_out
        yield from decoder.decode_batches(skip, part)
    except TableError as e:
        raise e.at(version=file.version, path=file.path) from None
    except UNREADABLE as e:
        raise make_unreadable_error(file, e) from None


def build_kinds(file: ChangeFile, positions: pa.Int64Array, first: int, last: int) -> pa.Array:
    """Return the change types of a data file's rows at these positions, all in first..last-1."""
    kinds = repeat_kind(file.change_type, len(positions))
    if file.updated is None:
        return kinds
    image = "update_preimage" if file.change_type == "delete" else "update_postimage"
    updated = positions_within(file.updated, first, last)
    if updated.equals(positions):
        return repeat_kind(image, len(positions))
    return pc.if_else(pc.is_in(positions, value_set=updated), make_texts([image])[0], kinds)


def _filter_rows(
    mask: pa.BooleanArray, batch: pa.RecordBatch, *arrays: pa.Array
) -> tuple[Any, ...]:
    """Return the rows that the mask selects. If they lie side by side, as most writers leave them,
    and are most of the rows, they are not copied: what is kept of few would hold all in memory."""
    first, count = pc.index(mask, make_flags([True])[0]).as_py(), mask.true_count
    if not count or (2 * count >= len(mask) and mask.slice(first, count).true_count == count):
        return tuple(rows.slice(max(0, first), count) for rows in (batch, *arrays))
    return tuple(pc.filter(rows, mask) for rows in (batch, *arrays))


def _skip_rows(skip: Skip, rows: DecodedRows) -> Iterator[DecodedRows]:
    """Yield the rows without those that must still be skipped."""
    passed = min(skip.remaining, rows.batch.num_rows)
    skip.remaining -= passed
    if passed < rows.batch.num_rows:
        yield rows.slice(passed)


class _Decoder:
    """The decoding of one file, prepared once and then applied to every batch."""

    def __init__(
        self,
        parquet: ParquetColumns,
        source: pa.NativeFile,
        file: ChangeFile,
        selection: RowSelection,
        options: DecodeOptions,
        layouts: FileLayouts,
    ) -> None:
        self.parquet = parquet
        self.source = source
        self.size = int(source.size())
        self.file = file
        self.selection = selection
        self.options = options
        if selection.end() > parquet.num_rows:
            raise CorruptLog(
                f"the deletion vector names row {selection.end() - 1} of a file that has "
                f"{parquet.num_rows}"
            )
        layout = layouts.find_layout(parquet, file)
        self.schema, self.parts, self.names = layout.schema, layout.parts, layout.names
        self.plain, self.varying, self.fixed_bits = layout.plain, layout.varying, layout.fixed_bits
        self.row_ids, self.row_id_column = layout.row_ids, layout.row_id_column
        self.row_groups = RowGroups(parquet, source)
        self.row_groups.check(file.num_records, layout.flat)
        self.bounded = BoundedColumns(
            parquet, self.row_groups, options.batch_bytes_max, options.page_batch_bytes
        )
        self.left_out = LeftOut(lambda _: ())

    def decode_batches(self, skip: Skip, part: ByteRange | None) -> Iterator[DecodedRows]:
        if self.options.on_read is not None and not self._is_read_whole():
            self.options.on_read(self.parquet.footer.size)
        total = self.parquet.num_rows
        if part is not None:
            self.selection = part.narrow_selection(self.selection, total, self.size)
        passes = self._find_passes(skip, part, total)
        coming_rows: list[DecodedRows] | None = []  # the rows that come, while they are few
        held = 0
        for kinds, rows in self._decode_passes(skip, part, passes):
            if kinds is passes[0]:
                yield from _skip_rows(skip, rows)
            elif coming_rows is not None:
                held += int(rows.batch.nbytes)
                coming_rows.append(rows)
                if held > self.options.batch_bytes_max:
                    coming_rows = None
        for rows in coming_rows or ():
            yield from _skip_rows(skip, rows)
        if coming_rows is None:
            for _, rows in self._decode_passes(skip, part, passes[1:]):
                yield from _skip_rows(skip, rows)

    def _find_passes(self, skip: Skip, part: ByteRange | None, total: int) -> tuple[_Kinds, ...]:
        """Return the kinds of change, in the order of the passes. The change types of a
        cdc file are read for that: one pass may be enough."""
        file = self.file
        if file.change_type is not None or file.kinds is not None:
            return (file.kinds,)
        if part is None and self.selection.count(0, total) <= skip.remaining:
            return (None,)  # nothing is read
        self.row_groups.announce([CHANGE_TYPE], range(self.parquet.num_row_groups))
        return (None,) if is_ordered(self.parquet) else (LEAVING_KINDS, COMING_KINDS)

    def _decode_passes(
        self, skip: Skip, part: ByteRange | None, passes: tuple[_Kinds, ...]
    ) -> Iterator[tuple[_Kinds, DecodedRows]]:
        """Yield the rows of each kind, batch by batch."""
        groups = self._skip_to_groups(skip, part, passes)
        unwanted = self.left_out.find_groups(self.parquet) if groups else ()
        self.row_groups.announce(self.names, [group for group in groups if group not in unwanted])
        for group, first in groups.items():
            if group in unwanted:
                count = self.selection.count(first, first + self.parquet.groups[group].rows)
                skipped = min(skip.remaining, count)
                skip.remaining -= skipped
                self.left_out.count += count - skipped
            else:
                yield from self._decode_row_group(group, first, skip, passes)

    def _skip_to_groups(
        self, skip: Skip, part: ByteRange | None, passes: tuple[_Kinds, ...]
    ) -> dict[int, int]:
        """Return the row groups to read, with their first rows; those before them are skipped."""
        first, total, first_rows = 0, self.parquet.num_rows, dict[int, int]()
        for group, rows in enumerate(group.rows for group in self.parquet.groups):
            if part is None or part.has_row_group(first, rows, max(1, total), self.size):
                wanted = self.selection.count(first, first + rows)
                if passes != (None,) or wanted > (0 if first_rows else skip.remaining):
                    first_rows[group] = first
                elif not first_rows:
                    skip.remaining -= wanted
            first += rows
        return first_rows

    def _decode_row_group(
        self, group: int, first: int, skip: Skip, passes: tuple[_Kinds, ...]
    ) -> Iterator[tuple[_Kinds, DecodedRows]]:
        """Yield one row group's selected rows; ``first`` is the position of its first row."""
        count = self.parquet.groups[group].rows
        end = first + count
        row_bytes = self._estimate_row_bytes(group)
        size = min(self.options.batch_rows_max, self.options.batch_bytes_max // row_bytes)
        if not self.names:  # only constants: there is no column to take the length from
            for rows in self._build_constant_rows(first, count, max(1, size)):
                yield passes[0], rows
            return
        begin = first if passes != (None,) else self._skip_to_first_wanted(first, skip)
        ranges = self.selection.find_ranges(begin, end, _GAP_ROWS, _RANGES_MAX)
        self._count_read(group)
        while ranges:
            at, stop = ranges.pop(0)
            if not self.parquet.skips_rows and ranges:
                (_, stop), ranges = ranges[-1], []
            for batch in self._decode_columns(max(1, min(size, stop - at)), group, at - first):
                wanted = batch.slice(0, stop - at)
                yield from self._select_rows(wanted, at, passes)
                at += wanted.num_rows
                if not self.selection.count(at, end):
                    return  # the rest of the row group need not be decoded
                if at == stop:
                    break
            if at != stop:
                # It ends at a page without values, which some writers begin a column with.
                raise UnsupportedTable(
                    f"the library that reads Parquet gives {end - at} rows fewer than the data "
                    f"file says that it has (pyarrow {pa.__version__})",
                    hint=MAY_BE_SOUND,
                )

    def _select_rows(
        self, batch: pa.RecordBatch, first: int, passes: tuple[_Kinds, ...]
    ) -> Iterator[tuple[_Kinds, DecodedRows]]:
        """Yield a batch's selected rows, of each pass; ``first`` is the position of its first."""
        if not self.plain:
            check_nested(batch)
        for kinds in passes:
            selected = self._build_rows(batch, first, first + batch.num_rows, kinds)
            if selected is not None:
                yield kinds, selected

    def _skip_to_first_wanted(self, first: int, skip: Skip) -> int:
        """Return the position of the first row of a row group that is wanted and not skipped: those
        before it are not decoded."""
        only, passed = self.selection.only, skip.remaining
        if only is None and self.selection.without:
            return first
        skip.remaining = 0
        if only is None:
            return first + passed
        return int(only[passed + (only.rank(first - 1) if first else 0)])

    def _decode_columns(self, size: int, group: int, first: int) -> Iterator[pa.RecordBatch]:
        threads = self.size > _SHARED_BYTES
        return self.bounded.read_batches(
            size, group, self.names, varying=self.varying, threads=threads, first=first
        )

    def _is_read_whole(self) -> bool:
        return self.size <= SMALL_BYTES and self.parquet.num_row_groups == 1

    def _count_read(self, group: int) -> None:
        if self.options.on_read is None:
            return
        if self._is_read_whole():
            self.options.on_read(self.size)
        else:
            self.options.on_read(min(self.size, self.row_groups.count_bytes(group, self.names)))

    def _estimate_row_bytes(self, group: int) -> int:
        """Estimate how many bytes a row takes when decoded.

        The file gives only the encoded size, and with a dictionary of long strings that may be 1 %
        of the decoded size; so a few values are decoded to measure them, where their type does not
        say their size.
        """
        said = self.parquet.groups[group]
        encoded = said.bytes // max(1, said.rows)
        decoded = self.fixed_bits // 8
        varying = self.varying
        if not varying or self.bounded.fits(self.options.batch_rows_max, group, varying):
            return max(1, encoded, decoded)
        return max(1, encoded, decoded + self.bounded.measure_rows(group, varying).average)

    def _build_constant_rows(self, first: int, count: int, size: int) -> Iterator[DecodedRows]:
        for at in range(first, first + count, size):
            last = min(at + size, first + count)
            empty = pa.RecordBatch.from_struct_array(
                pa.array([{}], pa.struct([])).take(pa.repeat(pa.scalar(0, pa.int32()), last - at))
            )
            rows = self._build_rows(empty, at, last, None)
            if rows is not None:
                yield rows

    def _build_rows(
        self, batch: pa.RecordBatch, first: int, last: int, wanted: _Kinds
    ) -> DecodedRows | None:
        indices = self.selection.find_indices(first, last)
        positions = pa.arange(first, last)
        if indices is not None:
            if not len(indices):
                return None
            batch = pc.take(batch, indices)
            positions = pc.take(positions, indices)
        if self.file.change_type is None:
            coded = batch.column(CHANGE_TYPE)
            words, numbers = _parse_kinds(coded), coded.indices
            if wanted is not None:
                mask = pc.take(make_flags([word in wanted for word in words]), numbers)
                batch, positions, numbers = _filter_rows(mask, batch, positions, numbers)
                if not len(numbers):
                    return None
            kinds = build_kinds_column(words, numbers)
        else:
            kinds = build_kinds(self.file, positions, first, last)
        ids = None
        if self.row_ids:
            name = self.row_id_column
            ids = build_row_ids(self.file, positions, None if name is None else batch.column(name))
        output = self._build_output(batch, kinds, len(positions))
        return DecodedRows(output, positions, ids, self.parquet.gives_utf8)

    def _build_output(self, batch: pa.RecordBatch, kinds: pa.Array, count: int) -> pa.RecordBatch:
        columns = convert_columns(self.parts, batch, count)
        time_us = self.file.timestamp_ms * 1000
        columns += [
            kinds,
            repeat_value(make_integers([self.file.version], pa.int64())[0], count),
            repeat_value(make_integers([time_us], METADATA_FIELDS[2].type)[0], count),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _parse_kinds(coded: pa.DictionaryArray) -> list[str]:
    """Return the kinds of change that the numbers of a cdc file's rows stand for."""
    if coded.null_count:
        raise CorruptRow("the cdc file has a row of change type None")
    kinds = []
    for name in list_texts(coded):
        kind = EARLY_KINDS.get(name, name)
        if kind not in CHANGE_TYPES:
            raise CorruptRow(f"the cdc file has a row of change type {name!r}")
        kinds.append(kind)
    return kinds
