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
none, the newest is extended (:func:`merge_fields`): its fields keep their numbers, also those whose
columns are gone, and new ones get the next. So a number never changes its meaning, and the same
rows find the same version again, whatever was registered later.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

import pyarrow as pa
from msgspec import Struct, structs

from sinks.formats.avro_schema import make_avro_name
from tailer.changes import is_arrow_variant
from tailer.errors import TargetRefused

TIMESTAMP = "google.protobuf.Timestamp"
#: The field of the messages that are an array and a map.
ELEMENT, ENTRY = "element", "entry"
_SCALARS = (
    "bool", "bytes", "double", "fixed32", "fixed64", "float", "int32", "int64", "sfixed32",
    "sfixed64", "sint32", "sint64", "string", "uint32", "uint64",
)  # fmt: skip
#: Protobuf keeps these for itself.
_RESERVED = range(19_000, 20_000)
_TOKENS = re.compile(r'//[^\n]*|/\*.*?\*/|("(?:\\.|[^"\\\n])*"|\.?\w[\w.]*|\S)', re.DOTALL)


class Field(Struct, frozen=True):
    """One field: of a scalar or known type, ``kind``, or a message of ``members``. ``shared`` is
    the name of a message that several fields have."""

    kind: str = ""
    members: Mapping[str, Field] = {}
    number: int = 0
    repeated: bool = False
    shared: str = ""


Fields: TypeAlias = Mapping[str, Field]


class Schema(Struct, frozen=True):
    """The first message of a file: its whole name, and its fields."""

    name: str
    fields: Fields


def build_fields(columns: Iterable[pa.Field], where: str = "") -> dict[str, Field]:
    """Return the fields of columns, without numbers; void columns have none. Raises
    :class:`TargetRefused` for two that Protobuf can't tell apart."""
    found: dict[str, Field] = {}
    names: dict[str, str] = {}
    for column in columns:
        field = _build_field(column.type, f"{where}{column.name}")
        if field is not None:
            name = make_avro_name(column.name)
            _check_name(names, name, f"{where}{column.name}")
            found[name] = field
    return found


def _check_name(names: dict[str, str], name: str, column: str) -> None:
    """Raise :class:`TargetRefused` if a field's name is taken in Protobuf's JSON, where ``_`` and
    the next letter become a capital: its compiler takes no two that are the same there."""
    own = _find_json_name(name)
    if own in names:
        raise TargetRefused(
            f"the columns {names[own]!r} and {column!r}, of this or an earlier schema, have the "
            "same name in Protobuf's JSON; rename one, or leave one out with `select`"
        )
    names[own] = column


def _find_json_name(name: str) -> str:
    return re.sub("_+(.?)", lambda found: found[1].upper(), name)


def _build_field(data_type: pa.DataType, path: str) -> Field | None:
    types = pa.types
    if types.is_null(data_type):
        return None
    if is_arrow_variant(data_type):
        return Field("string")
    if types.is_struct(data_type):
        members = [data_type.field(i) for i in range(data_type.num_fields)]
        return Field(members=build_fields(members, f"{path}."))
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
        and (fields[name].kind, fields[name].repeated) == (field.kind, field.repeated)
        and has_fields(fields[name].members, field.members)
        for name, field in wanted.items()
    )


def merge_fields(fields: Fields, wanted: Fields) -> dict[str, Field]:
    """Return the fields and those that are wanted besides, with the numbers that follow. Whether
    one may have another type is for the registry to say. Raises :class:`TargetRefused` for a name
    beside an earlier one that Protobuf can't tell from it."""
    found = dict(fields)
    names = {_find_json_name(name): name for name in fields}
    last = max((field.number for field in fields.values()), default=0)
    for name, field in wanted.items():
        old = fields.get(name, Field())
        number = old.number
        if not number:
            last = number = _RESERVED.stop if last + 1 in _RESERVED else last + 1
            _check_name(names, name, name)
        members = merge_fields({} if field.kind else old.members, field.members)
        found[name] = structs.replace(field, members=members, number=number)
    return found


