"""A batch as actions of the bulk API: the versions and texts of documents.

The documents of a copy have external versions: see :mod:`sinks.shared.row_versions`.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from sinks.formats.json import json_objects, json_values
from sinks.formats.parts import encode_naming_corrupt_file, table_name
from sinks.formats.rows import row_objects
from sinks.messages.messages import Messages
from sinks.shared.key_ids import find_ids
from sinks.shared.merge import check_key, find_coming
from sinks.shared.row_versions import find_last_changes, number_events, number_rows
from tailer.changes import COMMIT_VERSION, METADATA_FIELDS, ChangeBatch

#: The field of a log that has the events' order.
SEQ = "_seq"


def make_copy_actions(batch: ChangeBatch, key: Sequence[str], era: int) -> Messages:
    """Return what a batch with rows does to a copy: for each key, the last change that it has.

    Raises :class:`SinkRejected` for a key that is null or that several rows of a version have.
    """
    rows = batch.rows.select(batch.rows.schema.names[: -len(METADATA_FIELDS)])
    check_key(batch, rows, key)
    keys = pa.table(rows).select(list(key))
    last = find_last_changes(batch, keys)
    return _make_actions(batch, rows, keys, number_rows(batch, era), find_coming(batch), last)


def make_repair_actions(batch: ChangeBatch, key: Sequence[str], version: int) -> Messages:
    """Return what makes a batch's rows, all inserts, those of their keys, with this external
    version."""
    rows = batch.rows.select(batch.rows.schema.names[: -len(METADATA_FIELDS)])
    count = batch.num_rows
    external, comes = pa.array([version] * count), pa.repeat(pa.scalar(True), count)
    keys = pa.table(rows).select(list(key))
    return _make_actions(batch, rows, keys, external, comes, pa.arange(0, count))


def make_removals(ids: pa.StringArray, versions: Sequence[int]) -> list[bytes]:
    """Return what removes these documents, with their external versions, an action each."""
    return [
        b'{"delete":{"_id":%b,"version":%d,"version_type":"external_gte"}}\n'
        % (text.encode(), version)
        for text, version in zip(json_values(ids).to_pylist(), versions, strict=True)
    ]


def _make_actions(
    batch: ChangeBatch, rows: pa.RecordBatch, keys: pa.Table, external: pa.Int64Array,
    comes: pa.BooleanArray, order: pa.Int64Array,
) -> Messages:  # fmt: skip
    ids = find_ids(keys).take(order)
    named = pc.binary_join_element_wise(
        '{"_id":', json_values(ids), ',"version":', external.take(order).cast(pa.string()),
        ',"version_type":"external_gte"}}\n', "",
    )  # fmt: skip
    documents = encode_naming_corrupt_file(
        lambda part: json_objects(rows.schema.names, part.rows.columns[: rows.num_columns]), batch
    ).take(order)
    lines = pc.if_else(
        comes.take(order),
        pc.binary_join_element_wise('{"index":', named, documents, "\n", ""),
        pc.binary_join_element_wise('{"delete":', named, ""),
    )
    versions = batch.rows.column(COMMIT_VERSION).take(order)
    values, found = lines.cast(pa.binary()), ids.cast(pa.binary())
    return Messages(batch, values, ids, versions, table_name(batch, ""), found)


def make_log_actions(batch: ChangeBatch) -> Messages:
    """Return what adds a batch's events to a log, each under its id, once."""
    ids = batch.event_ids()
    numbers = number_events(batch).cast(pa.string())
    events = row_objects(batch, ids=True, row_ids=batch.row_ids is not None, end=f',"{SEQ}":')
    documents = pc.binary_join_element_wise(events, numbers, "}", "")
    lines = pc.binary_join_element_wise(
        '{"create":{"_id":', json_values(ids), "}}\n", documents, "\n", ""
    )
    versions = batch.rows.column(COMMIT_VERSION)
    table = table_name(batch, "")
    return Messages(batch, lines.cast(pa.binary()), ids, versions, table, ids.cast(pa.binary()))
