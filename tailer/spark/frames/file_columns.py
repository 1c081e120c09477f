"""The query's columns as Spark's own Parquet reader finds them in the files of one state.

Spark finds a column by its name or its id, at each level, reads a narrower type as the wider one,
and gives null for a column that a file lacks. So do Delta and our decoder, and where the three do
not agree, the file is the decoder's: a variant, a nested column of whose fields the file's schema
lacks one, and a type that Delta does not widen to the query's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct
from pyspark.sql import types as s

from tailer.changes import CHANGE_TYPE, ChangeFile
from tailer.decode.naming import find_file_schema
from tailer.decode.options import DecodeOptions
from tailer.delta.char import char_length
from tailer.delta.types import (
    ArrayType,
    DataType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
)
from tailer.spark.types import spark_type

_READABLE = re.compile(
    r"string|long|integer|short|byte|float|double|boolean|binary|date|timestamp(_ntz)?|decimal.*"
)
_DECIMAL = re.compile(r"decimal\((\d+), *(-?\d+)\)")
#: What Spark reads as a wider type, as Delta widens it; integers also as decimals that hold them.
_WIDER = {
    "byte": ("short", "integer", "long", "double"),
    "short": ("integer", "long", "double"),
    "integer": ("long", "double"),
    "float": ("double",),
    "date": ("timestamp_ntz",),
}
#: The digits of integers, as Delta counts them for decimals.
_DIGITS = {"byte": 10, "short": 10, "integer": 10, "long": 20}
_FIELD_ID = "parquet.field.id"


class FileColumns(Struct, frozen=True):
    """The columns in the files of one kind. ``read`` are those in the files, as Spark's struct with
    the names and ids that they have there; ``names`` are the query's names for them.
    ``partitions`` are the query's columns that are partition columns of the files, by the names of
    both. ``by_id``: columns are found by their ids."""

    names: tuple[str, ...]
    read: s.StructType
    partitions: tuple[tuple[str, StructField], ...]
    by_id: bool

    def scan_key(self) -> tuple[object, ...]:
        """Return what is equal for files that one scan can read."""
        return self.names, self.read.json(), tuple(n for n, _ in self.partitions), self.by_id


def file_columns(
    file: ChangeFile, options: DecodeOptions, names: Iterable[str]
) -> FileColumns | None:
    """Return these columns of the query in a file's state; None if they are not Spark's to read.

    ``options`` say what the query's schema is.
    """
    assert options.target is not None
    state = file.state
    if CHANGE_TYPE in {name for f in state.schema for name in (f.name, state.physical_name(f))}:
        return None  # only in cdc files is that what it says
    schema, mapping = find_file_schema(
        options.target, options.target_version, file, options.removals
    )
    fields, mapped = {f.name: f for f in schema}, state.mapping != "none"
    written = _Written(state.schema, mapping, mapped=mapped)
    partitions = {state.physical_name(f): f for f in state.partition_fields()}
    found, read, by_value = [], s.StructType(), []
    for number, name in enumerate(names):
        field = fields[name]
        physical = field.name if mapping == "none" else field.physical_name
        if physical in partitions:
            if not _is_readable(field.type):
                return None
            by_value.append((name, partitions[physical]))
            continue
        own = written.find_field(field)
        if own is None and not _is_any_readable(field.type):
            return None
        if own is not None and not _is_readable_as(own.type, field.type, mapping, mapped=mapped):
            return None
        # A name that no file has, for a column that this one can't have.
        known = bool(physical) and (mapping != "id" or field.field_id is not None)
        read.add(_spark_field(field, mapping, physical if known else f"__tailer_none_{number}"))
        found.append(name)
    return FileColumns(tuple(found), read, tuple(by_value), mapping == "id")


class _Written:
    """The fields of one level of a state's schema, by what a column is found by."""

    def __init__(self, schema: StructType, mapping: str, *, mapped: bool) -> None:
        self._mapping = mapping
        self._by_id = {f.field_id: f for f in schema if f.field_id is not None}
        self._by_name = {(f.physical_name if mapped else f.name).lower(): f for f in schema}

    def find_field(self, wanted: StructField) -> StructField | None:
        """Return the field that a column is read from; None if the schema has none."""
        if self._mapping == "id":
            return None if wanted.field_id is None else self._by_id.get(wanted.field_id)
        name = wanted.name if self._mapping == "none" else wanted.physical_name
        return self._by_name.get(name.lower())


