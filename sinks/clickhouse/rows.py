"""A batch as rows of a table: for a copy, the last change of each key; for a log, every event."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from sinks.clickhouse.columns import NAMES, hold_column, hold_type
from sinks.shared.merge import check_key, find_coming
from sinks.shared.row_versions import find_last_changes, number_events, number_rows
from sinks.sql.text import ValueRefused
from tailer.changes import COMMIT_VERSION, METADATA_FIELDS, ChangeBatch
from tailer.errors import RowsRefused
from tailer.sink import OwnNames
from tailer.sink.own_names import add_prefix

_METADATA = tuple(field.name for field in METADATA_FIELDS)


class RowMaker(Struct, frozen=True):
    """``key`` are the columns of a copy's; a log has none. ``first`` and ``second`` are the columns
    of ours: a copy's row version and whether the row is deleted, or a log's event id and number."""

    key: tuple[str, ...]
    first: str
    second: str

    @classmethod
    def of(cls, key: tuple[str, ...], prefix: str) -> RowMaker:
        names = ("_version", "_is_deleted") if key else ("_event_id", "_seq")
        first, second = (add_prefix(name, prefix) for name in names)
        return cls(key, first, second)

    @property
    def own(self) -> OwnNames:
        """Return the names that no column of the table may have."""
        return OwnNames((self.first, self.second), fixed=() if self.key else _METADATA)

    @property
    def required(self) -> tuple[str, ...]:
        """Return the columns without nulls."""
        return (*self.key, self.first, self.second, *(() if self.key else _METADATA))

    @property
    def engine(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the columns that the engine is told of, and those by which rows are one."""
        if self.key:
            return (self.first, self.second), self.key
        return (), (COMMIT_VERSION, self.first)

    def list_columns(self, schema: pa.Schema) -> pa.Schema:
        """Return the table's columns for the columns of batches, without those of METADATA_FIELDS.
        Raises :class:`TargetRefused` for a name that no column can have."""
        data = list(schema) if self.key else [*schema, *METADATA_FIELDS]
        NAMES.check_columns([*(field.name for field in data), self.first, self.second])
        types = (pa.uint64(), pa.uint8()) if self.key else (pa.string(), pa.int64())
        held = [pa.field(field.name, hold_type(field.type)) for field in data]
        return pa.schema([*held, *map(pa.field, (self.first, self.second), types)])

    def make_rows(self, batch: ChangeBatch, era: int) -> pa.Table:
        """Return the rows that a batch with rows becomes.

        Raises :class:`SinkRejected` for a value that ClickHouse does not hold, and for a key that
        is null or that several rows of a version have.
        """
        names = batch.rows.schema.names
        if not self.key:
            found = {name: self._hold(batch, name) for name in names}
            return pa.table(
                {**found, self.first: batch.event_ids(), self.second: number_events(batch)}
            )
        names = names[: -len(METADATA_FIELDS)]
        rows = batch.rows.select(names)
        check_key(batch, rows, self.key)
        last = find_last_changes(batch, pa.table(rows).select(list(self.key)))
        held = pa.table({name: self._hold(batch, name) for name in names}).take(last)
        return self._finish_rows(held, number_rows(batch, era).take(last),
            find_coming(batch).take(last))  # fmt: skip

    def make_repair_rows(self, batch: ChangeBatch, version: int) -> pa.Table:
        """Return a batch's rows, all inserts, with this row version."""
        names, count = batch.rows.schema.names[: -len(METADATA_FIELDS)], batch.num_rows
        held = pa.table({name: self._hold(batch, name) for name in names})
        comes = pa.repeat(pa.scalar(value=True), count)
        return self._finish_rows(held, pa.array([version] * count, pa.int64()), comes)

    def make_removals(self, keys: pa.Table, version: int) -> pa.Table:
        """Return what removes the rows of these keys, with this row version."""
        count = keys.num_rows
        comes = pa.repeat(pa.scalar(value=False), count)
        versions = pa.array([version] * count, pa.int64())
        return self._finish_rows(keys.select(list(self.key)), versions, comes)

    def _finish_rows(
        self, held: pa.Table, versions: pa.Int64Array, comes: pa.BooleanArray
    ) -> pa.Table:
        """Add our columns. Of a row that leaves, its key is kept alone."""
        if not pc.all(comes).as_py():
            columns: Sequence[pa.ChunkedArray] = [
                column if name in self.key
                else pc.if_else(comes, column, pa.scalar(None, column.type))
                for name, column in zip(held.column_names, held.columns, strict=True)
            ]  # fmt: skip
            held = pa.table(dict(zip(held.column_names, columns, strict=True)))
        deleted = pc.invert(comes).cast(pa.uint8())
        held = held.append_column(self.first, versions.cast(pa.uint64()))
        return held.append_column(self.second, deleted)

    def _hold(self, batch: ChangeBatch, name: str) -> pa.Array:
        try:
            return hold_column(batch.rows.column(name))
        except ValueRefused as e:
            version = batch.rows.column(COMMIT_VERSION)[e.row].as_py()
            raise RowsRefused(
                f"version {version}: the column {name!r} has {e}, which ClickHouse can't hold; "
                "exclude it with the feed's option 'select', or exclude these rows with `where`"
            ) from e
