"""A batch's rows as a SQL table has them: the columns of a mirror, a history or a log, and what
does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from sinks.shared.copy_sink import TableForm, require_row_ids
from sinks.sql.database import Database, ValueRefused
from tailer.changes import COMMIT_VERSION, METADATA_FIELDS, ChangeBatch
from tailer.errors import RowsRefused, SinkRejected, TargetRefused
from tailer.sink import OwnNames


@dataclass(slots=True)
class TableRows:
    """The rows of a table of this form; ``own`` are the names that are taken."""

    database: Database
    target: str
    form: TableForm
    own: OwnNames

    def first_columns(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns that the table is made with."""
        form = self.form
        columns = [*schema, *METADATA_FIELDS] if form.is_log else [*schema]
        held = [(f.name, f.type) for f in self.database.to_database_schema(columns)]
        held += [(form.row_id, pa.int64())] if form.row_id is not None else []
        held += [(form.event_id, pa.string())] if form.event_id is not None else []
        if form.history is not None:
            at, number = METADATA_FIELDS[-1].type, pa.int64()
            kept = self.database.to_database_type("", pa.array([], at)).type
            held += zip(form.history.list_names(), (kept, kept, number, number), strict=True)
        return pa.schema(held)

    def check_columns(self, schema: pa.Schema) -> None:
        """Raise :class:`SinkRejected` for a column that the table can't hold."""
        own = self.own
        self.database.names.check_columns([*schema.names, *own.names, *own.fixed])
        for name, column in zip(schema.names, schema.empty_table().columns, strict=True):
            try:
                held = self.database.to_database_type(name, column.combine_chunks())
                self.database.check_values(held)
            except ValueRefused as e:
                raise self._make_refusal(name, e) from e

    def build_rows(self, batch: ChangeBatch) -> pa.RecordBatch:
        """Return a batch's rows as the table has them. Raises :class:`SinkRejected` for a type or a
        value that the database can't hold."""
        rows, form = batch.rows, self.form
        found = dict(zip(rows.schema.names, rows.columns, strict=True))
        if form.event_id is not None:
            found[form.event_id] = batch.event_ids()
        else:
            found = dict(list(found.items())[: -len(METADATA_FIELDS)])
        held = self._hold_columns(found, batch)
        if form.row_id is not None:
            held[form.row_id] = require_row_ids(batch)
        if form.history is not None:
            held |= self._hold_columns(form.history.build_columns(batch), batch)
        found = pa.RecordBatch.from_pydict(held)
        self._check_lengths(found, batch)
        return found

    def _hold_columns(
        self, columns: Mapping[str, pa.Array], batch: ChangeBatch
    ) -> dict[str, pa.Array]:
        held = {}
        for name, column in columns.items():
            try:
                held[name] = self.database.to_database_type(name, column)
                self.database.check_values(held[name])
            except ValueRefused as e:
                raise self._make_refusal(name, e, batch) from e
        return held

    def _check_lengths(self, rows: pa.RecordBatch, batch: ChangeBatch) -> None:
        """Raise :class:`RowsRefused` for a value that its column has no room for."""
        key, schema = self.form.primary_key, rows.schema
        rooms = self.database.find_rooms(self.target, key, schema) if batch.num_rows else {}
        for name in rows.schema.names:
            if name in rooms:
                try:
                    rooms[name].check(rows.column(name), self.database.names.database)
                except ValueRefused as e:
                    raise self._make_refusal(name, e, batch) from e

    def _make_refusal(
        self, name: str, e: ValueRefused, batch: ChangeBatch | None = None
    ) -> SinkRejected:
        version = f"version {_find_version(batch, e.row)}: " if batch and e.row is not None else ""
        kind = RowsRefused if version else TargetRefused
        return kind(
            f"{version}the column {name!r} has {e}; exclude it with the feed's option 'select', "
            "or exclude these rows with `where`"
        )


def _find_version(batch: ChangeBatch, row: int) -> int:
    version: int = batch.rows.column(COMMIT_VERSION)[row].as_py()
    return version
