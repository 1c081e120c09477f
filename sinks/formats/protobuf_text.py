"""Texts of Protobuf schemas: what they say of fields, and texts with fields added to them.

A text is extended where its messages end, and stays as it is elsewhere: names of messages, comments
and options are kept, and so is what no column has (enums, ``oneof``, ``reserved``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct, structs

from sinks.formats.protobuf_schema import (
    TIMESTAMP,
    Field,
    Fields,
    check_name,
    describe_kind,
    find_clash,
    find_json_name,
    has_fields,
)
from tailer.errors import TargetRefused

_SCALARS = (
    "bool", "bytes", "double", "fixed32", "fixed64", "float", "int32", "int64", "sfixed32",
    "sfixed64", "sint32", "sint64", "string", "uint32", "uint64",
)  # fmt: skip
_QUOTES = "\"'"
_IMPORT = "google/protobuf/timestamp.proto"
#: Protobuf keeps these for itself.
_RESERVED = range(19_000, 20_000)
_NUMBER_MAX = 2**29 - 1
_TOKENS = re.compile(
    r"""//[^\n]*|/\*.*?\*/|("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\.?\w[\w.]*|\S)""", re.DOTALL
)


class Members(dict[str, Field]):
    """The fields of a message, and what its text says besides: its name, where it ends (0 if it is
    new), the messages in it (None for an enum), those in the scopes around it, and the numbers and
    names that it keeps free; then which of the fields are new."""

    def __init__(self, name: str, around: tuple[Scope, ...] = ()) -> None:
        super().__init__()
        self.name, self.around, self.end = name, around, 0
        self.inner: Scope = {}
        self.reserved: list[range] = []
        self.free: set[str] = set()
        self.added: list[str] = []
        #: Whether the types of its fields are known; None meanwhile.
        self.is_read: bool | None = False


Scope: TypeAlias = dict[str, Members | None]


class ProtobufSchema(Struct, frozen=True):
    """The first message of a file: its whole name, and its fields; the file's text, and where in it
    the statement of its package is or would be."""

    name: str
    fields: Members
    text: str
    place: tuple[int, int]


def parse_schema(text: str) -> ProtobufSchema | None:
    """Return the schema of a file; None for one that is not proto3, or not understood."""
    try:
        return _ProtobufParser(text).read_file()
    except (LookupError, ValueError, RecursionError, StopIteration):
        return None


class _ProtobufParser:
    """Reads the statements of a file. Raises :class:`ValueError` for one that is not known."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = (found for found in _TOKENS.finditer(text) if found[1])
        self._at = self._place = (0, 0)
        self._package = self._syntax = ""

    def read_file(self) -> ProtobufSchema:
        file = Members("")
        self._read_block(file)
        if self._syntax != "proto3":
            raise ValueError("no file of proto3")
        scopes: list[Scope] = []
        for part in filter(None, reversed(self._package.split("."))):
            package = Members(part)
            package.inner = scopes[0] if scopes else file.inner
            scopes.insert(0, {part: package})
        first = next(message for message in file.inner.values() if message is not None)
        _resolve_fields(first, tuple(scopes))
        name = ".".join(filter(None, (self._package, first.name)))
        return ProtobufSchema(name, first, self._text, self._place)

    def _read_statement(self) -> list[str]:
        """Return the words of a statement with its `;` or the `{` of its block, or the `}` after
        the last one; nothing at the end of the file. Braces of an option's value are among them."""
        words: list[str] = []
        depth, start = 0, 0
        for found in self._tokens:
            word = found[1]
            start = start if words else found.start()
            words.append(word)
            if not depth and (word in ";}" or (word == "{" and "=" not in words)):
                self._at = (start, found.end())
                return words
            depth += (word == "{") - (word == "}")
        return words

    def _read_block(self, message: Members, *, usable: bool = True) -> None:
        """Add what the statements of a block, or of the file, say to a message."""
        while words := self._read_statement():
            match words:
                case ["}"] if message.name:
                    message.end = self._at[0]
                    return
                case ["syntax", "=", syntax, ";"]:
                    self._syntax, self._place = syntax[1:-1], (self._at[1], self._at[1])
                case ["package", package, ";"]:
                    self._package, self._place = package, self._at
                case ["message", name, "{"]:
                    inner = Members(name, (*message.around, message.inner))
                    message.inner[name] = inner
                    self._read_block(inner)
                case ["enum", name, "{"]:
                    message.inner[name] = None
                    self._skip_block()
                case ["extend" | "service", *_, "{"]:
                    self._skip_block()
                case ["oneof", _, "{"]:
                    self._read_block(message, usable=False)
                case ["reserved", *what, ";"]:
                    _reserve(message, what)
                case [";"] | ["option", *_, ";"] | ["import", _, ";"] | ["import", _, _, ";"]:
                    pass
                case _:
                    _add_field(message, words, usable=usable)
        if message.name:
            raise ValueError("half a block")

    def _skip_block(self) -> None:
        while (words := self._read_statement()) != ["}"]:
            if words[-1] == "{":
                self._skip_block()


