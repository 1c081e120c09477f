"""Whether the columns of a table fit the outputs of a feed, before a row is written."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tailer.changes import METADATA_FIELDS, ChangeBatch
from tailer.delta.snapshot import TableState
from tailer.errors import TableError
from tailer.sink import Sink


class Fitting:
    """Checks the columns of each schema that is to be written, for the sinks that get it: with the
    first of its batches, and while the feed waits for one.

    It is the only place where a sink's columns are refused for their names or types; what a table
    itself can't have is refused where it is read. What it raises concerns every row, so no row is
    parked for it.
    """

    def __init__(self, table: str, sinks: Sequence[Sink]) -> None:
        self._table = table
        self._sinks = sinks
        self._checked: TableState | None = None

    def check_batch(self, batch: ChangeBatch) -> None:
        """Raise :class:`TableError` or :class:`SinkRejected` for a column of a batch that one of
        the sinks can't have."""
        if batch.state is not self._checked:
            self.check_schema(batch.rows.schema, batch.version)
            self._checked = batch.state

    def check_schema(self, schema: pa.Schema, version: int | None = None) -> None:
        """Do the same for the schema of change rows, whose last columns are not the table's."""
        columns = pa.schema(list(schema)[: -len(METADATA_FIELDS)])
        try:
            for sink in self._sinks:
                sink.traits.own.check(columns.names)
                sink.check_columns(columns)
        except TableError as e:
            raise e.at(table=self._table, version=version) from None