def _is_readable_as(own: DataType, wanted: DataType, mapping: str, *, mapped: bool) -> bool:
    """Return whether Spark reads one type as the other, with the very values of the decoder."""

    def is_inner_readable(own: DataType, wanted: DataType) -> bool:  # where no value can be padded
        return char_length(wanted) is None and _is_readable_as(own, wanted, mapping, mapped=mapped)

    match own, wanted:
        case StructType(), StructType(fields):
            written = _Written(own, mapping, mapped=mapped)
            pairs = [(written.find_field(f), f) for f in fields]
            return bool(pairs) and all(
                one is not None and is_inner_readable(one.type, f.type) for one, f in pairs
            )
        case ArrayType(), ArrayType():
            return is_inner_readable(own.element, wanted.element)
        case MapType(), MapType():
            return is_inner_readable(own.key, wanted.key) and is_inner_readable(
                own.value, wanted.value
            )
        case PrimitiveType(), PrimitiveType():
            return _is_readable(wanted) and _is_held(own.name, wanted.name)
    return False


def _is_held(own: str, wanted: str) -> bool:
    text = "string"  # a CHAR is one in the files
    own, wanted = (text if name.startswith("char(") else name for name in (own, wanted))
    if own == wanted or wanted in _WIDER.get(own, ()):
        return True
    wide, narrow = _DECIMAL.fullmatch(wanted), _DECIMAL.fullmatch(own)
    if wide is None:
        return False
    precision, scale = map(int, wide.groups())
    if narrow is None:
        return own in _DIGITS and precision - scale >= _DIGITS[own]
    whole, fraction = int(narrow[1]) - int(narrow[2]), int(narrow[2])
    return scale >= fraction and precision - scale >= whole


def _is_readable(kind: DataType) -> bool:
    if not isinstance(kind, PrimitiveType):
        return False
    return char_length(kind) is not None or _READABLE.fullmatch(kind.name) is not None


def _is_any_readable(kind: DataType) -> bool:
    """Return whether Spark's reader has the type at all, also a nested one."""
    match kind:
        case StructType(fields):
            return bool(fields) and all(_is_any_readable(f.type) for f in fields)
        case ArrayType(element):
            return _is_any_readable(element)
        case MapType(key, value):
            return _is_any_readable(key) and _is_any_readable(value)
    return _is_readable(kind)


def _spark_field(field: StructField, mapping: str, name: str | None = None) -> s.StructField:
    """Return a field with the names and ids that it has in the files, at all levels."""
    if name is None:
        name = field.name if mapping == "none" else field.physical_name
    by_id = mapping == "id" and field.field_id is not None
    metadata = {_FIELD_ID: field.field_id} if by_id else {}
    return s.StructField(name, _spark_type(field.type, mapping), metadata=metadata)


def _spark_type(kind: DataType, mapping: str) -> s.DataType:
    match kind:
        case StructType(fields):
            return s.StructType([_spark_field(f, mapping) for f in fields])
        case ArrayType(element):
            return s.ArrayType(_spark_type(element, mapping))
        case MapType(key, value):
            return s.MapType(_spark_type(key, mapping), _spark_type(value, mapping))
    return spark_type(kind)


def char_columns(target: StructType, names: Sequence[str]) -> dict[str, int]:
    """Return the lengths of those of the columns whose values are padded."""
    lengths = {f.name: char_length(f.type) for f in target}
    return {name: length for name in names if (length := lengths[name]) is not None}
