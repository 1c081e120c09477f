"""The format ``rows``: each event a JSON object, shaped like the rows of Spark's change feed."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc

from sinks.formats.json import JsonText, iso_timestamp, json_objects_joined
from sinks.formats.parts import (
    commit_ms,
    corrupt_file_named,
    data_columns,
    event_headers,
    json_keys,
    key_array,
    no_records,
    with_tombstones,
)
from sinks.formats.records import Records
from tailer.changes import CHANGE_TYPE, ChangeBatch
from tailer.rowbytes import Joined

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
    return _named(batch, ids=ids, origin=origin, row_ids=row_ids, end=end).array()


def _named(batch: ChangeBatch, *, ids: bool, origin: bool, row_ids: bool, end: str) -> Joined:
    return corrupt_file_named(
        lambda part: _row_objects(part, ids=ids, origin=origin, row_ids=row_ids, end=end), batch
    )


def _row_objects(batch: ChangeBatch, *, ids: bool, origin: bool, row_ids: bool, end: str) -> Joined:
    names, columns = list(batch.rows.schema.names), list(batch.rows.columns)
    if batch.num_rows:
        # The two columns whose value is the same in all rows of a file.
        columns[-2] = JsonText(batch.by_part(lambda part: str(part.file.version)))
        columns[-1] = JsonText(batch.by_part(lambda part: _time(part.file.timestamp_ms)))
    if ids:
        names.append("_event_id")
        columns.append(batch.event_ids())
    if origin and batch.num_rows:
        names.append("_origin")
        columns.append(JsonText(batch.by_part(lambda part: json.dumps(part.file.origin))))
    if row_ids:
        names.append("_row_id")
        columns.append(JsonText("null") if batch.row_ids is None else batch.row_ids)
    return json_objects_joined(names, columns, end)


def _time(ms: int) -> str:
    """Return a commit's time as JSON, in the form of all timestamps."""
    return f'"{iso_timestamp(ms * 1000)}Z"'


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
        values = _named(batch, ids=told, origin=told, row_ids=known, end="}")
        records = Records(keys, values, event_headers(batch), commit_ms(batch))
        if self.tombstones:
            deleted = pc.equal(batch.rows.column(CHANGE_TYPE), "delete")
            records = with_tombstones(records, deleted)
        return records
