"""A mirror in a SQL database whose rows are set right, for `tailer verify --repair`."""

from __future__ import annotations

import pyarrow as pa

from sinks.sql.database import Claim
from sinks.sql.table_rows import TableRows
from sinks.sql.table_writer import TableWriter
from tailer.changes import ChangeBatch, Offset
from tailer.errors import TargetRefused, TransientError


class SqlRepair:
    """See :class:`tailer.sink.MirrorRepair`. The claim stays what it is: the feed that has it does
    not notice, and its own transactions wait for those of the repair."""

    def __init__(self, writer: TableWriter, rows: TableRows) -> None:
        self._writer = writer
        self._rows = rows
        self._claim = self._find_claim()

    @property
    def offset(self) -> Offset | None:
        return self._claim.offset

    def reload(self) -> bool:
        before, self._claim = self._claim, self._find_claim()
        return self._claim != before

    def replace(self, batch: ChangeBatch) -> None:
        rows = pa.table(self._rows.build_rows(batch))
        self._check_columns(rows.schema)
        self._writer.replace_rows(self._claim, rows.select(list(self._rows.form.primary_key)), rows)

    def remove(self, keys: pa.Table) -> None:
        database, had = self._writer.database, self._find_columns()
        columns = [
            database.from_comparable(keys[name].combine_chunks(), had.field(name).type)
            for name in keys.column_names
        ]
        held = pa.table(columns, names=keys.column_names)
        self._writer.replace_rows(self._claim, held, None)

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
