"""`tailer parked`: list, show, replay and drop the rows that a feed has parked."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from msgspec import structs

from tailer.cli.feeds import find_feed
from tailer.config.feeds import load_config
from tailer.daemon.assembly import find_parked_file, make_offset_store
from tailer.daemon.parked import choose_rows, drop_parked, replay_parked
from tailer.errors import printable
from tailer.feed.parked_rows import ParkedRow, read_parked


async def parked(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status, 1 if a row is still refused.

    Raises :class:`ConfigError` for a feed that is not configured or parks nothing in a file, and
    for an id that is not there.
    """
    config = load_config(Path(arguments.config))
    feed = await find_feed(config, arguments.feed)
    path = find_parked_file(config, feed)
    if arguments.action in ("list", "show"):
        shows = arguments.action == "show"
        for row in choose_rows(read_parked(path, keeps_lines=shows), arguments.id):
            # In ASCII: a terminal obeys some characters.
            shown = json.dumps(json.loads(row.line)) if shows else None
            print(shown or _format_row(row))
        return 0
    store = make_offset_store(config, feed.name)
    await store.acquire()  # the feed does not run
    try:
        if arguments.action == "drop":
            count = await drop_parked(config, feed, arguments.id)
            print(f"{count} rows dropped", file=sys.stderr)
            return 0
        result = await replay_parked(config, feed, store, arguments.id)
    finally:
        await store.release()
    print(f"{result.delivered} rows delivered", file=sys.stderr)
    for row, reason in result.refused:
        print(f"{_format_row(structs.replace(row, reason=reason))}", file=sys.stderr)
    return 1 if result.refused else 0


def _format_row(row: ParkedRow) -> str:
    return printable(f"{row.id} version {row.offset.version}, parked {row.at}: {row.reason}")