def format_schema(schema: Schema) -> str:
    """Return the text of a file, always the same for the same schema."""
    package, _, name = schema.name.rpartition(".")
    lines = ['syntax = "proto3";', ""]
    if package:
        lines += [f"package {package};", ""]
    messages: dict[str, list[str]] = {}
    # In a package of that name, it is looked for there.
    _add_message(messages, name, schema.fields, "." if "google" in package.split(".") else "")
    if any(TIMESTAMP in line for message in messages.values() for line in message):
        lines += ['import "google/protobuf/timestamp.proto";', ""]
    for message in messages.values():
        lines += [*message, ""]
    return "\n".join(lines)


def _add_message(messages: dict[str, list[str]], name: str, fields: Fields, root: str) -> None:
    """Add the text of a message, and of those of its fields. Theirs stand beside it, and have its
    name, the field's number and its name: no two have the same, whatever a column is called."""
    messages[name] = lines = [f"message {name} {{"]
    for own, field in sorted(fields.items(), key=lambda item: item[1].number):
        kind = root + field.kind if field.kind == TIMESTAMP else field.kind
        label = "optional " if field.kind in _SCALARS else "repeated " if field.repeated else ""
        if not kind:
            title = own.title() if field.repeated else own  # Kafka Connect knows a map by `Entry`
            kind = field.shared or f"{name}_{field.number}_{title}"
            if kind not in messages:
                _add_message(messages, kind, field.members, root)
        lines.append(f"  {label}{kind} {own} = {field.number};")
    lines.append("}")


class _Block(Struct):
    """A message as it is written: fields by name, with the names of their types."""

    fields: dict[str, tuple[str, str, int]] = {}
    messages: dict[str, _Block] = {}


def parse_schema(text: str) -> Schema | None:
    """Return the schema of a file; None for one that has more than :func:`format_schema` writes,
    as comments, options and other layouts are not: what it says of numbers is then not known."""
    tokens = iter([token for token in _TOKENS.findall(text) if token])
    package = ""
    messages: dict[str, _Block] = {}
    try:
        for word in tokens:
            if word == "message":
                name = next(tokens)
                messages[name] = _parse_message(tokens)
                continue
            statement = _take_statement(tokens)
            if word == "package":
                package = statement[0]
            elif word not in ("syntax", "import", "option"):
                return None
        first = next(iter(messages))
        fields = _resolve_fields(messages[first], [messages], f"{package}.")
    except (LookupError, ValueError, RecursionError, StopIteration):
        return None
    return Schema(".".join(filter(None, (package, first))), fields)


def _take_statement(tokens: Iterator[str]) -> list[str]:
    return list(iter(tokens.__next__, ";"))


def _parse_message(tokens: Iterator[str]) -> _Block:
    if next(tokens) != "{":
        raise ValueError("no message")
    block = _Block()
    while (word := next(tokens)) != "}":
        if word == "message":
            name = next(tokens)
            block.messages[name] = _parse_message(tokens)
            continue
        statement = _take_statement(tokens)
        if word != "option":
            label, kind, name, number = _parse_field([word, *statement])
            block.fields[name] = (label, kind, number)
    return block


def _parse_field(statement: list[str]) -> tuple[str, str, str, int]:
    """Return label, type, name and number. Raises :class:`ValueError` for anything else."""
    label = statement.pop(0) if statement[0] in ("optional", "repeated") else ""
    kind, name, equals, number, *options = statement
    if equals != "=" or (options and (options[0], options[-1]) != ("[", "]")):
        raise ValueError("no field")
    return label, kind.removeprefix("."), name, int(number)


def _resolve_fields(
    block: _Block, scopes: list[dict[str, _Block]], package: str
) -> dict[str, Field]:
    """Return the fields of a message, whose types are looked for from the inside out, also by their
    whole names. Raises :class:`LookupError` or :class:`ValueError` for one that is not there."""
    scopes = [*scopes, block.messages]
    found = {}
    for name, (label, kind, number) in block.fields.items():
        known, members = kind in (*_SCALARS, TIMESTAMP), {}
        if not known:
            own = kind.removeprefix(package)
            at = max(i for i, scope in enumerate(scopes) if own in scope)
            members = _resolve_fields(scopes[at][own], scopes[: at + 1], package)
        elif not label and kind != TIMESTAMP:
            raise ValueError("null is 0 there")
        found[name] = Field(kind if known else "", members, number, label == "repeated")
    return found
