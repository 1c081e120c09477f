"""How one pass over a table's rows is prepared, for the command line and for Python."""

from __future__ import annotations

import pyarrow as pa
from msgspec import Struct, structs

from tailer.api.batches import Ids
from tailer.api.options import ReadOptions
from tailer.api.ranges import Range
from tailer.changes import METADATA_FIELDS, Offset
from tailer.decode.tracking import OnRead
from tailer.delta.snapshot import Snapshot
from tailer.feed.read import send_changes
from tailer.feed.read_context import EmitBatch, ReadContext
from tailer.log.table import TableLog
from tailer.plan.mapping_removals import mapping_removals


class Pass(Struct, frozen=True):
    """One pass: from the offset ``first`` to the version ``last``. ``schema`` is that of the rows
    of the last one, with the columns of ids."""

    context: ReadContext
    first: Offset
    last: int
    schema: pa.Schema
    table_id: str

    @property
    def start(self) -> Offset:
        """Return where the pass begins, with the id of the table if nothing is there to be read."""
        if self.first.version <= self.last:
            return self.first
        return structs.replace(self.first, table_id=self.table_id)

    async def send(self, emit: EmitBatch) -> None:
        """Read from the first row to the last."""
        if self.first.version <= self.last:
            await send_changes(self.context, self.first, self.last, emit)


async def prepare_changes(
    log: TableLog,
    versions: Range,
    options: ReadOptions,
    on_read: OnRead | None = None,
    *,
    one_schema: bool = True,
) -> Pass:
    """Return the pass over the changes of some versions. ``one_schema``: all rows have the end
    version's, as in Spark; else each version's rows have their own. Raises :class:`ConfigError`
    for options that do not fit the table, :class:`TableError` for a column that has the name of
    one that is added."""
    first, last, end = versions.first, versions.end.version, versions.end.state
    options.check(end, log.store.root)
    found = options.feed_options(end if one_schema else None, on_read=on_read)
    if one_schema and not versions.is_empty:
        removals = await mapping_removals(log, first.version, last, end)
        found = structs.replace(found, decode=structs.replace(found.decode, removals=removals))
    context = ReadContext.of(log, found)
    context.columns.learn(last, end)
    schema, ids = context.shaper.schema(end), Ids(options.with_ids, options.own_prefix)
    ids.own.check(schema.names[: -len(METADATA_FIELDS)])
    return Pass(context, first, last, ids.schema(schema), end.table_id)


async def prepare_snapshot(
    log: TableLog, snapshot: Snapshot, options: ReadOptions, on_read: OnRead | None = None
) -> Pass:
    """Return the pass over all rows of a version. Raises :class:`ConfigError` for options that do
    not fit the table."""
    options.check(snapshot.state, log.store.root)
    context = ReadContext.of(log, options.feed_options(on_read=on_read))
    context.columns.learn(snapshot.version, snapshot.state)
    first = Offset(snapshot.version, snapshot=True)
    schema = context.shaper.schema(snapshot.state)
    return Pass(context, first, snapshot.version, schema, snapshot.state.table_id)