def _parse_number(word: str) -> int:
    """Return a number; Protobuf reads one that begins with 0 by another base."""
    if not re.fullmatch("[1-9][0-9]*", word):
        raise ValueError("no number")
    return int(word)


def _reserve(message: Members, words: list[str]) -> None:
    for part in " ".join(words).split(" , "):
        first, *_, last = part.split(" ") * 2
        if first[0] in _QUOTES:
            message.free.add(first[1:-1])
        else:
            end = _NUMBER_MAX if last == "max" else _parse_number(last)
            message.reserved.append(range(_parse_number(first), end + 1))


def _add_field(message: Members, words: list[str], *, usable: bool) -> None:
    """Add a field, whose kind is the name of its type. Raises :class:`ValueError` for anything
    else."""
    label = words.pop(0) if words[0] in ("optional", "repeated") else ""
    equals = words.index("=")
    *kinds, name = words[:equals]
    number, *options, end = words[equals + 1 :]
    one = len(kinds) == 1 or (kinds[:2] == ["map", "<"] and kinds[-1] == ">")
    if end != ";" or not one or (options and (options[0], options[-1]) != ("[", "]")):
        raise ValueError("no field")
    kind = "".join(kinds)
    usable = usable and bool(label or kind not in _SCALARS)
    message[name] = Field(kind, {}, _parse_number(number), label == "repeated", usable=usable)


def _resolve_fields(message: Members, packages: tuple[Scope, ...]) -> None:
    """Find the types of a message's fields. One in another file, an enum, or a message around it
    has its name as a kind."""
    message.is_read = None
    for name, field in message.items():
        found = None
        if field.kind not in _SCALARS:
            found = _find_message(field.kind, (*packages, *message.around, message.inner))
        if found is not None and found.is_read is False:
            _resolve_fields(found, packages)
        if found is not None and found.is_read:
            message[name] = structs.replace(field, kind="", members=found)
        elif found is None and field.kind == f".{TIMESTAMP}":
            message[name] = structs.replace(field, kind=TIMESTAMP)
    message.is_read = True


def _find_message(kind: str, scopes: Sequence[Scope]) -> Members | None:
    """Return the message of a name, whose first part is looked for from the inside out."""
    first, *rest = kind.removeprefix(".").split(".")
    scopes = scopes[:1] if kind[0] == "." else scopes
    found = next((scope[first] for scope in reversed(scopes) if first in scope), None)
    for part in rest:
        found = None if found is None else found.inner.get(part)
    return found


def make_schema(name: str) -> ProtobufSchema:
    """Return a message of this whole name without fields."""
    package, _, own = name.rpartition(".")
    head = f"\n\npackage {package};" if package else ""
    found = parse_schema(f'syntax = "proto3";{head}\n\nmessage {own} {{\n}}\n')
    assert found is not None
    return found


def extend_schema(
    schema: ProtobufSchema, name: str, wanted: Fields, earlier: Sequence[Fields] = ()
) -> ProtobufSchema:
    """Return a schema with the fields that are wanted besides, as a message of this whole name. A
    field that is there, or in an ``earlier`` version (the newest first), keeps its number; others
    get the next.

    Raises :class:`TargetRefused` for a field that is of another kind, is reserved, can't be told
    from another by its name, or has no number left.
    """
    base = parse_schema(schema.text)  # a copy
    assert base is not None
    added = _Extension(base)
    added.add_fields(base.fields, [base.fields, *earlier], wanted, "")
    found = parse_schema(added.write_text(name.rpartition(".")[0]))
    if (
        found is None
        or found.name != name
        or not has_fields(found.fields, wanted)
        or any(find_clash(fields, found.fields) for fields in earlier)
    ):
        raise TargetRefused(
            f"the newest schema of the message {name!r} is not one that a feed can extend; "
            "register one that has the table's columns, or use a new topic"
        )
    return found


