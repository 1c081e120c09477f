"""A mirror or a history in a SQL database, read back for `tailer verify`, and set right for its
`--repair`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from sinks.shared.copy_sink import TableForm
from sinks.shared.history import HistoryNames
from sinks.sql.database import Claim, Database
from sinks.sql.table_rows import TableRows
from sinks.sql.table_writer import TableWriter
from tailer.changes import ChangeBatch, Offset
from tailer.errors import TargetRefused, TransientError


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


class SqlRepair:
    """See :class:`tailer.sink.MirrorRepair`. The claim stays what it is: the feed that has it does
    not notice, and its own transactions wait for those of the repair. Its number of rows becomes
    what the copy has, which is another one where the copy is taken back to an earlier version."""

    def __init__(self, writer: TableWriter, rows: TableRows) -> None:
        self._writer = writer
        self._rows = rows
        claim, table = self._find_claim(), writer.database.quote_table(writer.target)
        # Once: a copy that others write too is claimed anew before a large table is counted.
        ((count,),) = writer.database.execute(f"SELECT count(*) FROM {table}")
        self._claim = replace(claim, rows=count)

    @property
    def offset(self) -> Offset | None:
        return self._claim.offset

    def reload(self) -> bool:
        before, self._claim = self._claim, self._find_claim()
        return self._claim != replace(before, rows=self._claim.rows)

    def replace(self, batch: ChangeBatch) -> None:
        rows = pa.table(self._rows.build_rows(batch))
        self._check_columns(rows.schema)
        keys = rows.select(list(self._rows.form.primary_key))
        self._claim = self._writer.replace_rows(self._claim, keys, rows)

    def remove(self, keys: pa.Table) -> None:
        database, had = self._writer.database, self._find_columns()
        columns = [
            database.from_comparable(keys[name].combine_chunks(), had.field(name).type)
            for name in keys.column_names
        ]
        held = pa.table(columns, names=keys.column_names)
        self._claim = self._writer.replace_rows(self._claim, held, None)

    def _find_claim(self) -> Claim:
        writer = self._writer
        writer.database.connect()
        claim = writer.database.check_target(writer.target, writer.feed, writer.form.mode)
        if claim is None or claim.columns is None:
            raise TargetRefused(
                f"{writer.database.location}: there is no copy {writer.target!r} to be repaired"
            )
        return claim

    def _find_columns(self) -> pa.Schema:
        assert self._claim.columns is not None, "a copy that was found has columns"
        return self._claim.columns

    def _check_columns(self, schema: pa.Schema) -> None:
        if set(schema.names) != set(self._find_columns().names):
            raise TransientError(
                f"{self._writer.database.location}: the columns of {self._writer.target!r} have "
                "changed meanwhile; repair it again"
            )
