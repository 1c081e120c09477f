"""Texts of Protobuf schemas: what they say of fields, and texts with fields added to them.

A text is extended where its messages end, and stays as it is elsewhere: names of messages, comments
and options are kept, and so is what no column has (enums, ``oneof``, ``reserved``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

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
_IMPORT = "google/protobuf/timestamp.proto"
#: Protobuf keeps these for itself.
_RESERVED = range(19_000, 20_000)
_NUMBER_MAX = 2**29 - 1
_TOKENS = re.compile(
    r"""//[^\n]*|/\*.*?\*/|("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\.?\w[\w.]*|\S)""", re.DOTALL
)


class Members(dict[str, Field]):
    """The fields of a message, its name, where its text ends (0 for a new one), the numbers and
    names that it keeps free, and which of its fields are new."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.end = 0
        self.reserved: list[range] = []
        self.free: set[str] = set()
        self.added: list[str] = []


class Schema(Struct, frozen=True):
    """The first message of a file: its whole name, and its fields; the file's text, and where in it
    the statement of its package is or would be."""

    name: str
    fields: Members
    text: str
    place: tuple[int, int]


class _Block(Struct, eq=False):
    """A message as it is written: its fields with the names of their types, the messages in it (or
    None for an enum), and those around it."""

    members: Members
    around: tuple[dict[str, _Block | None], ...]
    raw: dict[str, Field] = {}
    inner: dict[str, _Block | None] = {}
    is_read: bool | None = False  # None meanwhile


def parse_schema(text: str) -> Schema | None:
    """Return the schema of a file; None for one that is not proto3, or not understood."""
    try:
        return _Parser(text).read_file()
    except (LookupError, ValueError, RecursionError):
        return None


class _Parser:
    """Reads the statements of a file. Raises :class:`ValueError` for one that is not known."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = (found for found in _TOKENS.finditer(text) if found[1])
        self._at = (0, 0)

    def read_file(self) -> Schema:
        package, place, syntax = "", (0, 0), ""
        messages: dict[str, _Block | None] = {}
        while words := self._read_statement():
            match words:
                case ["syntax", "=", syntax, ";"]:
                    place = (self._at[1], self._at[1])
                case ["package", package, ";"]:
                    place = self._at
                case ["message", name, "{"]:
                    messages[name] = self._read_message(name, (messages,))
                case ["enum", name, "{"]:
                    messages[name] = None
                    self._skip_block()
                case ["service" | "extend", *_, "{"]:
                    self._skip_block()
                case [";"] | ["import" | "option", *_, ";"]:
                    pass
                case _:
                    raise ValueError("no statement")
        first = next((block for block in messages.values() if block), None)
        if syntax.strip("\"'") != "proto3" or first is None:
            raise ValueError("no message of proto3")
        fields = _resolve_fields(first, package)
        whole = ".".join(filter(None, (package, fields.name)))
        return Schema(whole, fields, self._text, place)

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
        if words:
            raise ValueError("half a statement")
        return words

    def _read_block(self) -> Iterable[list[str]]:
        """Yield the statements of a block."""
        while (words := self._read_statement()) != ["}"]:
            if not words or words[-1] == "}":
                raise ValueError("half a block")
            yield words

    def _skip_block(self) -> None:
        for words in self._read_block():
            if words[-1] == "{":
                self._skip_block()

    def _read_message(self, name: str, around: tuple[dict[str, _Block | None], ...]) -> _Block:
        block = _Block(Members(name), around)
        for words in self._read_block():
            match words:
                case ["message", own, "{"]:
                    block.inner[own] = self._read_message(own, (*around, block.inner))
                case ["enum", own, "{"]:
                    block.inner[own] = None
                    self._skip_block()
                case ["extend", *_, "{"]:
                    self._skip_block()
                case ["oneof", _, "{"]:
                    for inner in self._read_block():
                        if inner[0] not in ("option", ";"):
                            _add_field(block, inner, usable=False)
                case ["reserved", *what, ";"]:
                    _reserve(block.members, what)
                case [";"] | ["option", *_, ";"]:
                    pass
                case _:
                    _add_field(block, words)
        block.members.end = self._at[0]
        return block


