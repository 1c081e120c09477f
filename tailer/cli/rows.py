"""The rows of versions, into a file, for `tailer read` and `tailer snapshot`."""

from __future__ import annotations

import argparse
from functools import partial

from msgspec import structs

from tailer.changes import ChangeBatch, Offset
from tailer.cli.feed_options import check_columns, feed_options, selection_of
from tailer.cli.output import Ids, open_output
from tailer.cli.progress import BytesRead, stored_bytes
from tailer.decode.rows import DecodeOptions
from tailer.delta.snapshot import Snapshot
from tailer.feed.fitting import Fitting
from tailer.feed.options import FeedOptions
from tailer.feed.pipe import pipe
from tailer.feed.read import send_changes
from tailer.feed.read_context import ReadContext
from tailer.log.table import TableLog
from tailer.plan.mapping_removals import mapping_removals


async def write_changes(
    arguments: argparse.Namespace, kind: str, log: TableLog, first: int, snapshot: Snapshot
) -> None:
    """Write the changes from version ``first`` to the snapshot's, for `tailer read`."""
    last, end = snapshot.version, snapshot.state
    check_columns(arguments, end, log.store.root)
    # One file has one schema: the end version's, as in Spark. JSON lines each have their version's.
    target = None if kind == "jsonl" else end
    drawn = BytesRead(f"versions {first} to {last}")
    options = feed_options(arguments, target, on_read=drawn)
    if target is not None:
        removals = await mapping_removals(log, first, last, end)
        options = structs.replace(
            options, decode=structs.replace(options.decode, removals=removals)
        )
    context = ReadContext.of(log, options)
    context.columns.learn(last, end)
    schema = context.shaper.schema(end)
    changes = partial(send_changes, context, Offset(first), last)
    ids = Ids(arguments.with_ids, arguments.own_prefix)
    async with open_output(arguments.output, kind, schema, ids) as output:
        fitting = Fitting(log.store.root, [output])

        async def write(batch: ChangeBatch) -> None:
            fitting.check(batch)
            await output.write(batch)

        with drawn:
            await pipe(changes, write)


async def write_rows(
    arguments: argparse.Namespace, kind: str, log: TableLog, snapshot: Snapshot
) -> None:
    """Write all rows of a snapshot, for `tailer snapshot --output`."""
    drawn = BytesRead(f"version {snapshot.version}", await stored_bytes(log, snapshot))
    decode = DecodeOptions(
        writer_timezone=arguments.writer_timezone,
        page_checksums=arguments.page_checksums,
        on_read=drawn,
    )
    start = Offset(snapshot.version, snapshot=True)
    selection = selection_of(arguments)
    check_columns(arguments, snapshot.state, log.store.root)
    context = ReadContext.of(log, FeedOptions(decode=decode, selection=selection, spans=True))
    context.columns.learn(snapshot.version, snapshot.state)
    rows = partial(send_changes, context, start, snapshot.version)
    schema = context.shaper.schema(snapshot.state)
    async with open_output(arguments.output, kind, schema, Ids()) as output:
        with drawn:
            await pipe(rows, output.write)
