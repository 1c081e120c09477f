"""Differences between two schemas: columns that were added, dropped, renamed or changed.

Columns are identified by their field ids if both schemas have them (column mapping), else by name.
Nested columns are named by their path: ``address.city``, ``tags.element``, ``prices.value``.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import asdict

from tailer.delta.schema import ArrayType, DataType, MapType, PrimitiveType, StructField, StructType


class SchemaDiff(Struct, frozen=True):
    """The differences, by paths of columns.

    ``renamed`` pairs old and new path, ``widened`` path, old and new type, as does ``changed`` for
    other changes of type, and of whether a column may be null.
    """

    added: list[str]
    dropped: list[str]
    renamed: list[tuple[str, str]]
    widened: list[tuple[str, str, str]]
    changed: list[tuple[str, str, str]]

    def __bool__(self) -> bool:
        return any((self.added, self.dropped, self.renamed, self.widened, self.changed))

    def to_json(self) -> dict[str, list[object]]:
        """Return the five lists by name; tuples become lists."""
        return {k: [list(v) if isinstance(v, tuple) else v for v in vs]
                for k, vs in asdict(self).items()}  # fmt: skip


def compare_schemas(old: StructType, new: StructType) -> SchemaDiff:
    """Return the differences from one schema to the other."""
    diff = SchemaDiff([], [], [], [], [])
    _compare_structs(old, new, "", "", diff)
    return diff


def format_type(data_type: DataType) -> str:
    """Return a type as SQL writes it: ``array<struct<a:long>>``."""
    match data_type:
        case PrimitiveType(name):
            return name
        case ArrayType(element):
            return f"array<{format_type(element)}>"
        case MapType(key, value):
            return f"map<{format_type(key)},{format_type(value)}>"
        case StructType(fields):
            return f"struct<{','.join(f'{f.name}:{format_type(f.type)}' for f in fields)}>"


def _index_fields(schema: StructType, *, by_id: bool) -> dict[object, StructField]:
    return {(f.field_id if by_id else f.name): f for f in schema}


def _compare_structs(
    old: StructType, new: StructType, was: str, now: str, diff: SchemaDiff
) -> None:
    by_id = all(f.field_id is not None for f in (*old, *new))
    before, after = _index_fields(old, by_id=by_id), _index_fields(new, by_id=by_id)
    diff.dropped.extend(was + f.name for key, f in before.items() if key not in after)
    for key, f in after.items():
        if key not in before:
            diff.added.append(now + f.name)
            continue
        same = before[key]
        if same.name != f.name:
            diff.renamed.append((was + same.name, now + f.name))
        if same.nullable != f.nullable:
            names = [format_type(x.type) + ("" if x.nullable else " not null") for x in (same, f)]
            diff.changed.append((now + f.name, names[0], names[1]))
        _compare_types(same.type, f.type, was + same.name, now + f.name, diff)


def _compare_types(old: DataType, new: DataType, was: str, now: str, diff: SchemaDiff) -> None:
    match old, new:
        case StructType(), StructType():
            _compare_structs(old, new, was + ".", now + ".", diff)
        case ArrayType(), ArrayType():
            _compare_types(old.element, new.element, was + ".element", now + ".element", diff)
        case MapType(), MapType():
            _compare_types(old.key, new.key, was + ".key", now + ".key", diff)
            _compare_types(old.value, new.value, was + ".value", now + ".value", diff)
        case _ if old != new:
            entry = (now, format_type(old), format_type(new))
            (diff.widened if _widens(old, new) else diff.changed).append(entry)


_WIDER = {
    "byte": ("short", "integer", "long", "double"),
    "short": ("integer", "long", "double"),
    "integer": ("long", "double"),
    "float": ("double",),
    "date": ("timestamp_ntz",),
}


def _widens(old: DataType, new: DataType) -> bool:
    """Return whether every old value is one of the new type ("Type Widening")."""
    if not isinstance(old, PrimitiveType) or not isinstance(new, PrimitiveType):
        return False
    if new.name in _WIDER.get(old.name, ()):
        return True
    wide, narrow = list(_parse_decimal(new.name)), list(_parse_decimal(old.name))
    if not wide:
        return False
    if not narrow:
        digits = {"byte": 10, "short": 10, "integer": 10, "long": 20}.get(old.name)
        return digits is not None and wide[0] - wide[1] >= digits
    return wide[1] >= narrow[1] and wide[0] - wide[1] >= narrow[0] - narrow[1]


def _parse_decimal(name: str) -> Iterator[int]:
    """Yield precision and scale of a decimal; nothing for another type."""
    if name.startswith("decimal("):
        yield from (int(part) for part in name[len("decimal(") : -1].split(","))
