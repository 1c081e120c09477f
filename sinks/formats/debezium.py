"""The format ``debezium``: before and after in one event, in Debezium's envelope.

``op`` is ``c``, ``u``, ``d``, or ``r`` for a row of the initial snapshot. An update has both images
where the feed paired them; an image that stayed alone is a ``d`` or ``c`` whose ``source.unpaired``
is true. ``ts_ms``, ``ts_us`` and ``ts_ns`` are the commit's time, never the clock's, so a replay
gives the same bytes; the log has milliseconds, which the finer two repeat.

With ``schema``, every record carries its Kafka Connect schema, and values are as Connect's JSON
converter writes them; without, values are JSON as people read it, as in the format ``rows``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sinks.formats.connect import connect_fields, connect_values
from sinks.formats.json import (
    JsonMember,
    JsonObject,
    JsonText,
    json_objects,
    json_objects_joined,
    json_values,
    mask_nulls,
)
from sinks.formats.parts import (
    BatchEncoder,
    as_binary,
    commit_ms,
    data_columns,
    event_headers,
    key_array,
    key_change_headers,
    required_columns,
    table_name,
    with_tombstones,
)
from tailer.changes import CHANGE_TYPE, ChangeBatch, Part
from tailer.native.rowbytes import JoinedText
from tailer.sink.encoder import Records

#: The version of the envelope, as ``source.version``. It is part of the bytes, so it is not the
#: program's version, which would change the bytes of a replay with a newer program.
VERSION = "2"
CONNECTOR = "delta"

_NULL = pa.scalar("null")


def transaction_id(batch: ChangeBatch, part: Part) -> str:
    """Return the id of the version, or snapshot, of a part: as in a topic of commit ends."""
    snapshot = ":snapshot" if batch.offset.snapshot else ""
    return f"{batch.state.table_id}:{part.offset.version}{snapshot}"


class Images:
    """A batch's rows in Debezium's terms.

    ``rows`` and ``before`` (or None) are the data columns; ``gone`` (boolean) marks the rows
    without an after image, ``updated`` those with both, ``alone`` those that are an update's image
    without its partner; ``op`` is the operation of each row.
    """

    def __init__(self, batch: ChangeBatch) -> None:
        kinds = batch.rows.column(CHANGE_TYPE)
        preimage, postimage = (
            pc.equal(kinds, "update_preimage"),
            pc.equal(kinds, "update_postimage"),
        )
        self.rows = data_columns(batch)
        self.before = batch.before if batch.before is not None and len(batch.before) else None
        if self.before is None:
            self.updated = pa.repeat(pa.scalar(False), len(kinds))
        else:
            self.updated = self.before.is_valid()
        self.gone = pc.or_(preimage, pc.equal(kinds, "delete"))
        self.alone = pc.or_(preimage, pc.and_not(postimage, self.updated))
        created = "r" if batch.offset.snapshot else "c"
        coming = pc.if_else(self.updated, "u", created)
        self.op: pa.StringArray = pc.if_else(self.gone, "d", coming)


class DebeziumEncoder(BatchEncoder):
    """Debezium's envelope, with or without Connect's schema. See :mod:`tailer.sink.encoder`."""

    is_text = True
    paired = True

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self.schema: bool = options.get("schema", False)

    def _encode_rows(self, batch: ChangeBatch) -> Records:
        images = Images(batch)
        table = table_name(batch, self.table)
        payload = self._build_payload(batch, images, table)
        keys = None
        if self.key_columns:
            own = key_array(batch, self.key_columns, images.rows)
            keys = self._format_key_columns(batch, own, table)
        headers = event_headers(batch) + key_change_headers(
            batch,
            self.key_columns,
            keys,
            images.gone,
            lambda columns: self._format_key_columns(batch, columns, table),
        )
        records = Records(keys, payload, headers, commit_ms(batch))
        return with_tombstones(records, images.gone) if self.tombstones else records

    def _build_payload(self, batch: ChangeBatch, images: Images, table: str) -> JoinedText:
        before, after = self._format_images(images)
        # Debezium counts from one.
        order = pc.add(batch.row_indices(), pa.scalar(1, pa.int64())).cast(pa.string())
        transaction: dict[str, JsonMember] = {
            "id": JsonText(batch.by_part(lambda part: json.dumps(transaction_id(batch, part)))),
            "total_order": JsonText(order),
            "data_collection_order": JsonText(order),
        }
        times = _format_times(batch)
        members: dict[str, JsonMember] = {
            "before": JsonText(before),
            "after": JsonText(after),
            "source": JsonObject(self._build_source(batch, images, table, times)),
            "transaction": JsonObject(transaction),
            "op": images.op,
            **times,
        }
        if self.schema:
            schema = _build_envelope_schema(self.name, table, images.rows.type)
            members = {"schema": JsonText(schema), "payload": JsonObject(members)}
        return json_objects_joined(list(members), list(members.values()))

    def _format_images(self, images: Images) -> tuple[pa.Array | str, pa.Array | str]:
        """Return ``before`` and ``after`` as JSON text."""
        row = self._format_rows(images.rows)
        before: pa.Array | str = "null"
        if images.before is not None:
            before = pc.fill_null(self._format_rows(images.before), _NULL)
        if not pc.any(images.gone).as_py():
            return before, row
        other = _NULL if isinstance(before, str) else before
        return pc.if_else(images.gone, row, other), pc.if_else(images.gone, _NULL, row)

    def _format_rows(self, rows: pa.StructArray) -> pa.StringArray:
        """Return JSON objects of data columns, null where the struct is null."""
        values = connect_values(rows) if self.schema else rows
        return mask_nulls(json_values(values), rows)

    def _build_source(
        self, batch: ChangeBatch, images: Images, table: str, times: dict[str, JsonText]
    ) -> dict[str, JsonMember]:
        row_ids = batch.row_ids
        alone = pc.any(images.alone).as_py()
        return {
            "version": _make_text(VERSION),
            "connector": _make_text(CONNECTOR),
            "name": _make_text(self.name),
            "ts_ms": times["ts_ms"],
            "snapshot": _make_text("true" if batch.offset.snapshot else "false"),
            "db": _make_text(""),
            "ts_us": times["ts_us"],
            "ts_ns": times["ts_ns"],
            "table": _make_text(table),
            "table_id": _make_text(batch.state.table_id),
            "commit_version": JsonText(batch.by_part(lambda part: str(part.offset.version))),
            "origin": JsonText(batch.by_part(lambda part: json.dumps(part.file.origin))),
            "index": batch.row_indices(),
            "row_id": JsonText("null") if row_ids is None else row_ids,
            "event_id": batch.event_ids(),
            "unpaired": images.alone if alone else JsonText("false"),
        }

    def _format_key_columns(
        self, batch: ChangeBatch, keys: pa.StructArray, table: str
    ) -> pa.BinaryArray:
        if not self.schema:
            return as_binary(json_values(keys))
        schema = {
            "type": "struct",
            "fields": connect_fields(keys.type.fields, required=required_columns(batch)),
            "optional": False,
            "name": f"{_join_names(self.name, table)}.Key",
        }
        members = [JsonText(_format_json(schema)), connect_values(keys)]
        return as_binary(json_objects(["schema", "payload"], members))


def _format_times(batch: ChangeBatch) -> dict[str, JsonText]:
    """Return the commit's time in all three units."""

    def text(factor: int) -> JsonText:
        return JsonText(batch.by_part(lambda part: str(part.file.timestamp_ms * factor)))

    return {"ts_ms": text(1), "ts_us": text(1000), "ts_ns": text(1_000_000)}


