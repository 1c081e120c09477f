"""A batch's change events as rows of a log: the data columns, the metadata columns, the id."""

from __future__ import annotations

import pyarrow as pa

from sinks.formats.json import variant_text
from tailer.changes import METADATA_FIELDS, ChangeBatch, is_arrow_variant
from tailer.errors import SinkRejected

__all__ = ["EVENT_ID", "change_rows", "check_type", "data_rows"]

#: The last column of a log: the event's id.
EVENT_ID = "_event_id"


def change_rows(batch: ChangeBatch, *, ids: bool, variants: bool = False) -> pa.RecordBatch:
    """Return a batch's rows, with their ids if requested. A variant is its JSON text; with
    ``variants``, it stays one. Raises :class:`SinkRejected` for a data column with a reserved name.
    """
    rows = batch.rows if variants else _as_text(batch.rows)
    if not ids:
        return rows
    if EVENT_ID in rows.schema.names:
        raise SinkRejected(
            f"the table has a column {EVENT_ID!r}, which is the name of the event's id here; leave "
            "it out by the option 'columns' of the feed"
        )
    return rows.append_column(EVENT_ID, batch.event_ids())


def data_rows(batch: ChangeBatch) -> pa.RecordBatch:
    """Return a batch's data columns, variants as JSON text."""
    count = batch.rows.num_columns - len(METADATA_FIELDS)
    return _as_text(batch.rows.select(list(range(count))))


def check_type(name: str, data_type: pa.DataType, target: str) -> None:
    """Raise :class:`SinkRejected` for a type that files of the kind ``target`` can't hold."""
    what = None
    if is_arrow_variant(data_type):
        what = "a variant within another type"
    elif pa.types.is_struct(data_type) and not data_type.num_fields:
        what = "a struct without fields"
    if what:
        raise SinkRejected(
            f"the column {name!r} has {what}, which {target} can't hold; leave it out by the "
            "option 'columns' of the feed"
        )
    for i in range(data_type.num_fields):
        check_type(name, data_type.field(i).type, target)


def _as_text(rows: pa.RecordBatch) -> pa.RecordBatch:
    if not any(is_arrow_variant(field.type) for field in rows.schema):
        return rows
    found = {
        field.name: variant_text(column) if is_arrow_variant(field.type) else column
        for field, column in zip(rows.schema, rows.columns, strict=True)
    }
    return pa.RecordBatch.from_pydict(found)
