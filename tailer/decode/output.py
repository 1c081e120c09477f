"""The columns of the output, and how each of them is made from one data file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeAlias

import pyarrow as pa
from msgspec import Struct

from tailer.changes import CHANGE_TYPE, METADATA_FIELDS, ChangeFile
from tailer.decode.calendar import find_calendar
from tailer.decode.constants import repeat_value
from tailer.decode.naming import find_file_schema
from tailer.decode.options import ColumnChoice, DecodeOptions
from tailer.decode.project import Convert, FileFields, find_field, make_converter
from tailer.decode.tracking import find_row_id_column, has_known_row_ids
from tailer.delta.arrow_types import arrow_schema, arrow_type
from tailer.delta.parquet_columns import ParquetColumns
from tailer.delta.partitions import find_partition_text, parse_partition_value
from tailer.delta.schema import StructField
from tailer.delta.snapshot import TableState
from tailer.errors import CorruptLog, CorruptRow, UnsupportedTable

#: A column of the output: a column of the file with its conversion, or a constant (pa.Scalar).
ColumnSource: TypeAlias = tuple[str, Convert] | Any


def find_chosen_columns(columns: ColumnChoice | None, state: TableState) -> Sequence[str]:
    """Return the names of a state's columns that are chosen, in their order; None: all."""
    if columns is None:
        return state.schema.names
    return columns(state) if callable(columns) else columns


def check_names(state: TableState, columns: ColumnChoice | None = None) -> None:
    """Raise :class:`UnsupportedTable` if one of these columns (None: all of the state's) has the
    name of a metadata column: the two would be indistinguishable."""
    wanted = find_chosen_columns(columns, state)
    for reserved in METADATA_FIELDS:
        if reserved.name in wanted and reserved.name in state.schema.names:
            raise UnsupportedTable(
                f"the table has a column {reserved.name!r}, and that is a column of every change",
                hint="rename the column, or exclude it, as with --select '* exclude (...)'",
            )


def build_output_schema(state: TableState, columns: ColumnChoice | None = None) -> pa.Schema:
    """Return the Arrow schema of a state's change rows: data columns, then three metadata
    columns."""
    schema = arrow_schema(state.schema)
    if columns is not None:
        chosen = find_chosen_columns(columns, state)
        schema = pa.schema([schema.field(name) for name in chosen if name in schema.names])
    return pa.schema([*schema, *METADATA_FIELDS])


class Projection:
    """How the data columns are made from one file.

    The file's columns, and its own state's columns by their physical names, are looked up once for
    all columns of the output, of which there may be thousands.
    """

    def __init__(self, parquet: ParquetColumns, file: ChangeFile, options: DecodeOptions) -> None:
        state = file.state
        self._file = file
        self._options = options
        self._present = FileFields(parquet.schema)
        self._calendar = find_calendar(parquet.footer.key_values)
        self._partitions = {state.physical_name(f): f for f in state.partition_fields()}
        self._own = {state.physical_name(f).lower() for f in state.schema}
        schema, mapping = state.schema, state.mapping
        if options.target is not None:
            schema, mapping = find_file_schema(
                options.target, options.target_version, file, options.removals
            )
        fields = {f.name: f for f in schema}
        wanted = find_chosen_columns(options.columns, options.target or state)
        self.parts = [self._build_part(fields[name], mapping) for name in wanted if name in fields]

    def list_names(self) -> list[str]:
        """Return the file's columns that are needed."""
        return [part[0] for part in self.parts if isinstance(part, tuple)]

    def _build_part(self, field: StructField, mapping: str) -> ColumnSource:
        """Return how one data column is made.

        Partition values are found by the column's name in the file's own state, and the log's value
        wins where the file has the column too (IcebergCompat).
        """
        physical = field.name if mapping == "none" else field.physical_name
        if physical in self._partitions:
            return self._find_partition_value(field, self._partitions[physical])
        found = None
        if not self._options.own_columns or physical.lower() in self._own:
            found = find_field(self._present, field, mapping)
        if found is None:
            return pa.scalar(None, arrow_type(field.type))
        name, source = found[1].name, found[1].type
        convert = make_converter(source, field.type, mapping, field.name, self._calendar)
        return name, convert

    def _find_partition_value(self, field: StructField, own: StructField) -> pa.Scalar:
        """Return the partition value of a column that is ``own`` in the file's own state."""
        zone = self._options.writer_timezone
        text = find_partition_text(
            self._file.partition_values,
            self._file.state.physical_name(own),
            own.name,
            absent_is_null=self._file.change_type is None,
        )
        is_own = own.type == field.type
        try:
            # In another type than the one it was written in, a text is neither cut nor rounded.
            return parse_partition_value(text, field.type, zone, exact=not is_own)
        except CorruptLog:
            if is_own:
                raise
            parse_partition_value(text, own.type, zone)
            raise CorruptRow(
                f"the partition value {text!r} can't be read in the later type of the column "
                f"{field.name!r}"
            ) from None


