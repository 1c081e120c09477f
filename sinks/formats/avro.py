"""The format ``avro``: Avro's binary encoding with a schema registry's wire format.

A column that is added or dropped makes a new version of the subject, which the registry checks for
compatibility. See :mod:`sinks.formats.schema_encoder`.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sinks.formats.avro_schema import Names, build_record_schema, format_schema
from sinks.formats.avro_values import (
    long_bytes,
    long_parts,
    nullable_parts,
    record_parts,
    string_bytes,
    string_parts,
)
from sinks.formats.binary_parts import ValuePart
from sinks.formats.debezium import CONNECTOR, VERSION, Images, transaction_id
from sinks.formats.parts import data_columns, table_name
from sinks.formats.schema_encoder import Framed, SchemaEncoder
from tailer.changes import CHANGE_TYPE, METADATA_FIELDS, ChangeBatch
from tailer.changes import Part as FilePart

_SOURCE = (
    ("version", "string"),
    ("connector", "string"),
    ("name", "string"),
    ("ts_ms", "long"),
    ("snapshot", "string"),
    ("db", "string"),
    ("ts_us", ["null", "long"]),
    ("ts_ns", ["null", "long"]),
    ("table", "string"),
    ("table_id", "string"),
    ("commit_version", "long"),
    ("origin", "string"),
    ("index", "long"),
    ("row_id", ["null", "long"]),
    ("event_id", "string"),
    ("unpaired", "boolean"),
)
#: The commit's time in finer units. A record of an earlier release does not have them.
_FINER = ("ts_us", "ts_ns")
_TRANSACTION = (("id", "string"), ("total_order", "long"), ("data_collection_order", "long"))


class AvroEncoder(SchemaEncoder):
    """Avro records."""

    def _encode_records(self, batch: ChangeBatch, columns: pa.StructArray, part: str) -> Framed:
        schema = self._build_record_schema(batch, columns.type, part.title())
        return Framed(self._register_schema(part, schema), record_parts(columns.flatten()))

    def _encode_changes(self, batch: ChangeBatch) -> Framed:
        number = self._register_schema("value", self._build_row_schema(batch))
        parts = [
            *record_parts(data_columns(batch).flatten()),
            *string_parts(batch.rows.column(CHANGE_TYPE)),
            batch.by_part(_encode_version_and_time),
        ]
        return Framed(number, parts)

    def _encode_envelopes(self, batch: ChangeBatch, images: Images) -> Framed:
        schema = self._build_envelope_schema(batch, images.rows.type)
        number = self._register_schema("value", schema)
        return Framed(number, self._build_envelope_parts(batch, images))

    def _build_record_schema(
        self, batch: ChangeBatch, rows: pa.StructType, name: str
    ) -> dict[str, Any]:
        return build_record_schema(rows.fields, name, Names(), self._build_namespace(batch))

    def _register_schema(self, part: str, schema: dict[str, Any]) -> int:
        """Return the id of a schema in the registry."""
        record = ".".join(schema[name] for name in ("namespace", "name") if schema.get(name))
        known = (self._name_subject(part, record), format_schema(schema))
        if known not in self._known:
            self._known[known] = self.registry.register(known[0], known[1])
        return int(self._known[known])

    def _build_row_schema(self, batch: ChangeBatch) -> dict[str, Any]:
        schema = self._build_record_schema(batch, data_columns(batch).type, "Value")
        timestamp = {"type": "long", "logicalType": "timestamp-micros"}
        kinds: tuple[Any, ...] = ("string", "long", timestamp)
        for field, kind in zip(METADATA_FIELDS, kinds, strict=True):
            schema["fields"].append({"name": field.name, "type": kind})
        return schema

    def _build_envelope_schema(self, batch: ChangeBatch, row_type: pa.StructType) -> dict[str, Any]:
        names, namespace = Names(), self._build_namespace(batch)
        envelope = names.reserve_name("Envelope")
        value = build_record_schema(row_type.fields, "Value", names)
        own = f"{namespace}.Value"
        source = _make_plain_record(names.reserve_name("Source"), _SOURCE)
        transaction = _make_plain_record(names.reserve_name("Transaction"), _TRANSACTION)
        return {
            "type": "record",
            "name": envelope,
            "namespace": namespace,
            "fields": [
                {"name": "before", "type": ["null", value], "default": None},
                {"name": "after", "type": ["null", own], "default": None},
                {"name": "source", "type": source},
                {"name": "transaction", "type": transaction},
                {"name": "op", "type": "string"},
                {"name": "ts_ms", "type": "long"},
                *({"name": n, "type": ["null", "long"], "default": None} for n in _FINER),
            ],
        }

    def _build_envelope_parts(self, batch: ChangeBatch, images: Images) -> list[ValuePart]:
        nothing = pa.scalar(None, images.rows.type)
        before = nothing if images.before is None else images.before
        return [
            *nullable_parts(pc.if_else(images.gone, images.rows, before)),
            *nullable_parts(pc.if_else(images.gone, nothing, images.rows)),
            *self._build_source_parts(batch, images),
            *_build_transaction_parts(batch),
            *string_parts(images.op),
            batch.by_part(lambda part: _encode_time(part) + _encode_finer_times(part)),
        ]

    def _build_source_parts(self, batch: ChangeBatch, images: Images) -> list[ValuePart]:
        row_ids = batch.row_ids
        return [
            batch.by_part(lambda part: self._encode_source(batch, part)),
            *long_parts(batch.row_indices()),
            *([b"\x00"] if row_ids is None else nullable_parts(row_ids)),
            *string_parts(batch.event_ids()),
            pc.if_else(images.alone, pa.scalar(b"\x01"), pa.scalar(b"\x00")),
        ]

    def _encode_source(self, batch: ChangeBatch, part: FilePart) -> bytes:
        """Encode what all rows of a part have in common."""
        return b"".join(
            (
                *map(string_bytes, (VERSION, CONNECTOR, self.name)),
                _encode_time(part),
                *map(string_bytes, ("true" if batch.offset.snapshot else "false", "")),
                _encode_finer_times(part),
                *map(string_bytes, (table_name(batch, self.table), batch.state.table_id)),
                long_bytes(part.offset.version),
                string_bytes(part.file.origin),
            )
        )


def _encode_time(part: FilePart) -> bytes:
    return long_bytes(part.file.timestamp_ms)


def _encode_finer_times(part: FilePart) -> bytes:
    micros = part.file.timestamp_ms * 1000
    return b"".join(b"\x02" + long_bytes(value) for value in (micros, micros * 1000))


def _encode_version_and_time(part: FilePart) -> bytes:
    return long_bytes(part.offset.version) + long_bytes(part.file.timestamp_ms * 1000)


def _build_transaction_parts(batch: ChangeBatch) -> list[ValuePart]:
    order = long_parts(pc.add(batch.row_indices(), pa.scalar(1, pa.int64())))
    name = batch.by_part(lambda part: string_bytes(transaction_id(batch, part)))
    return [name, *order, *order]


def _make_plain_record(name: str, fields: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    found = []
    for field, kind in fields:
        optional = {"default": None} if isinstance(kind, list) else {}
        found.append({"name": field, "type": kind, **optional})
    return {"type": "record", "name": name, "fields": found}
