"""The format ``cloudevents``: CloudEvents 1.0 in Kafka's protocol binding, structured.

The event's ``id`` is the event id, ``source`` names the table by its id, ``type`` is
``delta.change.`` and the change type (``delta.snapshot.row`` for a row of the initial snapshot),
``time`` the commit's. Extensions: ``deltaversion``, ``deltaindex`` (both as strings, for a
CloudEvents integer has 32 bits), ``deltaorigin``, ``deltarowid``. ``data`` is the row as JSON, in
the types of the format ``rows``.
"""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc

from sinks.formats.json import JsonText, json_objects, json_values
from sinks.formats.parts import (
    BatchEncoder,
    as_binary,
    commit_ms,
    data_columns,
    find_deletes,
    json_keys,
    key_array,
    table_name,
    with_tombstones,
)
from tailer.changes import CHANGE_TYPE, ChangeBatch
from tailer.sink.encoder import Records

_STRUCTURED = b"application/cloudevents+json; charset=utf-8"
_JSON = "application/json"


class CloudEventsEncoder(BatchEncoder):
    """CloudEvents as JSON. See :mod:`tailer.sink.encoder`."""

    is_text = True

    def _encode_rows(self, batch: ChangeBatch) -> Records:
        rows = data_columns(batch)
        keys = json_keys(key_array(batch, self.key_columns, rows)) if self.key_columns else None
        data = json_values(rows)
        attributes = self._build_attributes(batch)
        values = as_binary(_join_event(attributes, data))
        headers = (("content-type", _STRUCTURED), ("_event_id", batch.event_ids()))
        records = Records(keys, values, headers, commit_ms(batch))
        return with_tombstones(records, find_deletes(batch)) if self.tombstones else records

    def _build_attributes(self, batch: ChangeBatch) -> dict[str, str | pa.Array]:
        """Return the attributes of each event: one text for all, or one each."""
        kinds = batch.rows.column(CHANGE_TYPE)
        kind = pc.binary_join_element_wise(pa.scalar("delta.change."), kinds, pa.scalar(""))
        attributes: dict[str, str | pa.Array] = {
            "specversion": "1.0",
            "id": batch.event_ids(),
            "source": f"urn:delta:{batch.state.table_id}",
            "type": "delta.snapshot.row" if batch.offset.snapshot else kind,
            "subject": table_name(batch, self.table),
            "time": _format_times(batch),
            "deltaversion": batch.by_part(lambda part: str(part.offset.version)),
            "deltaindex": batch.row_indices().cast(pa.string()),
            "deltaorigin": batch.by_part(lambda part: part.file.origin),
        }
        row_ids = batch.row_ids
        if row_ids is not None:
            attributes["deltarowid"] = row_ids.cast(pa.string())
        return attributes


def _join_event(attributes: dict[str, str | pa.Array], data: pa.StringArray) -> pa.StringArray:
    names = [*attributes, "datacontenttype", "data"]
    columns: list[pa.Array | JsonText] = [
        JsonText(json.dumps(value)) if isinstance(value, str) else value
        for value in attributes.values()
    ]
    return json_objects(names, [*columns, JsonText(json.dumps(_JSON)), JsonText(data)])


def _format_times(batch: ChangeBatch) -> str | pa.StringArray:
    """Return the commit's time in RFC 3339, with milliseconds."""
    numbers = pa.array([part.file.timestamp_ms for part in batch.parts()], pa.int64())
    texts = iter(numbers.cast(pa.timestamp("ms")).cast(pa.string()).to_pylist())
    return batch.by_part(lambda _: f"{next(texts).replace(' ', 'T')}Z")
