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
        self._writer.replace_rows(self._claim, rows.select(list(self._rows.key)), rows)

    def remove(self, keys: pa.Table) -> None:
        columns = self._claim.columns
        held = {name: columns.field(name).type for name in keys.column_names} if columns else {}
        for i, (name, data_type) in enumerate(held.items()):
            if pa.types.is_binary(data_type) and pa.types.is_string(keys[name].type):
                texts = keys[name].to_pylist()  # as PostgreSQL writes bytes
                given = [bytes.fromhex(text.removeprefix("\\x")) for text in texts]
                keys = keys.set_column(i, name, pa.array(given, data_type))
        self._writer.replace_rows(self._claim, keys, None)

    def _find_claim(self) -> Claim:
        writer = self._writer
        writer.database.connect()
        claim = writer.database.check_target(writer.target, writer.feed, writer.mode)
        if claim is None or claim.columns is None:
            raise TargetRefused(
                f"{writer.database.location}: there is no copy {writer.target!r} to be repaired"
            )
        return claim

    def _check_columns(self, schema: pa.Schema) -> None:
        claimed = [] if self._claim.columns is None else self._claim.columns.names
        if set(schema.names) != set(claimed):
            raise TransientError(
                f"{self._writer.database.location}: the columns of {self._writer.target!r} have "
                "changed meanwhile; repair it again"
            )