def _make_text(value: str) -> JsonText:
    return JsonText(json.dumps(value))


def _join_names(name: str, table: str) -> str:
    return f"{name}.{table}" if name else table


def _format_json(document: Any) -> str:
    return json.dumps(document, separators=(",", ":"))


def _make_field(name: str, kind: str, *, optional: bool = False) -> dict[str, Any]:
    return {"type": kind, "optional": optional, "field": name}


def _build_envelope_schema(name: str, table: str, rows: pa.StructType) -> str:
    """Return the Connect schema of the envelope, as JSON text."""
    prefix = _join_names(name, table)
    columns = connect_fields(rows.fields)
    value = {
        "type": "struct", "fields": columns, "optional": True, "name": f"{prefix}.Value",
    }  # fmt: skip
    source = [
        *(_make_field(n, "string") for n in ("version", "connector", "name")),
        _make_field("ts_ms", "int64"),
        {**_make_field("snapshot", "string", optional=True), "name": "io.debezium.data.Enum",
         "version": 1, "parameters": {"allowed": "true,false"}, "default": "false"},
        _make_field("db", "string"),
        *(_make_field(n, "int64", optional=True) for n in ("ts_us", "ts_ns")),
        *(_make_field(n, "string") for n in ("table", "table_id")),
        _make_field("commit_version", "int64"),
        _make_field("origin", "string", optional=True),
        _make_field("index", "int64"),
        _make_field("row_id", "int64", optional=True),
        _make_field("event_id", "string"),
        _make_field("unpaired", "boolean"),
    ]  # fmt: skip
    transaction = [
        _make_field("id", "string"),
        _make_field("total_order", "int64"),
        _make_field("data_collection_order", "int64"),
    ]
    return _format_json(
        {
            "type": "struct",
            "fields": [
                {**value, "field": "before"},
                {**value, "field": "after"},
                {"type": "struct", "fields": source, "optional": False,
                 "name": "io.debezium.connector.delta.Source", "field": "source"},
                {"type": "struct", "fields": transaction, "optional": True,
                 "name": "event.block", "version": 1, "field": "transaction"},
                _make_field("op", "string"),
                *(_make_field(n, "int64", optional=True) for n in ("ts_ms", "ts_us", "ts_ns")),
            ],
            "optional": False,
            "name": f"{prefix}.Envelope",
            "version": 2,
        }
    )  # fmt: skip