class FileLayout(Struct, frozen=True):
    """How the rows of a file become rows of the output.

    ``schema`` is the output's, ``parts`` are its data columns, and ``names`` the columns that are
    read. ``plain``: none of these is nested; ``flat``: those that are not nested.
    ``varying``: those whose values differ in size; the others have ``fixed_bits`` in each row.
    ``row_ids``: the ids of the rows are wanted and known; ``row_id_column`` stores them.
    """

    schema: pa.Schema
    parts: list[ColumnSource]
    names: list[str]
    plain: bool
    flat: list[str]
    varying: list[str]
    fixed_bits: int
    row_ids: bool
    row_id_column: str | None

    @classmethod
    def from_file(
        cls, parquet: ParquetColumns, file: ChangeFile, options: DecodeOptions
    ) -> FileLayout:
        """Return the layout of a file. Raises :class:`TableError` if it does not fit the log."""
        projection = Projection(parquet, file, options)
        in_file = parquet.schema
        names = projection.list_names()
        if file.change_type is None:
            names.append(CHANGE_TYPE)
        known = options.row_ids and has_known_row_ids(file)
        stored = find_row_id_column(file, in_file.names) if known else None
        if stored is not None:
            names.append(stored)
        counts = Counter(in_file.names)
        for name in names:
            if counts[name] > 1:
                raise CorruptLog(f"the data file has two columns {name!r}")
        schema = build_output_schema(options.target or file.state, options.columns)
        types = [in_file.field(name).type for name in names]
        plain = not any(pa.types.is_nested(t) for t in types)
        flat = [n for n, t in zip(names, types, strict=True) if not pa.types.is_nested(t)]
        widths = [t.bit_width if _is_fixed(t) else None for t in types]
        varying = [name for name, width in zip(names, widths, strict=True) if width is None]
        fixed_bits = sum(width or 0 for width in widths)
        return cls(schema, projection.parts, names, plain, flat, varying, fixed_bits, known, stored)


def _is_fixed(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(data_type) or pa.types.is_decimal(data_type))


def convert_columns(parts: list[ColumnSource], batch: pa.RecordBatch, count: int) -> list[pa.Array]:
    """Return the data columns of the output for ``count`` rows with these columns of a file."""
    return [
        part[1](batch.column(part[0])) if isinstance(part, tuple) else repeat_value(part, count)
        for part in parts
    ]


class FileLayouts:
    """Finds the layouts of files under the same options. The last one is kept, because most files
    of a table have the same form."""

    def __init__(self, options: DecodeOptions) -> None:
        self._options = options
        self._last: tuple[ChangeFile, pa.Schema, object, FileLayout] | None = None

    def find_layout(self, parquet: ParquetColumns, file: ChangeFile) -> FileLayout:
        """Return a file's layout, as :meth:`FileLayout.from_file` does. Threads may share this."""
        schema, calendar = parquet.schema, find_calendar(parquet.footer.key_values)
        if self._last is not None:
            like, its_schema, its_calendar, layout = self._last
            if (
                self.are_alike(like, file)
                and its_calendar == calendar
                and its_schema.equals(schema, check_metadata=True)
            ):
                return layout
        layout = FileLayout.from_file(parquet, file, self._options)
        self._last = file, schema, calendar, layout
        return layout

    def are_alike(self, one: ChangeFile, other: ChangeFile) -> bool:
        """Return whether two files whose columns are equal have the same layout."""
        target = self._options.target
        return (
            one.state is other.state
            and (one.change_type is None) == (other.change_type is None)
            and (one.base_row_id is None) == (other.base_row_id is None)
            and one.partition_values == other.partition_values
            # Names in files from before a removal of column mapping depend on the version.
            and (
                target is None
                or one.version == other.version
                or (not self._options.removals and target.mapping == one.state.mapping)
            )
        )
