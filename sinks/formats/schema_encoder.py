"""Records whose schemas are in a registry: what ``avro`` and ``protobuf`` have in common.

A record is a zero byte, the schema's id (four bytes, big-endian), then the value in the format's
encoding. The schema is registered when a batch first needs it, so it follows the table.

With ``envelope = "rows"`` a value is a row with the three metadata columns; with ``"debezium"`` it
is Debezium's envelope, where ``before`` and ``after`` are records of the data columns; with
``"upsert"`` a record of the data columns, or null (:mod:`sinks.formats.upsert`).
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from sinks.formats.avro_schema import make_avro_name
from sinks.formats.binary_parts import ValuePart, join_parts
from sinks.formats.debezium import Images
from sinks.formats.parts import (
    BatchEncoder,
    commit_ms,
    event_headers,
    key_array,
    key_change_headers,
    table_name,
    with_tombstones,
)
from sinks.formats.subjects import name_subject
from sinks.formats.upsert import check_has_key, with_nulls
from tailer.changes import CHANGE_TYPE, ChangeBatch
from tailer.sink.encoder import Records

if TYPE_CHECKING:
    from sinks.formats.registry import Registry


class Framed(NamedTuple):
    """Values and the id of their schema in the registry."""

    schema_id: int
    parts: list[ValuePart]

    def join(self, count: int) -> pa.BinaryArray:
        """Return ``count`` values in the wire format."""
        return join_parts([struct.pack(">bI", 0, self.schema_id), *self.parts], count)


class SchemaEncoder(BatchEncoder):
    """Records whose schemas are in a registry, in subjects that are named after the topic. See
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
        #: What is known of the schemas that the registry has, by subject and what is looked for.
        self._known: dict[tuple[Any, ...], Any] = {}

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
        deleted = images.gone if self.paired else _find_deletes(batch)
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

    def _name_subject(self, part: str, record: str) -> str:
        """Return the subject of the schema of a record with this full name. Raises
        :class:`ConfigError`."""
        return name_subject(self.subject_name_strategy, self.topic, part, record)


def _find_deletes(batch: ChangeBatch) -> pa.BooleanArray:
    return pc.equal(batch.rows.column(CHANGE_TYPE), "delete")
