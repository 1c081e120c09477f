"""A mirror in a SQL database, read back for `tailer verify`."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from sinks.sql.database import Claim, Database
from tailer.changes import Offset


class SqlCopy:
    """See :class:`tailer.sink.MirrorCopy`."""

    def __init__(
        self, database: Database, target: str, claim: Claim | None, key: tuple[str, ...]
    ) -> None:
        self.offset: Offset | None = claim.offset if claim else None
        self.key = key
        self._database = database
        self._target = target

    def as_held(self, column: pa.Array) -> pa.Array:
        held = self._database.to_database_type(column)
        return self._database.make_comparable(held, held.type)

    def rows(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        names = self._database.quote_names(schema.names)
        held = [self._database.to_database_type(pa.array([], f.type)).type for f in schema]
        types = pa.schema(list(zip(schema.names, held, strict=True)))
        query = f"SELECT {names} FROM {self._database.quote_table(self._target)}"
        return self._database.read_rows(query, types)
