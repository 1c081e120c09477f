"""Records whose schemas are in a registry: what ``avro`` and ``protobuf`` have in common.

A record is a zero byte, the schema's id (four bytes, big-endian), then the value in the format's
encoding. The schema is registered when a batch first needs it, so it follows the table.

With ``envelope = "rows"`` a value is a row with the three metadata columns; with ``"debezium"`` it
is Debezium's envelope, where ``before`` and ``after`` are records of the data columns; with
``"upsert"`` a record of the data columns, or null (:mod:`sinks.formats.upsert`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from sinks.formats.avro_schema import make_avro_name
from sinks.formats.binary_parts import ValuePart, join_parts
from sinks.formats.debezium import Images
from sinks.formats.parts import (
    commit_ms,
    event_headers,
    find_deletes,
    key_array,
    key_change_headers,
    table_name,
    with_tombstones,
)
from sinks.formats.subjects import RegistryEncoder, format_frame
from sinks.formats.upsert import check_has_key, with_nulls
from tailer.changes import ChangeBatch
from tailer.sink.encoder import Records


class Framed(NamedTuple):
    """Values and the id of their schema in the registry."""

    schema_id: int
    parts: list[ValuePart]

    def join(self, count: int) -> pa.BinaryArray:
        """Return ``count`` values in the wire format."""
        return join_parts([format_frame(self.schema_id), *self.parts], count)


class SchemaEncoder(RegistryEncoder):
    """Records whose schemas are in a registry, in subjects that are named after the topic. See
    :mod:`tailer.sink.encoder`."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        if self.envelope == "upsert":
            check_has_key(self.key_columns)
        self.paired, self.keeps_order = self.envelope != "rows", self.envelope != "upsert"

    def _encode_rows(self, batch: ChangeBatch) -> Records:
        images = Images(batch)
        keys = None
        if self.key_columns:
            keys = self._encode_keys(batch, key_array(batch, self.key_columns, images.rows))
        if self.envelope == "debezium":
            framed = self._encode_envelopes(batch, images)
        elif self.envelope == "upsert":
            framed = self._encode_records(batch, images.rows, "value")
        else:
            framed = self._encode_changes(batch)
        values = framed.join(batch.num_rows)
        headers = (*event_headers(batch), ("_schema_id", str(framed.schema_id).encode()))
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
        deleted = images.gone if self.paired else find_deletes(batch)
        return with_tombstones(records, deleted)

    def _encode_keys(self, batch: ChangeBatch, columns: pa.StructArray) -> pa.BinaryArray:
        return self._encode_records(batch, columns, "key").join(len(columns))

    @abstractmethod
    def _encode_records(self, batch: ChangeBatch, columns: pa.StructArray, part: str) -> Framed:
        """Encode columns alone; ``part`` is key or value."""

    @abstractmethod
    def _encode_changes(self, batch: ChangeBatch) -> Framed:
        """Encode the rows with their metadata columns."""

    @abstractmethod
    def _encode_envelopes(self, batch: ChangeBatch, images: Images) -> Framed:
        """Encode Debezium's envelopes."""

    def _build_namespace(self, batch: ChangeBatch) -> str:
        names = (self.name, table_name(batch, self.table))
        return ".".join(make_avro_name(name) for name in names if name)
