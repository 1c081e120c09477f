"""A batch's change events as rows of a log: the data columns, the metadata columns, the id."""

from __future__ import annotations

import pyarrow as pa

from sinks.formats.json import variant_text
from tailer.changes import METADATA_FIELDS, ChangeBatch, is_arrow_variant
from tailer.errors import TargetRefused

#: The last column of a log: the event's id.
EVENT_ID = "_event_id"


def change_rows(
    batch: ChangeBatch, id_column: str | None, *, variants: bool = False
) -> pa.RecordBatch:
    """Return a batch's rows, with their ids in a column of that name, if there is one. A variant is
    its JSON text; with ``variants``, it stays one."""
    rows = batch.rows if variants else _convert_variants_to_text(batch.rows)
    return rows.append_column(id_column, batch.event_ids()) if id_column else rows


def data_rows(batch: ChangeBatch) -> pa.RecordBatch:
    """Return a batch's data columns, variants as JSON text."""
    count = batch.rows.num_columns - len(METADATA_FIELDS)
    return _convert_variants_to_text(batch.rows.select(list(range(count))))


def check_type(name: str, data_type: pa.DataType, target: str) -> None:
    """Raise :class:`TargetRefused` for a type that files of the kind ``target`` can't hold."""
    what = None
    if is_arrow_variant(data_type):
        what = "a variant within another type"
    elif pa.types.is_struct(data_type) and not data_type.num_fields:
        what = "a struct without fields"
    if what:
        raise TargetRefused(
            f"the column {name!r} has {what}, which {target} can't hold; exclude it with the "
            "feed's option 'select'"
        )
    for i in range(data_type.num_fields):
        check_type(name, data_type.field(i).type, target)


def _convert_variants_to_text(rows: pa.RecordBatch) -> pa.RecordBatch:
    if not any(is_arrow_variant(field.type) for field in rows.schema):
        return rows
    found = {
        field.name: variant_text(column) if is_arrow_variant(field.type) else column
        for field, column in zip(rows.schema, rows.columns, strict=True)
    }
    return pa.RecordBatch.from_pydict(found)
