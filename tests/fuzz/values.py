"""The types of columns, values of each, and how the log spells partition values.

"Schema Serialization Format", "Partition Value Serialization" and "Type Widening".
"""

from __future__ import annotations

import datetime as dt
import json
import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa


@dataclass(frozen=True)
class Column:
    """A column or field. ``name`` is for users, ``physical`` and ``number`` for files under column
    mapping; ``was`` lists the types that it had before it was widened."""

    name: str
    type: Type
    physical: str
    number: int
    was: tuple[str, ...] = ()


@dataclass(frozen=True)
class Struct:
    fields: tuple[Column, ...]


@dataclass(frozen=True)
class Array:
    element: Type


@dataclass(frozen=True)
class Map:
    key: str
    value: Type


Type: TypeAlias = "str | Struct | Array | Map"

_UTC = dt.UTC
_DAYS = [dt.date(1970, 1, 1), dt.date(2020, 2, 29), dt.date(1, 1, 1), dt.date(9999, 12, 31),
         dt.date(1899, 12, 31), dt.date(1582, 10, 4)]  # fmt: skip
#: INT96 counts nanoseconds, and Arrow's have no years before 1678.
_ZONED = [dt.datetime(1970, 1, 1, tzinfo=_UTC),
          dt.datetime(2020, 2, 29, 23, 59, 59, 999_999, tzinfo=_UTC),
          dt.datetime(1899, 12, 31, 0, 0, 0, 1, tzinfo=_UTC),
          dt.datetime(2021, 3, 28, 2, 30, 0, 120_000, tzinfo=_UTC)]  # fmt: skip
