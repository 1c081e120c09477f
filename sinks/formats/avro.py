"""The format ``avro``: Avro's binary encoding with a schema registry's wire format.

A record is a zero byte, the schema's id (four bytes, big-endian), then the value. The schema is
registered when a batch first needs it, so it follows the table: a column that is added or dropped
makes a new version of the subject, which the registry checks for compatibility.

With ``envelope = "rows"`` a value is a row with the three metadata columns; with ``"debezium"`` it
is Debezium's envelope, where ``before`` and ``after`` are records of the data columns; with
``"upsert"`` a record of the data columns, or null (:mod:`sinks.formats.upsert`).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sinks.formats.avro_schema import Names, build_record_schema, format_schema, make_avro_name
from sinks.formats.avro_values import (
    long_bytes,
    long_parts,
    nullable_parts,
    record_parts,
    string_bytes,
    string_parts,
)
from sinks.formats.binary_parts import ValuePart, join_parts
from sinks.formats.debezium import CONNECTOR, VERSION, Images, transaction_id
from sinks.formats.parts import (
    BatchEncoder,
    commit_ms,
    data_columns,
    event_headers,
    key_array,
    key_change_headers,
    table_name,
    with_tombstones,
)
from sinks.formats.subjects import name_subject
from sinks.formats.upsert import check_has_key, with_nulls
from tailer.changes import CHANGE_TYPE, METADATA_FIELDS, ChangeBatch
from tailer.changes import Part as FilePart
from tailer.sink.encoder import Records

if TYPE_CHECKING:
    from sinks.formats.registry import Registry

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


class AvroEncoder(BatchEncoder):
    """Avro records whose schemas are in a registry, in subjects that are named after the topic. See
    :mod:`tailer.sink.encoder`."""

    def __init__(
        self,
        registry: Registry,
        key_columns: tuple[str, ...] = (),
        *,
        topic: str = "",
        envelope: str = "rows",
        subject_name_strategy: str = "topic",
        tombstones: bool = False,
        name: str = "",
        table: str = "",
    ) -> None:
        self.registry = registry
        self.key_columns = key_columns
        self.topic = topic
        if envelope == "upsert":
            check_has_key(key_columns)
        self.envelope = envelope
        self.subject_name_strategy = subject_name_strategy
        self.paired, self.keeps_order = envelope != "rows", envelope != "upsert"
        self.tombstones = tombstones
        self.name = name
        self.table = table
        self._ids: dict[tuple[str, str], int] = {}

    def _encode_rows(self, batch: ChangeBatch) -> Records:
        images = Images(batch)
        keys = None
        if self.key_columns:
            keys = self._encode_keys(batch, key_array(batch, self.key_columns, images.rows))
        if self.envelope == "debezium":
            schema = self._build_envelope_schema(batch, images.rows.type)
            parts = self._build_envelope_parts(batch, images)
        elif self.envelope == "upsert":
            schema = self._build_record_schema(batch, images.rows.type, "Value")
            parts = record_parts(images.rows.flatten())
        else:
            schema, parts = self._build_row_schema(batch), _build_row_parts(batch)
        number = self._register_schema("value", schema)
        values = _frame_records(number, parts, batch.num_rows)
        headers = (*event_headers(batch), ("_schema_id", str(number).encode()))
        if self.envelope == "debezium":
            headers += key_change_headers(
                batch,
                self.key_columns,
                keys,
                images.gone,
                lambda columns: self._encode_keys(batch, columns),
            )
        records = Records(keys, values, headers, commit_ms(batch))
        if self.envelope == "upsert":
            return with_nulls(batch, records, images.gone)
        if not self.tombstones:
            return records
        deleted = images.gone if self.paired else _find_deletes(batch)
        return with_tombstones(records, deleted)

    def _encode_keys(self, batch: ChangeBatch, columns: pa.StructArray) -> pa.BinaryArray:
        schema = self._build_record_schema(batch, columns.type, "Key")
        number = self._register_schema("key", schema)
        return _frame_records(number, record_parts(columns.flatten()), len(columns))

    def _build_namespace(self, batch: ChangeBatch) -> str:
        names = (self.name, table_name(batch, self.table))
        return ".".join(make_avro_name(name) for name in names if name)

    def _build_record_schema(
        self, batch: ChangeBatch, rows: pa.StructType, name: str
    ) -> dict[str, Any]:
        fields = [rows.field(i) for i in range(rows.num_fields)]
        return build_record_schema(fields, name, Names(), self._build_namespace(batch))

    def _register_schema(self, part: str, schema: dict[str, Any]) -> int:
        """Return the id of a schema in the registry."""
        known = (self._name_subject(part, schema), format_schema(schema))
        if known not in self._ids:
            self._ids[known] = self.registry.register(known[0], known[1])
        return self._ids[known]

    def _name_subject(self, part: str, schema: dict[str, Any]) -> str:
        """Return the subject of a record's schema. Raises :class:`ConfigError`."""
        record = ".".join(schema[name] for name in ("namespace", "name") if schema.get(name))
        return name_subject(self.subject_name_strategy, self.topic, part, record)

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
        fields = [row_type.field(i) for i in range(row_type.num_fields)]
        value = build_record_schema(fields, "Value", names)
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


def _build_row_parts(batch: ChangeBatch) -> list[ValuePart]:
    return [
        *record_parts(data_columns(batch).flatten()),
        *string_parts(batch.rows.column(CHANGE_TYPE)),
        batch.by_part(_encode_version_and_time),
    ]


def _frame_records(schema_id: int, parts: list[ValuePart], count: int) -> pa.BinaryArray:
    """Return values in the wire format: a zero byte and the schema's id come first."""
    return join_parts([struct.pack(">bI", 0, schema_id), *parts], count)


def _find_deletes(batch: ChangeBatch) -> pa.BooleanArray:
    return pc.equal(batch.rows.column(CHANGE_TYPE), "delete")


def _make_plain_record(name: str, fields: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    found = []
    for field, kind in fields:
        optional = {"default": None} if isinstance(kind, list) else {}
        found.append({"name": field, "type": kind, **optional})
    return {"type": "record", "name": name, "fields": found}