class _Extension:
    """Fields that are added to a schema's messages."""

    def __init__(self, schema: ProtobufSchema) -> None:
        self._schema = schema
        self._words = {found[1] for found in _TOKENS.finditer(schema.text)}
        self._messages: dict[str, Members] = {}
        self._changed: dict[int, Members] = {}

    def add_fields(
        self, members: Members, known: Sequence[Fields], wanted: Fields, path: str
    ) -> None:
        """Add what is wanted to a message that has, or had, the known fields."""
        names = {find_json_name(name): name for name in members}
        last = max((field.number for fields in known for field in fields.values()), default=0)
        for name, field in wanted.items():
            versions = [fields[name] for fields in known if name in fields]
            if versions and describe_kind(versions[0]) != describe_kind(field):
                raise TargetRefused(
                    f"the column {path + name!r} is {describe_kind(field)}, and "
                    f"{describe_kind(versions[0])} in an earlier schema of its subject; leave it "
                    "out with `select`, give it another name, or use a new topic"
                )
            if name not in members:
                check_name(names, name, path + name)
                number = versions[0].number if versions else _find_next(last, known)
                last = max(last, number)
                self._add_field(members, name, structs.replace(field, number=number), path)
            if not field.kind:
                inner = members[name].members
                assert isinstance(inner, Members)
                old = [version.members for version in versions]
                self.add_fields(inner, [inner, *old], field.members, f"{path}{name}.")

    def _add_field(self, members: Members, name: str, field: Field, path: str) -> None:
        taken = name in members.free or any(field.number in part for part in members.reserved)
        if taken or field.number > _NUMBER_MAX:
            raise TargetRefused(
                f"the column {path + name!r} can't have the number {field.number} in its subject's "
                f"schema, {'which reserves it' if taken else 'the last one is taken'}; leave it "
                "out with `select`, or use a new topic"
            )
        if not field.kind:
            field = structs.replace(field, members=self._make_message(members, name, field))
        members[name] = field
        members.added.append(name)
        if members.end:
            self._changed[members.end] = members

    def _make_message(self, members: Members, name: str, field: Field) -> Members:
        """Return the new message of a field. It stands beside the others, and has the name of the
        one it is in, the field's number and its name: so no two have the same."""
        own = name.title() if field.repeated else name  # Kafka Connect knows a map by `Entry`
        title = field.shared or f"{members.name}_{field.number}_{own}"
        if title not in self._messages:
            unique = title
            while unique in self._words:
                unique += "_"
            self._messages[title] = Members(unique)
        return self._messages[title]

    def write_text(self, package: str) -> str:
        """Return the text, as a file of this package."""
        text, place = self._schema.text, self._schema.place
        # In a package or beside a message of that name, it is looked for there.
        root = "." if "google" in (*package.split("."), *self._words) else ""
        changed = {end: _write_fields(members, root) for end, members in self._changed.items()}
        others = [
            f"\nmessage {members.name} {{{_write_fields(members, root)}\n}}\n"
            for members in self._messages.values()
        ]
        head = text[place[0] : place[1]]
        if self._schema.name.rpartition(".")[0] != package:
            head = ("" if head else "\n\n") + (f"package {package};" if package else "")
        imported = any(word[1:-1] == _IMPORT for word in self._words if word)
        if not imported and any(TIMESTAMP in part for part in (*changed.values(), *others)):
            head += f'\n\nimport "{_IMPORT}";'
        for end in sorted(changed, reverse=True):
            at = len(text[:end].rstrip())
            text = text[:at] + changed[end] + text[at:]
        return text[: place[0]] + head + text[place[1] :] + "".join(others)


def _find_next(last: int, known: Sequence[Fields]) -> int:
    """Return the next number that is neither kept free nor Protobuf's own."""
    reserved = [part for fields in known if isinstance(fields, Members) for part in fields.reserved]
    number = last + 1
    for part in sorted((_RESERVED, *reserved), key=lambda part: part.start):
        number = part.stop if number in part else number
    return number


def _write_fields(members: Members, root: str) -> str:
    lines = []
    for name in sorted(members.added, key=lambda name: members[name].number):
        field = members[name]
        label = "optional " if field.kind in _SCALARS else "repeated " if field.repeated else ""
        kind = getattr(field.members, "name", field.kind)
        kind = root + kind if kind == TIMESTAMP else kind
        lines.append(f"\n  {label}{kind} {name} = {field.number};")
    return "".join(lines)
