"""A mirror or a history in a SQL database, read back for `tailer verify`."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from sinks.shared.history import HistoryNames
from sinks.sql.database import Claim, Database
from sinks.sql.table_rows import TableForm
from tailer.changes import Offset


class SqlCopy:
    """See :class:`tailer.sink.MirrorCopy`."""

    def __init__(
        self,
        database: Database,
        target: str,
        claim: Claim | None,
        form: TableForm,
    ) -> None:
        self.offset: Offset | None = claim.offset if claim else None
        self.key = form.key
        self._database = database
        self._target = target
        self._history = form.history
        self.at: int | None = None

    def as_held(self, name: str, column: pa.Array) -> pa.Array:
        held = self._database.to_database_type(name, column)
        return self._database.make_comparable(held, held.type)

    def rows(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        names = self._database.quote_names(schema.names)
        types = self._database.to_database_schema(schema)
        query = f"SELECT {names} FROM {self._database.quote_table(self._target)}"
        if self._history is not None:
            query += f" WHERE {self._format_version(self._history)}"
        return self._database.read_rows(query, types)

    def _format_version(self, names: HistoryNames) -> str:
        first, last = map(self._database.quote_name, (names.from_version, names.to_version))
        if self.at is None:
            return f"{last} IS NULL"
        return f"{first} <= {self.at} AND ({last} IS NULL OR {last} > {self.at})"
