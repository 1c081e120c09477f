"""Avro schemas of Arrow types, with names that Avro allows.

Every column is nullable and has the default null, so a table may gain and lose columns and its
schemas stay compatible, both ways. Names that Avro does not allow are changed letter by letter; the
column's own name is then kept in the property ``delta.name``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from tailer.changes import is_arrow_variant

_PLAIN = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "bytes",
}


class Names:
    """The record names that a schema has used: in Avro each may be defined once."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def reserve_name(self, wanted: str) -> str:
        """Return the name, with a number appended if the name is already used."""
        name, number = wanted, 2
        while name in self._used:
            name, number = f"{wanted}_{number}", number + 1
        self._used.add(name)
        return name


def make_avro_name(name: str) -> str:
    """Replace the characters of a name that Avro does not allow by underscores."""
    allowed = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return allowed if re.match(r"[A-Za-z_]", allowed) else f"_{allowed}"


def format_schema(schema: Any) -> str:
    """Return a schema as JSON text, always the same for the same schema."""
    return json.dumps(schema, separators=(",", ":"))


def build_record_schema(
    fields: Iterable[pa.Field], name: str, names: Names, namespace: str = ""
) -> dict[str, Any]:
    """Return the schema of a record with these fields, all of them nullable."""
    unique = names.reserve_name(name)
    record: dict[str, Any] = {"type": "record", "name": unique}
    if namespace:
        record["namespace"] = namespace
    members = Names()
    record["fields"] = [
        _build_field(f, members.reserve_name(make_avro_name(f.name)), unique, names) for f in fields
    ]
    return record


def _build_field(field: pa.Field, name: str, parent: str, names: Names) -> dict[str, Any]:
    schema = build_nullable_schema(field.type, f"{parent}_{name}", names)
    found = {"name": name, "type": schema, "default": None}
    return found if name == field.name else {**found, "delta.name": field.name}


def build_nullable_schema(data_type: pa.DataType, name: str, names: Names) -> Any:
    """Return the union of null and a type; for a void column, null alone."""
    return (
        "null"
        if pa.types.is_null(data_type)
        else ["null", _build_type_schema(data_type, name, names)]
    )


def _build_type_schema(data_type: pa.DataType, name: str, names: Names) -> Any:
    types = pa.types
    if data_type in _PLAIN:
        return _PLAIN[data_type]
    if is_arrow_variant(data_type):
        return "string"
    if types.is_decimal(data_type):
        exact = {"precision": data_type.precision, "scale": data_type.scale}
        return {"type": "bytes", "logicalType": "decimal", **exact}
    if types.is_date(data_type):
        return {"type": "int", "logicalType": "date"}
    if types.is_timestamp(data_type):
        local = "local-" if data_type.tz is None else ""
        return {"type": "long", "logicalType": f"{local}timestamp-micros"}
    if types.is_struct(data_type):
        return build_record_schema(data_type.fields, name, names)
    if types.is_list(data_type):
        return {
            "type": "array",
            "items": build_nullable_schema(data_type.value_type, f"{name}_element", names),
        }
    if not types.is_map(data_type):
        raise TypeError(f"{data_type} has no Avro type")
    if types.is_string(data_type.key_type):
        return {
            "type": "map",
            "values": build_nullable_schema(data_type.item_type, f"{name}_value", names),
        }
    entry = [pa.field("key", data_type.key_type), pa.field("value", data_type.item_type)]
    return {"type": "array", "items": build_record_schema(entry, f"{name}_entry", names)}
