"""The format ``upsert``: each key's row as it is now, for copies that are read by key.

A record is the new row under its key, or a tombstone (null) under a key that has no row any more.
A preimage is no record: an update is one row, and an update of the key a tombstone for the old key
and a row for the new one. So a topic that is compacted, or a consumer that keeps the last record
of each key, has the table's rows.

A version may take a key from one row and give it to another. Where the records of a batch have
both, the tombstones of its versions come before the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sinks.formats.debezium import Images
from sinks.formats.json import json_objects_joined, list_children
from sinks.formats.parts import (
    BatchEncoder,
    commit_ms,
    event_headers,
    json_keys,
    key_array,
)
from tailer.changes import COMMIT_VERSION, ChangeBatch
from tailer.errors import ConfigError
from tailer.sink.encoder import Records


class UpsertEncoder(BatchEncoder):
    """Rows as JSON objects of the data columns. See :mod:`tailer.sink.encoder`."""

    paired = True
    keeps_order = False

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        check_has_key(self.key_columns)

    def _encode_rows(self, batch: ChangeBatch) -> Records:
        images = Images(batch)
        rows = images.rows
        values = json_objects_joined(rows.type.names, list_children(rows))
        keys = json_keys(key_array(batch, self.key_columns, rows))
        records = Records(keys, values, event_headers(batch), commit_ms(batch))
        return with_nulls(batch, records, images.gone)


def check_has_key(key_columns: tuple[str, ...]) -> None:
    """Raise :class:`ConfigError` for records that would have no key."""
    if not key_columns:
        raise ConfigError("upserts need a key: name its columns in the option 'key'")


def with_nulls(batch: ChangeBatch, records: Records, gone: pa.BooleanArray) -> Records:
    """Return the records of a batch's rows, one for each, as tombstones where ``gone`` is true. If
    a key has both a tombstone and a row, the tombstones of each version come first."""
    if not pc.any(gone).as_py():
        return records
    null = pa.scalar(None, pa.binary())
    whole = records.whole()
    assert whole.keys is not None
    nulled = Records(
        whole.keys,
        pc.if_else(gone, null, whole.values),
        whole.headers,
        whole.timestamp_ms,
        whole.partitions,
    )
    if not pc.any(pc.is_in(whole.keys.filter(gone), whole.keys.filter(pc.invert(gone)))).as_py():
        return nulled
    turns = pa.table({"version": batch.rows.column(COMMIT_VERSION), "comes": pc.invert(gone)})
    order = pc.sort_indices(turns, sort_keys=[(name, "ascending") for name in turns.schema.names])
    return nulled.take(order)
