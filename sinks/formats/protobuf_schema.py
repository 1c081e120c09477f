"""Protobuf schemas of Arrow types, and the numbers of their fields.

**Types.** Every scalar is ``optional``, so that null and 0 differ. Each is the widest of its kind
(integers int64, floats double, decimals the string of their digits): to widen a column changes no
schema. Dates are sint32 and timestamps without a zone sfixed64, which no other column has: a
registry then sees where one became the other. An array is a message of ``repeated Element
element``, a map one of ``repeated Entry entry``, and a value in them is ``optional`` again:
Protobuf's own lists have neither nulls nor a difference between none and empty.

**Numbers.** They come from the versions of the subject in the registry, which is the only place
that has all that were ever used: a table's log forgets columns that were dropped, its positions
move when one comes in between, and ids of column mapping are there for few tables. A row is written
by the first version that has all of its columns with their types (:func:`has_fields`). If there is
none, the newest is extended (:func:`sinks.formats.protobuf_text.extend_schema`): its fields keep
their numbers, also those whose columns are gone, and new ones get the next. So a number never
changes its meaning, and the same rows find the same version again, whatever was registered later. A
version that contradicts an earlier one (:func:`find_clash`), as one that another process registered
at the same time, is never written by.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import pyarrow as pa
from msgspec import Struct

from sinks.formats.avro_schema import make_avro_name
from tailer.changes import is_arrow_variant
from tailer.errors import TargetRefused

TIMESTAMP = "google.protobuf.Timestamp"
#: The field of the messages that are an array and a map.
ELEMENT, ENTRY = "element", "entry"
#: Those that columns have; "" is a message.
COLUMN_KINDS = {"", "bool", "int64", "double", "string", "bytes", "sint32", "sfixed64", TIMESTAMP}


class Field(Struct, frozen=True):
    """One field: of a scalar or known type, ``kind``, or a message of ``members``. ``shared`` is
    the name of a message that several fields have; without ``usable`` (a scalar whose null is 0, a
    member of a ``oneof``) no column is written to it."""

    kind: str = ""
    members: Mapping[str, Field] = {}
    number: int = 0
    repeated: bool = False
    shared: str = ""
    usable: bool = True


Fields: TypeAlias = Mapping[str, Field]


def build_fields(columns: Iterable[pa.Field], where: str = "") -> dict[str, Field]:
    """Return the fields of columns, without numbers; void columns have none. Raises
    :class:`TargetRefused` for two that Protobuf can't tell apart."""
    found: dict[str, Field] = {}
    names: dict[str, str] = {}
    for column in columns:
        field = _build_field(column.type, f"{where}{column.name}")
        if field is not None:
            name = make_avro_name(column.name)
            check_name(names, name, f"{where}{column.name}")
            found[name] = field
    return found


def check_name(names: dict[str, str], name: str, column: str) -> None:
    """Raise :class:`TargetRefused` if a field's name is taken in Protobuf's JSON, where ``_`` and
    the next letter become a capital: its compiler takes no two that are the same there."""
    own = find_json_name(name)
    if own in names:
        raise TargetRefused(
            f"the columns {names[own]!r} and {column!r}, of this or an earlier schema, have the "
            "same name in Protobuf's JSON; rename one, or leave one out with `select`"
        )
    names[own] = column


def find_json_name(name: str) -> str:
    """Return the name of a field in Protobuf's JSON."""
    return re.sub("_+(.?)", lambda found: found[1].upper(), name)


def _build_field(data_type: pa.DataType, path: str) -> Field | None:
    types = pa.types
    if types.is_null(data_type):
        return None
    if is_arrow_variant(data_type):
        return Field("string")
    if types.is_struct(data_type):
        return Field(members=build_fields(data_type.fields, f"{path}."))
    if types.is_list(data_type):
        return _make_repeated(ELEMENT, {"value": data_type.value_type}, path)
    if types.is_map(data_type):
        entry = {"key": data_type.key_type, "value": data_type.item_type}
        return _make_repeated(ENTRY, entry, path)
    for holds, kind in (
        (types.is_boolean, "bool"),
        (types.is_integer, "int64"),
        (types.is_floating, "double"),
        (types.is_string, "string"),
        (types.is_binary, "bytes"),
        (types.is_decimal, "string"),
        (types.is_date, "sint32"),
        (types.is_timestamp, "sfixed64" if getattr(data_type, "tz", None) is None else TIMESTAMP),
    ):
        if holds(data_type):
            return Field(kind)
    raise TypeError(f"{data_type} has no Protobuf type")


def _make_repeated(name: str, values: Mapping[str, pa.DataType], path: str) -> Field:
    item = build_fields((pa.field(own, kind) for own, kind in values.items()), f"{path}.")
    return Field(members={name: Field(members=item, repeated=True)})


def has_fields(fields: Fields, wanted: Fields) -> bool:
    """Return whether all that is wanted is among the fields, with its type."""
    return all(
        name in fields
        and describe_kind(fields[name]) == describe_kind(field)
        and has_fields(fields[name].members, field.members)
        for name, field in wanted.items()
    )


def describe_kind(field: Field) -> str:
    """Return what a field is, in words: two that a row is written to alike have the same."""
    members = field.members
    own = ((ELEMENT, "array"), (ENTRY, "map"))
    items = (kind for name, kind in own if name in members and members[name].repeated)
    kind = field.kind or next(items, "struct")
    return f"{'' if field.usable else 'plain '}{'repeated ' if field.repeated else ''}{kind}"


def find_clash(
    old: Fields, new: Fields, path: str = "", seen: set[tuple[int, int]] | None = None
) -> str:
    """Return which number or name means another thing in two versions of a message; "" if none
    does. Of types that no column has, only names and numbers count."""
    seen = set() if seen is None else seen
    if (id(old), id(new)) in seen:
        return ""
    seen.add((id(old), id(new)))
    names = {field.number: name for name, field in old.items()}
    for name, field in new.items():
        before = names.get(field.number, name)
        if before != name:
            return f"the number {field.number} is {path}{before} and {path}{name}"
        other = old.get(name)
        if other is None:
            continue
        if other.number != field.number:
            return f"{path}{name} has the numbers {other.number} and {field.number}"
        kinds = {other.kind, field.kind}
        if (len(kinds) > 1 and kinds <= COLUMN_KINDS) or other.repeated != field.repeated:
            return f"{path}{name} is {describe_kind(other)} and {describe_kind(field)}"
        found = find_clash(other.members, field.members, f"{path}{name}.", seen)
        if found:
            return found
    return ""
