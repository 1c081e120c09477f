"""`tailer read`: the changes of a range of versions, into a file."""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial

from tailer.changes import Offset
from tailer.cli.output import open_output, output_kind
from tailer.cli.reading import check_columns, feed_options
from tailer.cli.table import check_range, on_table
from tailer.decode.output import output_schema
from tailer.decode.rows import DecodeOptions
from tailer.delta.snapshot import Snapshot
from tailer.errors import TableError
from tailer.feed.options import FeedOptions
from tailer.feed.pipe import pipe
from tailer.feed.read import send_changes
from tailer.feed.reading import Reading
from tailer.log.mapping_removals import mapping_removals
from tailer.log.table import TableLog
from tailer.log.times import parse_timestamp, version_at_or_after, version_at_or_before

__all__ = ["read", "write_rows"]


@on_table
async def read(arguments: argparse.Namespace, log: TableLog) -> int:
    """Write the changes; return the exit status."""
    kind = output_kind(arguments.output)
    first, snapshot = await _range(arguments, log)
    last, end = snapshot.version, snapshot.state
    check_columns(arguments.columns, end, log.store.root)
    # One file has one schema: the end version's, as in Spark. JSON lines each have their version's.
    target = None if kind == "jsonl" else end
    options = feed_options(arguments, target)
    if target is not None:
        removals = await mapping_removals(log, first, last, end)
        options = replace(options, decode=replace(options.decode, removals=removals))
    schema = output_schema(end, options.decode.columns)
    changes = partial(send_changes, Reading.of(log, options), Offset(first), last)
    async with open_output(arguments.output, schema, ids=arguments.with_ids) as output:
        await pipe(changes, output.write)
    return 0


async def _range(arguments: argparse.Namespace, log: TableLog) -> tuple[int, Snapshot]:
    """Return the first version of a bounded read, and the snapshot of the last; both inclusive."""
    first, last = arguments.starting_version, arguments.ending_version
    if first is None:
        first = await version_at_or_after(log, parse_timestamp(arguments.starting_timestamp))
    if arguments.ending_timestamp is not None:
        last = await version_at_or_before(log, parse_timestamp(arguments.ending_timestamp))
    try:
        end = await log.snapshot(last)
    except TableError:
        if last is not None:
            _check_newest(log, "ending", last, await log.latest_version())
        raise
    if first > end.version:
        _check_newest(log, "starting", first, await log.latest_version())
    check_range(first, end.version)
    return first, end


def _check_newest(log: TableLog, name: str, version: int, newest: int) -> None:
    """Raise :class:`TableError` if a version is later than the newest."""
    if version > newest:
        raise TableError(
            f"the {name} version is {version}, and the newest is {newest}",
            table=log.store.root,
            hint="ask for versions that exist",
        )


async def write_rows(arguments: argparse.Namespace, log: TableLog, snapshot: Snapshot) -> None:
    """Write all rows of a snapshot, for `tailer snapshot --output`."""
    decode = DecodeOptions(writer_timezone=arguments.writer_timezone)
    start = Offset(snapshot.version, snapshot=True)
    reading = Reading.of(log, FeedOptions(decode=decode, runs=True))
    rows = partial(send_changes, reading, start, snapshot.version)
    schema = output_schema(snapshot.state)
    async with open_output(arguments.output, schema, ids=False) as output:
        await pipe(rows, output.write)
