"""The format ``rows``: each event a JSON object, shaped like the rows of Spark's change feed."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc

from sinks.formats.json import JsonText, json_objects, json_values
from sinks.formats.parts import (
    as_binary,
    corrupt_values_named,
    data_columns,
    event_headers,
    json_keys,
    key_array,
    no_records,
    with_tombstones,
)
from sinks.formats.records import Records
from tailer.changes import CHANGE_TYPE, ChangeBatch

__all__ = ["RowsEncoder", "row_objects"]


def row_objects(
    batch: ChangeBatch,
    *,
    ids: bool = False,
    origin: bool = False,
    row_ids: bool = False,
    end: str = "}",
) -> pa.StringArray:
    """Return a batch's rows as JSON objects: the data columns, then the three metadata columns.

    Then, each if requested, ``_event_id``, ``_origin`` and ``_row_id`` (null if unknown). Raises
    :class:`TableError`, naming version and file, for a value that can't be written.
    """
    names, columns = list(batch.rows.schema.names), list(batch.rows.columns)
    if batch.num_rows:  # the same for all rows of a batch
        for number in (-2, -1):
            columns[number] = JsonText(json_values(columns[number].slice(0, 1))[0].as_py())
    if ids:
        names.append("_event_id")
        columns.append(batch.event_ids())
    if origin and batch.file is not None:
        names.append("_origin")
        columns.append(JsonText(json.dumps(batch.file.origin)))
    if row_ids:
        names.append("_row_id")
        columns.append(JsonText("null") if batch.row_ids is None else batch.row_ids)
    with corrupt_values_named(batch):
        return json_objects(names, columns, end)


class RowsEncoder:
    """Each event as Spark's ``readChangeFeed`` shows it. See :mod:`sinks.formats.records`."""

    paired = False

    def __init__(
        self, key_columns: tuple[str, ...] = (), *, ids: bool = False, tombstones: bool = False
    ) -> None:
        self.key_columns = key_columns
        self.ids = ids
        self.tombstones = tombstones

    def encode(self, batch: ChangeBatch) -> Records:
        """See :class:`sinks.formats.records.Encoder`."""
        if not batch.num_rows:
            return no_records(batch)
        keys = None
        if self.key_columns:
            keys = json_keys(key_array(batch, self.key_columns, data_columns(batch)))
        told, known = self.ids, self.ids and batch.row_ids is not None
        values = as_binary(row_objects(batch, ids=told, origin=told, row_ids=known))
        records = Records(keys, values, event_headers(batch), batch.timestamp_ms)
        if self.tombstones:
            deleted = pc.equal(batch.rows.column(CHANGE_TYPE), "delete")
            records = with_tombstones(records, deleted)
        return records