def _parse_number(word: str) -> int:
    """Return a number; Protobuf reads one that begins with 0 by another base."""
    if not re.fullmatch("[1-9][0-9]*", word):
        raise ValueError("no number")
    return int(word)


def _reserve(members: Members, words: list[str]) -> None:
    for part in " ".join(words).split(" , "):
        first, *rest = part.split(" ")
        if first[0] in "\"'":
            members.free.add(first[1:-1])
            continue
        last = rest[-1] if rest else first
        number = _NUMBER_MAX if last == "max" else _parse_number(last)
        members.reserved.append(range(_parse_number(first), number + 1))


def _add_field(block: _Block, words: list[str], *, usable: bool = True) -> None:
    """Add a field, whose kind is the name of its type. Raises :class:`ValueError` for anything
    else."""
    label = words.pop(0) if words[0] in ("optional", "repeated") else ""
    equals = words.index("=")
    *kinds, name = words[:equals]
    number, *options, end = words[equals + 1 :]
    plain = len(kinds) == 1 or (kinds[:2] == ["map", "<"] and kinds[-1] == ">")
    if end != ";" or not plain or (options and (options[0], options[-1]) != ("[", "]")):
        raise ValueError("no field")
    kind = "".join(kinds)
    usable = usable and bool(label or kind not in _SCALARS)
    block.raw[name] = Field(kind, {}, _parse_number(number), label == "repeated", usable=usable)


def _resolve_fields(block: _Block, package: str) -> Members:
    """Return the fields of a message, each read once. One whose type is in another file, an enum,
    or a message around it, has its name as a kind."""
    if block.is_read is False:
        block.is_read = None
        for name, field in block.raw.items():
            kind, members = field.kind, None
            if kind not in _SCALARS:
                target = _find_block(kind, (*block.around, block.inner), package)
                if target is not None and target.is_read is not None:
                    kind, members = "", _resolve_fields(target, package)
                elif target is None and kind.removeprefix(".") == TIMESTAMP:
                    kind = TIMESTAMP
            known = {} if members is None else members
            block.members[name] = structs.replace(field, kind=kind, members=known)
        block.is_read = True
    return block.members


def _find_block(
    kind: str, scopes: tuple[dict[str, _Block | None], ...], package: str
) -> _Block | None:
    """Return the message of a name, whose first part is looked for from the inside out."""
    path = kind.split(".")
    if not path[0]:
        if not f"{kind}.".startswith(f".{package}." if package else "."):
            return None
        path = kind[len(package) + 1 :].removeprefix(".").split(".")
        scopes = scopes[:1]
    scope = next((scope for scope in reversed(scopes) if path[0] in scope), None)
    if scope is None:
        return _find_block(f".{kind}", scopes, package) if path[0] and kind[0] != "." else None
    found = scope[path[0]]
    for part in path[1:]:
        found = found.inner.get(part) if found else None
    return found


def make_schema(name: str) -> Schema:
    """Return a message of this whole name without fields."""
    package, _, own = name.rpartition(".")
    head = f"\n\npackage {package};" if package else ""
    found = parse_schema(f'syntax = "proto3";{head}\n\nmessage {own} {{\n}}\n')
    assert found is not None
    return found


def extend_schema(
    schema: Schema, name: str, wanted: Fields, earlier: Sequence[Fields] = ()
) -> Schema:
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

    def __init__(self, schema: Schema) -> None:
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
        """Return the new message of a field. It stands beside the others, and has their name, the
        field's number and its name: no two have the same, whatever a column is called."""
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
        head = text[slice(*place)]
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
        kind = root + field.kind if field.kind == TIMESTAMP else field.kind
        if isinstance(field.members, Members):
            kind = field.members.name
        lines.append(f"\n  {label}{kind} {name} = {field.number};")
    return "".join(lines)
