"""The names of a schema's columns in a data file, where column mapping was removed or added again.

Removing a mapping rewrites every file with the logical names, and adding a mapping again makes
those the physical names. So the last state before each removal maps the columns of one period to
those of another: it has both names. ("Column Mapping", and its removal)

A RESTORE to a version without a mapping rewrites nothing. A mapping that is added takes the names
of the columns as physical names, so these are the restored schema's names, in all files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from tailer.changes import ChangeFile
from tailer.delta.schema import (
    ArrayType,
    DataType,
    MapType,
    StructField,
    StructType,
)
from tailer.delta.snapshot import TableState
from tailer.delta.types import all_fields

_PHYSICAL_NAME, _ID = "delta.columnMapping.physicalName", "delta.columnMapping.id"


class Removal(Struct, frozen=True):
    """A commit that removed a column mapping, and the last state with it.

    ``rewrote`` is false for a RESTORE, which leaves the physical names in the files.
    """

    version: int
    state: TableState
    rewrote: bool = True


def find_removal(version: int, before: TableState, after: TableState) -> Removal | None:
    """Return what a commit did that removed a column mapping; None if it removed none.

    Removing a mapping changes nothing else of the schema. So if its names change too, an earlier
    version was restored.
    """
    if before.mapping == "none" or after.mapping != "none":
        return None
    return Removal(version, before, rewrote=_list_names(before.schema) == _list_names(after.schema))


def _list_names(schema: StructType) -> list[str]:
    return [field.name for field in all_fields(schema)]


class FileSchema(NamedTuple):
    """A schema with the names of its columns in a file, and the mapping mode of these names."""

    schema: StructType
    mapping: str


def find_file_schema(
    target: TableState, version: int | None, file: ChangeFile, removals: Sequence[Removal]
) -> FileSchema:
    """Return the schema ``target`` as it is in a file.

    ``version`` is the target's; None: it is later than any file. ``removals`` are in order, and
    include all removals between the file's version and the target's. A column that the file can't
    have gets a name that no column has.
    """
    schema, mapping, written = target.schema, target.mapping, file.state.mapping
    before, after = _find_removals_between(version, file, removals)
    for each in reversed(before):
        if each.rewrote:
            schema = translate_schema(schema, each.state.schema, mapping, back=True)
            mapping = "name"
    for each in after:
        if each.rewrote:
            schema = translate_schema(schema, each.state.schema, mapping, back=False)
            mapping = "name"
    if before:
        keeps_mapping = written == "none" or not before[0].rewrote
        return FileSchema(schema, mapping if keeps_mapping else written)
    if mapping == "none" and written != "none":
        if version is not None and version < file.version:  # logical names became physical ones
            return FileSchema(schema, "name")
        # The mapping was removed since, in an unknown version: the names may be unchanged.
        schema = translate_schema(schema, file.state.schema, "none", back=True)
        return FileSchema(schema, written)
    return FileSchema(schema, mapping)


def _find_removals_between(
    version: int | None, file: ChangeFile, removals: Sequence[Removal]
) -> tuple[list[Removal], list[Removal]]:
    """Return the removals from a file forward to the target, and from the target forward to the
    file.

    Files that a removal takes away have the state before it; files that it adds, the one after it.
    """
    mapped = file.state.mapping != "none"
    before, after = [], []
    for each in removals:
        at = each.version
        if file.version < at or (file.version == at and mapped):
            if version is None or at <= version:
                before.append(each)
        elif version is not None and version < at:
            after.append(each)
    return before, after


def translate_schema(
    target: StructType, written: StructType, mapping: str, *, back: bool
) -> StructType:
    """Return the schema ``target`` with the physical names and ids that its columns have on the
    other side of a removal, before which the schema was ``written``.

    ``mapping`` is the target's mapping mode: its columns have physical names, or, in mode none,
    only logical ones. ``back`` translates for files before the removal, otherwise for files after
    it. Columns are the same if their names are equal at all levels, also nested,
    case-insensitively.
    """
    known = {(f.name if back else f.physical_name).lower(): f for f in written}
    fields = []
    for field in target:
        own = field.name if mapping == "none" else field.physical_name
        found = known.get(own.lower())
        names: dict[str, object] = {_PHYSICAL_NAME: "", _ID: None}
        data_type = field.type
        if found is not None:
            names[_PHYSICAL_NAME] = found.physical_name if back else found.name
            names[_ID] = found.field_id if back else None
            data_type = _translate_type(field.type, found.type, mapping, back=back)
        metadata = {**field.metadata, **names}
        fields.append(StructField(field.name, data_type, field.nullable, metadata))
    return StructType(tuple(fields))


def _translate_type(target: DataType, written: DataType, mapping: str, *, back: bool) -> DataType:
    match target, written:
        case StructType(), StructType():
            return translate_schema(target, written, mapping, back=back)
        case ArrayType(), ArrayType():
            element = _translate_type(target.element, written.element, mapping, back=back)
            return ArrayType(element, target.contains_null)
        case MapType(), MapType():
            key = _translate_type(target.key, written.key, mapping, back=back)
            value = _translate_type(target.value, written.value, mapping, back=back)
            return MapType(key, value, target.value_contains_null)
    return target