_POOLS: dict[str, list[Any]] = {
    "string": ["", "a", "b", "é😀", 'x"\\\n/', "A" * 40, " ", "null", "\x01"],
    "long": [0, 1, -1, 5, 2**63 - 1, -(2**63)],
    "integer": [0, 1, -1, 5, 2**31 - 1, -(2**31)],
    "short": [0, 1, -1, 5, 2**15 - 1, -(2**15)],
    "byte": [0, 1, -1, 5, 127, -128],
    "double": [0.0, -0.0, 1.5, float("nan"), float("inf"), -float("inf"), 1e300, 5e-324],
    "float": [0.0, -0.0, 1.5, float("nan"), float("inf"), -0.25],
    "boolean": [True, False],
    "binary": [b"", b"ab", b"\x00\xff", b"\x01\x02"],
    "date": _DAYS,
    "timestamp": _ZONED,
    "timestamp_ntz": [time.replace(tzinfo=None) for time in _ZONED],
}
_DECIMALS = [Decimal(0), Decimal(5), Decimal("-1.5"), Decimal("12.25")]
_PARTITIONED = [*_POOLS, "decimal(6,2)", "decimal(20,3)"]
_PRIMITIVES = [*_PARTITIONED, "decimal(5,2)", "decimal(38,10)"]
_WIDER = {
    "byte": ["short", "integer", "long", "double", "decimal(10,0)"],
    "short": ["integer", "long", "double", "decimal(12,2)"],
    "integer": ["long", "double", "decimal(10,0)", "decimal(13,3)"],
    "long": ["decimal(20,0)", "decimal(24,4)"],
    "float": ["double"],
    "date": ["timestamp_ntz"],
    "decimal(5,2)": ["decimal(6,2)", "decimal(20,3)", "decimal(38,10)"],
    "decimal(6,2)": ["decimal(20,3)"],
}
_ARROW = {
    "string": pa.string(), "long": pa.int64(), "integer": pa.int32(), "short": pa.int16(),
    "byte": pa.int8(), "double": pa.float64(), "float": pa.float32(), "boolean": pa.bool_(),
    "binary": pa.binary(), "date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}  # fmt: skip


def random_type(rng: random.Random, *, partition: bool = False, depth: int = 0) -> Type:
    """Draw a type; a primitive one for a partition column."""
    draw = rng.random()
    if partition or depth > 1 or draw < 0.8:
        return rng.choice(_PARTITIONED if partition else _PRIMITIVES)
    if draw < 0.87:
        return Array(random_type(rng, depth=depth + 1))
    if draw < 0.93:
        return Map(rng.choice(["string", "long"]), random_type(rng, depth=depth + 1))
    names = rng.sample(["u", "v", "w w"], rng.randint(1, 2))
    # A nested field has its number and physical name from the table, if it is mapped.
    return Struct(tuple(Column(n, random_type(rng, depth=depth + 1), n, 0) for n in names))


def wider(data_type: Type) -> list[str]:
    """The types that "Type Widening" allows after this one."""
    return _WIDER.get(data_type, []) if isinstance(data_type, str) else []


def value(data_type: Type, rng: random.Random, *, null: float = 0.2) -> Any:
    """Draw a value; structs by physical names, maps as lists of pairs."""
    if rng.random() < null or data_type == "void":
        return None
    match data_type:
        case Struct(fields):
            return {f.physical: value(f.type, rng) for f in fields}
        case Array(element):
            return [value(element, rng) for _ in range(rng.randrange(3))]
        case Map(key, item):
            keys = rng.sample(_POOLS[key], rng.randrange(3))
            return [(k, value(item, rng)) for k in keys]
    if data_type in _POOLS:
        return rng.choice(_POOLS[data_type])
    scale = int(data_type[:-1].partition(",")[2])
    return rng.choice(_DECIMALS[: 4 if scale >= 2 else 2])


def arrow(data_type: Type) -> pa.DataType:
    """The Arrow type of a file's column, with the fields' ids."""
    match data_type:
        case Struct(fields):
            return pa.struct([stored_field(f) for f in fields])
        case Array(element):
            return pa.list_(pa.field("element", arrow(element)))
        case Map(key, item):
            return pa.map_(arrow(key), arrow(item))
    if data_type in _ARROW:
        return _ARROW[data_type]
    precision, scale = re.findall(r"\d+", data_type)
    return pa.decimal128(int(precision), int(scale))


def stored_field(column: Column) -> pa.Field:
    """A column as the field of a file: by its physical name, with its id if it is mapped."""
    metadata = {"PARQUET:field_id": str(column.number)} if column.number else None
    return pa.field(column.physical, arrow(column.type), metadata=metadata)


def schema_json(columns: tuple[Column, ...], decorate: Callable[[], dict[str, Any]]) -> Any:
    """The schema as the log spells it. ``decorate`` gives further metadata of a column."""
    return {"type": "struct", "fields": [_field_json(c, decorate) for c in columns]}


def _field_json(column: Column, decorate: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    metadata = decorate()
    if column.number:
        metadata["delta.columnMapping.id"] = column.number
        metadata["delta.columnMapping.physicalName"] = column.physical
    if column.was:
        ways = zip(column.was, [*column.was[1:], column.type], strict=True)
        metadata["delta.typeChanges"] = [{"fromType": a, "toType": b} for a, b in ways]
    kind = _type_json(column.type, decorate)
    return {"name": column.name, "type": kind, "nullable": True, "metadata": metadata}


def _type_json(data_type: Type, decorate: Callable[[], dict[str, Any]]) -> Any:
    match data_type:
        case Struct(fields):
            return schema_json(fields, decorate)
        case Array(element):
            kind = _type_json(element, decorate)
            return {"type": "array", "elementType": kind, "containsNull": True}
        case Map(key, item):
            kind = _type_json(item, decorate)
            return {"type": "map", "keyType": key, "valueType": kind, "valueContainsNull": True}
    return data_type


def partition_text(typed: Any, data_type: str, rng: random.Random) -> str | None:
    """Draw one of the spellings of a partition value."""
    if typed is None:
        return rng.choice([None, ""])
    match data_type:
        case "string":
            return str(typed)
        case "binary":
            return bytes(typed).decode("latin-1") if max(typed, default=0) < 128 else "é"
        case "boolean":
            return "true" if typed else "false"
        case "date":
            return str(typed)
        case "timestamp" | "timestamp_ntz":
            return _time_text(typed, rng, zone=data_type == "timestamp")
        case "float" | "double":
            return _float_text(typed, rng)
    if data_type.startswith("decimal"):
        return rng.choice([str(typed), f"{typed:.2f}"])
    return str(typed)


def _time_text(typed: Any, rng: random.Random, *, zone: bool) -> str:
    if not isinstance(typed, dt.datetime):  # a date before its column was widened
        return str(typed)
    text = typed.strftime("%Y-%m-%d %H:%M:%S")
    micros = f"{typed.microsecond:06d}"
    if typed.microsecond or rng.random() < 0.3:
        text += "." + (micros.rstrip("0") or "0" if rng.random() < 0.3 else micros)
    return text.replace(" ", "T") + "Z" if zone and rng.random() < 0.5 else text


def _float_text(typed: float, rng: random.Random) -> str:
    if math.isnan(typed):
        return "NaN"
    if typed in (float("inf"), -float("inf")):
        return "Infinity" if typed > 0 else "-Infinity"
    spelled = json.dumps(typed)
    return rng.choice([spelled, spelled.upper(), f"{typed:E}" if typed in (0, 1.5) else spelled])
