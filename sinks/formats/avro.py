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

from sinks.formats.avro_schema import Names, avro_name, record_schema, schema_text
from sinks.formats.avro_values import (
    ValuePart,
    join_parts,
    long_bytes,
    long_parts,
    nullable_parts,
    record_parts,
    string_bytes,
    string_parts,
)
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

    def _encode(self, batch: ChangeBatch) -> Records:
        images = Images(batch)
        keys = None
        if self.key_columns:
            keys = self._keys(batch, key_array(batch, self.key_columns, images.rows))
        if self.envelope == "debezium":
            schema, parts = self._envelope(batch, images)
        elif self.envelope == "upsert":
            schema = self._record(batch, images.rows.type, "Value")
            parts = record_parts(images.rows.flatten())
        else:
            schema, parts = self._row(batch)
        values, number = self._framed("value", schema, parts, batch.num_rows)
        headers = (*event_headers(batch), ("_schema_id", str(number).encode()))
        if self.envelope == "debezium":
            headers += key_change_headers(
                batch,
                self.key_columns,
                keys,
                images.gone,
                lambda columns: self._keys(batch, columns),
            )
        records = Records(keys, values, headers, commit_ms(batch))
        if self.envelope == "upsert":
            return with_nulls(batch, records, images.gone)
        if not self.tombstones:
            return records
        deleted = images.gone if self.paired else _deleted(batch)
        return with_tombstones(records, deleted)

    def _keys(self, batch: ChangeBatch, columns: pa.StructArray) -> pa.BinaryArray:
        schema = self._record(batch, columns.type, "Key")
        return self._framed("key", schema, record_parts(columns.flatten()), len(columns))[0]

    def _namespace(self, batch: ChangeBatch) -> str:
        names = (self.name, table_name(batch, self.table))
        return ".".join(avro_name(name) for name in names if name)

    def _record(self, batch: ChangeBatch, rows: pa.StructType, name: str) -> dict[str, Any]:
        fields = [rows.field(i) for i in range(rows.num_fields)]
        return record_schema(fields, name, Names(), self._namespace(batch))

    def _framed(
        self, part: str, schema: dict[str, Any], parts: list[ValuePart], count: int
    ) -> tuple[pa.BinaryArray, int]:
        """Return the values in the wire format, and the id of their schema."""
        known = (self._subject(part, schema), schema_text(schema))
        if known not in self._ids:
            self._ids[known] = self.registry.register(known[0], known[1])
        number = self._ids[known]
        return join_parts([struct.pack(">bI", 0, number), *parts], count), number

    def _subject(self, part: str, schema: dict[str, Any]) -> str:
        """Return the subject of a record's schema. Raises :class:`ConfigError`."""
        record = ".".join(schema[name] for name in ("namespace", "name") if schema.get(name))
        return name_subject(self.subject_name_strategy, self.topic, part, record)

    def _row(self, batch: ChangeBatch) -> tuple[dict[str, Any], list[ValuePart]]:
        rows = data_columns(batch)
        schema = self._record(batch, rows.type, "Value")
        timestamp = {"type": "long", "logicalType": "timestamp-micros"}
        kinds: tuple[Any, ...] = ("string", "long", timestamp)
        for field, kind in zip(METADATA_FIELDS, kinds, strict=True):
            schema["fields"].append({"name": field.name, "type": kind})
        parts = [
            *record_parts(rows.flatten()),
            *string_parts(batch.rows.column(CHANGE_TYPE)),
            batch.by_part(_version_and_time),
        ]
        return schema, parts

    def _envelope(
        self, batch: ChangeBatch, images: Images
    ) -> tuple[dict[str, Any], list[ValuePart]]:
        names, namespace = Names(), self._namespace(batch)
        envelope = names.unused("Envelope")
        row_type = images.rows.type
        fields = [row_type.field(i) for i in range(row_type.num_fields)]
        value = record_schema(fields, "Value", names)
        own = f"{namespace}.Value"
        source = _plain_record(names.unused("Source"), _SOURCE)
        transaction = _plain_record(names.unused("Transaction"), _TRANSACTION)
        schema = {
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
        nothing = pa.scalar(None, row_type)
        before = nothing if images.before is None else images.before
        parts = [
            *nullable_parts(pc.if_else(images.gone, images.rows, before)),
            *nullable_parts(pc.if_else(images.gone, nothing, images.rows)),
            *self._source(batch, images),
            *_transaction(batch),
            *string_parts(images.op),
            batch.by_part(lambda part: _time(part) + _finer(part)),
        ]
        return schema, parts

    def _source(self, batch: ChangeBatch, images: Images) -> list[ValuePart]:
        row_ids = batch.row_ids
        return [
            batch.by_part(lambda part: self._source_of(batch, part)),
            *long_parts(batch.row_indices()),
            *([b"\x00"] if row_ids is None else nullable_parts(row_ids)),
            *string_parts(batch.event_ids()),
            pc.if_else(images.alone, pa.scalar(b"\x01"), pa.scalar(b"\x00")),
        ]

    def _source_of(self, batch: ChangeBatch, part: FilePart) -> bytes:
        """Encode what all rows of a part have in common."""
        return b"".join(
            (
                *map(string_bytes, (VERSION, CONNECTOR, self.name)),
                _time(part),
                *map(string_bytes, ("true" if batch.offset.snapshot else "false", "")),
                _finer(part),
                *map(string_bytes, (table_name(batch, self.table), batch.state.table_id)),
                long_bytes(part.offset.version),
                string_bytes(part.file.origin),
            )
        )


def _time(part: FilePart) -> bytes:
    return long_bytes(part.file.timestamp_ms)


def _finer(part: FilePart) -> bytes:
    micros = part.file.timestamp_ms * 1000
    return b"".join(b"\x02" + long_bytes(value) for value in (micros, micros * 1000))


def _version_and_time(part: FilePart) -> bytes:
    return long_bytes(part.offset.version) + long_bytes(part.file.timestamp_ms * 1000)


def _transaction(batch: ChangeBatch) -> list[ValuePart]:
    order = long_parts(pc.add(batch.row_indices(), pa.scalar(1, pa.int64())))
    name = batch.by_part(lambda part: string_bytes(transaction_id(batch, part)))
    return [name, *order, *order]


def _deleted(batch: ChangeBatch) -> pa.BooleanArray:
    return pc.equal(batch.rows.column(CHANGE_TYPE), "delete")


def _plain_record(name: str, fields: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    found = []
    for field, kind in fields:
        optional = {"default": None} if isinstance(kind, list) else {}
        found.append({"name": field, "type": kind, **optional})
    return {"type": "record", "name": name, "fields": found}
