"""The rows of versions, into a file, for `tailer read` and `tailer snapshot`."""

from __future__ import annotations

import argparse

from tailer.api.batches import Ids
from tailer.api.options import ReadOptions
from tailer.api.ranges import Range
from tailer.api.rows import prepare_changes, prepare_snapshot
from tailer.changes import ChangeBatch
from tailer.cli.output import open_output
from tailer.cli.progress import BytesRead, stored_bytes
from tailer.delta.snapshot import Snapshot
from tailer.feed.fitting import Fitting
from tailer.feed.pipe import pipe_items
from tailer.log.table import TableLog


async def write_changes(
    arguments: argparse.Namespace, kind: str, log: TableLog, versions: Range
) -> None:
    """Write the changes of some versions, for `tailer read`."""
    options = ReadOptions.from_arguments(arguments)
    drawn = BytesRead(f"versions {versions.first.version} to {versions.end.version}")
    # One file has one schema; JSON lines each have their version's.
    one = kind != "jsonl"
    found = await prepare_changes(log, versions, options, drawn, one_schema=one)
    ids = Ids(options.with_ids, options.own_prefix)
    async with open_output(arguments.output, kind, found.schema, ids) as output:
        fitting = Fitting(log.store.root, [output])

        async def write(batch: ChangeBatch) -> None:
            fitting.check_batch(batch)
            await output.write(batch)

        with drawn:
            await pipe_items(found.send, write)


async def write_rows(
    arguments: argparse.Namespace, kind: str, log: TableLog, snapshot: Snapshot
) -> None:
    """Write all rows of a snapshot, for `tailer snapshot --output`."""
    drawn = BytesRead(f"version {snapshot.version}", await stored_bytes(log, snapshot))
    options = ReadOptions.from_arguments(arguments)
    found = await prepare_snapshot(log, snapshot, options, drawn)
    async with open_output(arguments.output, kind, found.schema, Ids()) as output:
        with drawn:
            await pipe_items(found.send, output.write)
