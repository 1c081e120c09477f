"""The data types of a schema ("Schema Serialization Format")."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct


class PrimitiveType(Struct, frozen=True):
    """A primitive by its name in the log, e.g. ``long`` or ``decimal(10,2)``."""

    name: str


class ArrayType(Struct, frozen=True):
    """A list of ``element``."""

    element: DataType
    contains_null: bool


class MapType(Struct, frozen=True):
    """A map; its keys are never null."""

    key: DataType
    value: DataType
    value_contains_null: bool


class StructField(Struct, frozen=True, eq=False):
    """One column, top-level or nested.

    ``physical_name`` is the name in the files under column mapping, else the logical name;
    ``field_id`` the id there, if the schema has one. Fields are equal whatever their metadata.
    """

    name: str
    type: DataType
    nullable: bool = True
    metadata: dict[str, Any] = {}

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, StructField)
            and self._build_comparison_key() == other._build_comparison_key()
        )

    def __hash__(self) -> int:
        return hash(self._build_comparison_key())

    def _build_comparison_key(self) -> tuple[object, ...]:
        return self.name, self.type, self.nullable

    @property
    def physical_name(self) -> str:
        """``delta.columnMapping.physicalName``, or the logical name."""
        name = self.metadata.get("delta.columnMapping.physicalName")
        return name if isinstance(name, str) else self.name

    @property
    def field_id(self) -> int | None:
        """``delta.columnMapping.id``, if there is one."""
        value = self.metadata.get("delta.columnMapping.id")
        return value if isinstance(value, int) else None


class StructType(Struct, frozen=True):
    """The table's schema, or a nested struct."""

    fields: tuple[StructField, ...]

    def __iter__(self) -> Iterator[StructField]:
        return iter(self.fields)

    @property
    def names(self) -> list[str]:
        """The logical names, in order."""
        return [f.name for f in self.fields]


DataType = PrimitiveType | ArrayType | MapType | StructType


def all_fields(data_type: DataType) -> Iterator[StructField]:
    """Yield the fields of all structs in a type, nested ones too."""
    match data_type:
        case StructType(fields):
            for each in fields:
                yield each
                yield from all_fields(each.type)
        case ArrayType(element):
            yield from all_fields(element)
        case MapType(key, value):
            yield from all_fields(key)
            yield from all_fields(value)
        case PrimitiveType():
            pass
