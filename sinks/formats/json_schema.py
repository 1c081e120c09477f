"""The format ``json_schema``: JSON in a schema registry's wire format, with JSON Schemas.

A record is a zero byte, the schema's id (four bytes, big-endian), then the JSON of the format that
``envelope`` names. The schema is registered when a batch first needs it, so it follows the table.
Every column may be null, and no others are allowed (``additionalProperties`` is false): a registry
then takes a new column as backward compatible.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sinks.formats.debezium import DebeziumEncoder
from sinks.formats.parts import BatchEncoder, data_columns, table_name
from sinks.formats.rows import RowsEncoder
from sinks.formats.subjects import RegistryEncoder, format_frame
from sinks.formats.upsert import UpsertEncoder
from tailer.changes import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, ChangeBatch
from tailer.changes import is_arrow_variant as is_variant
from tailer.sink.encoder import Records

_TEXT, _WHOLE, _TIME = (
    {"type": "string"},
    {"type": "integer"},
    {"type": "string", "format": "date-time"},
)
_NULL = {"type": "null"}
_ENVELOPES: dict[str, type[BatchEncoder]] = {
    "rows": RowsEncoder,
    "debezium": DebeziumEncoder,
    "upsert": UpsertEncoder,
}
_METADATA = {CHANGE_TYPE: _TEXT, COMMIT_VERSION: _WHOLE, COMMIT_TIMESTAMP: _TIME}


class JsonSchemaEncoder(RegistryEncoder):
    """The records of another format, each with the id of its schema. See
    :mod:`tailer.sink.encoder`."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self._inner = _ENVELOPES[self.envelope](options)
        self.paired, self.keeps_order = self._inner.paired, self._inner.keeps_order

    def _encode_rows(self, batch: ChangeBatch) -> Records:
        records, rows = self._inner.encode(batch).whole(), data_columns(batch).type
        schema = _build_envelope_schema(self.envelope, rows.fields)
        number = self._register_schema(batch, "value", "Value", schema)
        values = _frame_values(number, records.values)
        keys = records.keys
        if keys is not None:
            own = _make_object(
                {
                    f.name: build_nullable_schema(f.type)
                    for f in rows.fields
                    if f.name in self.key_columns
                }
            )
            keys = _frame_values(self._register_schema(batch, "key", "Key", own), keys)
        headers = (*records.headers, ("_schema_id", str(number).encode()))
        return replace(records, keys=keys, values=values, headers=headers)

    def _register_schema(
        self, batch: ChangeBatch, part: str, record: str, schema: dict[str, Any]
    ) -> int:
        """Return the id of a schema in the registry."""
        title = ".".join(filter(None, (self.name, table_name(batch, self.table), record)))
        draft = {"$schema": "http://json-schema.org/draft-07/schema#", "title": title}
        text = json.dumps({**draft, **schema}, separators=(",", ":"))
        subject = self._name_subject(part, title)
        if (subject, text) not in self._known:
            self._known[subject, text] = self.registry.register(subject, text, kind="JSON")
        return int(self._known[subject, text])


def _frame_values(schema_id: int, values: Any) -> pa.BinaryArray:
    """Return values in the wire format: a zero byte and the schema's id come first; null stays
    null."""
    head = pa.scalar(format_frame(schema_id))
    return pc.binary_join_element_wise(head, values, pa.scalar(b""))


def _build_envelope_schema(envelope: str, fields: list[pa.Field]) -> dict[str, Any]:
    columns = {field.name: build_nullable_schema(field.type) for field in fields}
    if envelope == "upsert":
        return _make_object(columns)
    if envelope == "rows":
        return _make_object({**columns, **_METADATA})
    row = _make_nullable(_make_object(columns))
    times = dict.fromkeys(("ts_ms", "ts_us", "ts_ns"), _WHOLE)
    parts = {name: {"type": "object"} for name in ("source", "transaction")}
    return _make_object({"before": row, "after": row, **parts, "op": _TEXT, **times})


def _make_object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _make_nullable(schema: dict[str, Any]) -> dict[str, Any]:
    return {"oneOf": [_NULL, schema]}


def build_nullable_schema(data_type: pa.DataType) -> dict[str, Any]:
    """Return the JSON Schema of the values of a type, or null, as :mod:`sinks.formats.json` writes
    them."""
    if is_variant(data_type):
        return {}
    return _NULL if pa.types.is_null(data_type) else _make_nullable(_build_type_schema(data_type))


def _build_type_schema(data_type: pa.DataType) -> dict[str, Any]:
    types = pa.types
    if types.is_floating(data_type):
        return {"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]}
    if types.is_struct(data_type):
        return _make_object({f.name: build_nullable_schema(f.type) for f in data_type.fields})
    if types.is_list(data_type):
        return {"type": "array", "items": build_nullable_schema(data_type.value_type)}
    if types.is_map(data_type):
        values = build_nullable_schema(data_type.item_type)
        if not types.is_nested(data_type.key_type):
            return {"type": "object", "additionalProperties": values}
        entry = {"key": build_nullable_schema(data_type.key_type), "value": values}
        return {"type": "array", "items": _make_object(entry)}
    for holds, schema in (
        (types.is_boolean, {"type": "boolean"}),
        (types.is_integer, _WHOLE),
        (types.is_decimal, {"type": "number"}),
        (types.is_binary, {**_TEXT, "contentEncoding": "base64"}),
        (types.is_large_binary, {**_TEXT, "contentEncoding": "base64"}),
        (types.is_date, {**_TEXT, "format": "date"}),
        (lambda kind: types.is_timestamp(kind) and kind.tz is not None, _TIME),
    ):
        if holds(data_type):
            return schema
    return _TEXT
