"""A feed that does not run goes back to a version: what follows is delivered again, with the same
ids. A copy is made what the table was then."""

from __future__ import annotations

from functools import partial

from msgspec import structs

from tailer.changes import Offset
from tailer.config.feeds import Config, FeedConfig
from tailer.daemon.assembly import find_parked_file, make_table_log
from tailer.errors import ConfigError, TargetRefused
from tailer.feed.copy_repairs import RepairCounts
from tailer.feed.parked_rows import read_parked, remove_parked
from tailer.log.starts import find_start_to_keep
from tailer.log.table import TableLog
from tailer.log.times import last_version
from tailer.offsets import OffsetStore
from tailer.process.threads import run_blocking
from tailer.sink import Sink
from tailer.verify.repair import rewind_mirror


async def find_offset(config: Config, feed: FeedConfig, start: str, index: int) -> Offset:
    """Return the offset of a change of a table, by the place that ``start`` names."""
    log = make_table_log(config, feed)
    try:
        return structs.replace(await find_start_to_keep(log, start), index=index)
    finally:
        await log.store.aclose()


async def save_offset(
    config: Config, offset: Offset | None, feed: FeedConfig, store: OffsetStore, sink: Sink
) -> None:
    """Save an offset in the sink, if it keeps one, and in the store; None forgets it.

    The sink comes first, because a feed starts from what it says. Rows that were parked behind the
    offset come again, so they are parked no longer.
    """
    await sink.set_offset(feed.name, offset)
    if offset is None:
        # A feed that its operator has paused stays paused; all other orders are dropped.
        paused = (await store.load_orders()).get("paused")
        await store.clear()
        if paused:
            await store.save_orders({"paused": True})
    else:
        await store.save(offset)
        orders = dict(await store.load_orders())
        if orders.pop("delivery", None):  # from here on the sink's options say it
            await store.save_orders(orders)
    await run_blocking(_forget_parked, config, feed, offset)


def _forget_parked(config: Config, feed: FeedConfig, offset: Offset | None) -> None:
    try:
        path = find_parked_file(config, feed)
        rows = read_parked(path)
    except ConfigError:  # it parks nothing, or elsewhere, or an older release did
        return
    again = [r.id for r in rows if offset is None or r.offset.position >= offset.position]
    remove_parked(path, set(again))


async def rewind_feed(
    config: Config, feed: FeedConfig, store: OffsetStore, sink: Sink, to: str
) -> tuple[Offset, RepairCounts | None]:
    """Go back to a version, or to the last one at or before a time; ``store`` is acquired. Return
    the new offset, and what was written to a copy.

    Raises :class:`ConfigError` for a version that the feed has not passed.
    """
    log = make_table_log(config, feed)
    try:
        version = await last_version(log, to)
        offset = await find_start_to_keep(log, str(version + 1))
        save = partial(save_offset, config, offset, feed, store, sink)
        if sink.traits.copies and not sink.traits.keeps_versions:
            options = feed.options.for_sink(sink)
            counts = await rewind_mirror(log, sink, feed.name, options, version, save)
            if counts.refused:
                raise TargetRefused(f"{counts.refused} rows were not written: {counts.reason}")
            return offset, counts
        try:
            now = await sink.look(feed.name) if sink.traits.keeps_offset else await store.load()
        except NotImplementedError:  # the sink can't tell
            now = offset
        if now is None or now.position < offset.position:
            raise ConfigError(
                f"the feed {feed.name!r} has not passed version {version}, so it can't go back "
                "to it"
            )
        if sink.traits.keeps_versions:
            await _check_columns(log, version, now.version if now.index else now.version - 1)
        await save()
        return offset, None
    finally:
        await log.store.aclose()


async def _check_columns(log: TableLog, version: int, last: int) -> None:
    """Raise :class:`ConfigError` for a version with a column that a history no longer has."""
    then, now = [(await log.load_snapshot(v)).state for v in (version, last)]
    kept = [(now.physical_name(field), field.type) for field in now.schema]
    for field in then.schema:
        if (then.physical_name(field), field.type) not in kept:
            raise ConfigError(
                f"the column {field.name!r} of version {version} was dropped or changed since, and "
                "the history has no such values; go back to a later version, or `tailer offsets "
                "reset` creates the history again"
            )
