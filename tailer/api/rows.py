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
from tailer.plan.mapping_removals import find_mapping_removals


class Pass(Struct, frozen=True):
    """One pass over some versions. ``schema`` is that of the rows of the last one, with the columns
    of ids."""

    context: ReadContext
    versions: Range
    schema: pa.Schema

    @property
    def start(self) -> Offset:
        """Return where the pass begins, with the id of the table if nothing is there to be read."""
        first, end = self.versions.first, self.versions.end
        if not self.versions.is_empty:
            return first
        return structs.replace(first, table_id=end.state.table_id)

    async def send(self, emit: EmitBatch) -> None:
        """Read from the first row to the last."""
        first, end = self.versions.first, self.versions.end
        if not self.versions.is_empty:
            await send_changes(self.context, first, end.version, emit)


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
    last, end = versions.end.version, versions.end.state
    options.check(end, log.store.root)
    found = options.feed_options(end if one_schema else None, on_read=on_read)
    if one_schema and not versions.is_empty:
        removals = await find_mapping_removals(log, versions.first.version, last, end)
        found = structs.replace(found, decode=structs.replace(found.decode, removals=removals))
    context = ReadContext.from_options(log, found)
    context.columns.learn_state(last, end)
    schema, ids = context.shaper.shape_schema(end), Ids(options.with_ids, options.own_prefix)
    ids.own.check(schema.names[: -len(METADATA_FIELDS)])
    return Pass(context, versions, ids.extend_schema(schema))


async def prepare_snapshot(
    log: TableLog, snapshot: Snapshot, options: ReadOptions, on_read: OnRead | None = None
) -> Pass:
    """Return the pass over all rows of a version. Raises :class:`ConfigError` for options that do
    not fit the table."""
    options.check(snapshot.state, log.store.root)
    context = ReadContext.from_options(log, options.feed_options(on_read=on_read))
    context.columns.learn_state(snapshot.version, snapshot.state)
    versions = Range(Offset(snapshot.version, snapshot=True), snapshot)
    return Pass(context, versions, context.shaper.shape_schema(snapshot.state))
