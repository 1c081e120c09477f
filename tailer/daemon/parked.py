"""The rows that a feed has parked in its file, for the command and for the orders: list them, and,
while the feed does not run, deliver or drop them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import anyio

from tailer.config.feeds import Config, FeedConfig
from tailer.daemon.assembly import find_parked_file, make_feed_sink, make_table_log
from tailer.errors import ConfigError
from tailer.feed.parked_rows import (
    ParkedRow,
    Replay,
    Replayed,
    find_unknown,
    note_delivered,
    read_parked,
    remove_parked,
)
from tailer.feed.publish import check_target
from tailer.offsets import OffsetStore
from tailer.process.threads import run_blocking

#: The most rows that an answer lists.
_LISTED_MAX = 100


async def list_parked(config: Config, feed: FeedConfig) -> list[dict[str, Any]]:
    """Return what is known of the first rows of a feed's file."""
    path = find_parked_file(config, feed)
    return [
        {"id": r.id, "version": r.offset.version, "file": r.file, "at": r.at, "reason": r.reason}
        for r in await run_blocking(read_parked, path, _LISTED_MAX)
    ]


async def drop_parked(config: Config, feed: FeedConfig, ids: Collection[str]) -> int:
    """Drop the rows with these ids, or all without ids; return how many. The feed's offset is
    acquired. Raises :class:`ConfigError` for an id that is not there."""
    path = find_parked_file(config, feed)
    if ids and (unknown := await run_blocking(find_unknown, path, ids)):
        raise make_unknown_error(unknown)
    return await run_blocking(remove_parked, path, ids or None)


async def replay_parked(
    config: Config, feed: FeedConfig, store: OffsetStore, ids: Collection[str]
) -> Replayed:
    """Deliver the rows with these ids, or all without ids; ``store`` is acquired.

    Raises :class:`ConfigError` for an id that is not there, and for a feed that keeps a copy or has
    delivered nothing.
    """
    path = find_parked_file(config, feed)
    await run_blocking(remove_parked, path, ())  # what a replay had delivered that was killed
    rows = choose_rows(await run_blocking(read_parked, path), ids)
    sink, log = make_feed_sink(config, feed), make_table_log(config, feed)
    if sink.traits.copies:
        raise ConfigError(
            f"the sink of the feed {feed.name!r} keeps a copy, in which a later change may have "
            "taken the row's place; `tailer verify CONFIG FEED --repair` writes what it lacks, and "
            "`tailer parked drop` removes what was parked"
        )
    try:
        saved, orders = await store.load(), await store.load_orders()
        sink.check_record_form(feed.name, orders.get("delivery"), saved)
        kept = await sink.open(feed.name)
        at = kept if sink.traits.keeps_offset else saved
        if at is None:
            check_target(sink, kept, saved, has_written=saved is not None)
            raise ConfigError(f"the feed {feed.name!r} has no offset, so it has delivered nothing")
        options = feed.options.for_sink(sink)
        note = partial(run_blocking, note_delivered, path)
        return await Replay(log, sink, options, at, note).run(rows)
    finally:
        with anyio.CancelScope(shield=True):
            await sink.aclose()
            await log.store.aclose()
            await run_blocking(remove_parked, path, ())


def make_unknown_error(ids: Collection[str]) -> ConfigError:
    """Return the error of ids of which no row is parked."""
    return ConfigError(f"no row with the id {min(ids)!r} is parked")


def choose_rows(rows: Sequence[ParkedRow], ids: Collection[str]) -> Sequence[ParkedRow]:
    """Return the rows with these ids; all without ids. Raises :class:`ConfigError` for an id that
    is not there."""
    wanted = set(ids)
    if unknown := wanted - {row.id for row in rows}:
        raise make_unknown_error(unknown)
    return [row for row in rows if not wanted or row.id in wanted]
