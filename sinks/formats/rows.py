"""The format ``rows``: each event a JSON object, shaped like the rows of Spark's change feed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from sinks.formats.json import JsonMember, JsonText, iso_timestamp, json_objects_joined
from sinks.formats.parts import (
    BatchEncoder,
    commit_ms,
    data_columns,
    encode_naming_corrupt_file,
    event_headers,
    find_deletes,
    json_keys,
    key_array,
    with_tombstones,
)
from tailer.changes import ChangeBatch
from tailer.native.rowbytes import JoinedText
from tailer.sink import OWN_PREFIX, OwnNames
from tailer.sink.encoder import Records
from tailer.sink.own_names import add_prefix


def row_objects(
    batch: ChangeBatch,
    *,
    ids: bool = False,
    origin: bool = False,
    row_ids: bool = False,
    prefix: str = OWN_PREFIX,
    end: str = "}",
) -> pa.StringArray:
    """Return a batch's rows as JSON objects: the data columns, then the three metadata columns.

    Then, each if requested, ``_event_id``, ``_origin`` and ``_row_id`` (null if unknown), with
    ``prefix`` in place of the underscore. Raises :class:`TableError`, naming version and file, for
    a value that can't be written.
    """
    wanted = own_fields(ids=ids, origin=origin, row_ids=row_ids)
    rows = encode_naming_corrupt_file(lambda part: _format_part(part, wanted, prefix, end), batch)
    return rows.array()


def own_fields(*, ids: bool, origin: bool, row_ids: bool) -> tuple[str, ...]:
    """Return the names of the requested fields beside the columns, in their order."""
    return ("_event_id",) * ids + ("_origin",) * origin + ("_row_id",) * row_ids


def _format_part(batch: ChangeBatch, own: Sequence[str], prefix: str, end: str) -> JoinedText:
    names, columns = list(batch.rows.schema.names), list(batch.rows.columns)
    if batch.num_rows:
        # The two columns whose value is the same in all rows of a file.
        columns[-2] = JsonText(batch.by_part(lambda part: str(part.file.version)))
        columns[-1] = JsonText(batch.by_part(lambda part: _format_time(part.file.timestamp_ms)))
        for name in own:
            names.append(add_prefix(name, prefix))
            columns.append(_build_own_column(batch, name))
    return json_objects_joined(names, columns, end)


def _build_own_column(batch: ChangeBatch, name: str) -> JsonMember:
    if name == "_event_id":
        return batch.event_ids()
    if name == "_origin":
        return JsonText(batch.by_part(lambda part: json.dumps(part.file.origin)))
    return JsonText("null") if batch.row_ids is None else batch.row_ids


def _format_time(ms: int) -> str:
    """Return a commit's time as JSON, in the form of all timestamps."""
    return f'"{iso_timestamp(ms * 1000)}Z"'


class RowsEncoder(BatchEncoder):
    """Each event as Spark's ``readChangeFeed`` shows it. See :mod:`tailer.sink.encoder`."""

    is_text = True

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self._ids: bool = options.get("ids", False)
        self._prefix: str = options.get("own_prefix", OWN_PREFIX)
        fields = own_fields(ids=self._ids, origin=self._ids, row_ids=self._ids)
        self.own = OwnNames.of(*fields, prefix=self._prefix)

    def _encode_rows(self, batch: ChangeBatch) -> Records:
        keys = None
        if self.key_columns:
            keys = json_keys(key_array(batch, self.key_columns, data_columns(batch)))
        with_row_ids = self._ids and batch.row_ids is not None
        own = own_fields(ids=self._ids, origin=self._ids, row_ids=with_row_ids)
        values = _format_part(batch, own, self._prefix, "}")
        records = Records(keys, values, event_headers(batch), commit_ms(batch))
        return with_tombstones(records, find_deletes(batch)) if self.tombstones else records
