"""`tailer tail`: follow one table, its events as JSON lines."""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from tailer.api.batches import Ids
from tailer.api.follow import make_feed
from tailer.api.options import ReadOptions
from tailer.api.ranges import check_range
from tailer.cli.output import until_reader_gone
from tailer.cli.progress import BytesRead, SnapshotBar
from tailer.cli.table import on_table
from tailer.errors import SinkRejected
from tailer.feed.run import run_feed
from tailer.log.starts import find_start_offset
from tailer.log.table import TableLog
from tailer.sink import make_sink


@on_table
async def tail(arguments: argparse.Namespace, log: TableLog) -> int:
    """Print events until a signal comes, or the last version is done."""
    offset = await find_start_offset(log, arguments.start)
    if arguments.last is not None:
        check_range(offset.version, arguments.last)
    options = ReadOptions.from_arguments(arguments)
    if options.names_columns():
        options.check((await log.load_snapshot()).state, log.store.root)

    ids = Ids(options.with_ids, options.own_prefix)
    drawn = BytesRead(f"version {offset.version}")

    notices = {"notices": arguments.with_notices}
    sink = make_sink("jsonl", {**ids.of_jsonl("-"), **notices}, Path())
    progress = SnapshotBar("tail", drawn)
    feed = make_feed(log, offset, arguments.last, options, sink, progress, _print_message)
    # Rows on the same terminal show well enough that they come.
    shown = drawn if offset.snapshot and not sys.stdout.isatty() else nullcontext()
    try:
        with shown:
            await until_reader_gone(partial(run_feed, feed))
    except SinkRejected as e:
        if isinstance(e.__cause__, BrokenPipeError):
            raise e.__cause__ from None  # it has gone while a batch was written
        raise
    return 0


def _print_message(text: str) -> None:
    print(f"tailer: {text}", file=sys.stderr)
