"""`tailer parked`: list, show, replay and drop the rows that a feed has parked."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import anyio
from msgspec import structs

from tailer.cli.feeds import find_feed
from tailer.config.feeds import Config, FeedConfig, load_config
from tailer.daemon.assembly import (
    find_parked_file,
    make_feed_sink,
    make_offset_store,
    make_table_log,
)
from tailer.errors import ConfigError, printable
from tailer.feed.parked_rows import (
    ParkedRow,
    Replay,
    Replayed,
    note_delivered,
    read_parked,
    remove_parked,
)
from tailer.feed.publish import check_target
from tailer.process.threads import run_blocking


async def parked(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status, 1 if a row is still refused.

    Raises :class:`ConfigError` for a feed that is not configured or parks nothing in a file, and
    for an id that is not there.
    """
    config = load_config(Path(arguments.config))
    feed = await find_feed(config, arguments.feed)
    path = find_parked_file(config, feed)
    if arguments.action in ("list", "show"):
        for row in _choose_rows(arguments, read_parked(path)):
            # In ASCII: a terminal obeys some characters.
            shown = json.dumps(json.loads(row.line)) if arguments.action == "show" else None
            print(shown or _format_row(row))
        return 0
    store = make_offset_store(config, feed.name)
    await store.acquire()  # the feed does not run
    try:
        remove_parked(path, ())  # what a replay had delivered that was killed
        rows = _choose_rows(arguments, read_parked(path))
        if arguments.action == "drop":
            count = remove_parked(path, {row.id for row in rows})
            print(f"{count} rows dropped", file=sys.stderr)
            return 0
        result = await _replay_rows(config, feed, rows)
    finally:
        await store.release()
    print(f"{result.delivered} rows delivered", file=sys.stderr)
    for row, reason in result.refused:
        print(f"{_format_row(structs.replace(row, reason=reason))}", file=sys.stderr)
    return 1 if result.refused else 0


def _choose_rows(arguments: argparse.Namespace, rows: Sequence[ParkedRow]) -> Sequence[ParkedRow]:
    ids = set(arguments.id)
    if unknown := ids - {row.id for row in rows}:
        raise ConfigError(f"no row with the id {min(unknown)!r} is parked")
    return [row for row in rows if not ids or row.id in ids]


def _format_row(row: ParkedRow) -> str:
    return printable(f"{row.id} version {row.offset.version}, parked {row.at}: {row.reason}")


async def _replay_rows(config: Config, feed: FeedConfig, rows: Sequence[ParkedRow]) -> Replayed:
    sink, log = make_feed_sink(config, feed), make_table_log(config, feed)
    store = make_offset_store(config, feed.name)
    path = find_parked_file(config, feed)
    if sink.traits.copies:
        raise ConfigError(
            f"the sink of the feed {feed.name!r} keeps a copy, in which a later change may have "
            "taken the row's place; `tailer verify CONFIG FEED --repair` writes what it lacks, and "
            "`tailer parked drop` removes what was parked"
        )

    try:
        saved, orders = await store.load(), await store.load_orders()
        sink.delivery(feed.name, orders.get("delivery"), saved)
        kept = await sink.open(feed.name)
        at = kept if sink.traits.keeps_offset else saved
        if at is None:
            check_target(sink, kept, saved, delivered=saved is not None)
            raise ConfigError(f"the feed {feed.name!r} has no offset, so it has delivered nothing")
        options = feed.options.for_sink(sink)
        note = partial(run_blocking, note_delivered, path)
        return await Replay(log, sink, options, at, note).run(rows)
    finally:
        with anyio.CancelScope(shield=True):
            await sink.aclose()
            await log.store.aclose()
            await run_blocking(remove_parked, path, ())
