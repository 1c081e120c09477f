"""What a feed reads, in order: the snapshot, skipped versions, commits, re-snapshots."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from tailer.changes import ChangeBatch, Offset
from tailer.errors import DataLoss
from tailer.feed.commit import Item, commit_items, skipped
from tailer.feed.options import FeedOptions
from tailer.feed.orders import Orders
from tailer.feed.policy import LostFiles, after_loss
from tailer.feed.progress import Observer
from tailer.feed.reading import Reading
from tailer.feed.snapshots import Resnapshots, initial_snapshot
from tailer.log.follow import follow_runs
from tailer.log.live import LiveFiles
from tailer.log.same_table import check_same, check_there
from tailer.log.table import TableLog

__all__ = ["read_changes", "read_items"]


async def read_changes(
    log: TableLog,
    start: Offset,
    last: int | None,
    options: FeedOptions,
    observer: Observer | None = None,
) -> AsyncGenerator[ChangeBatch, None]:
    """Yield the change batches from an offset on, in order, up to version ``last`` or forever.

    A version without changes gives one empty batch, which moves the offset on.
    """
    reading = Reading.of(log, options, observer or Observer())
    async with aclosing(_read(reading, start, last, notices=False)) as items:
        async for item in items:
            if isinstance(item, ChangeBatch):
                yield item


async def read_items(
    log: TableLog,
    start: Offset,
    last: int | None,
    options: FeedOptions,
    observer: Observer,
    orders: Orders | None = None,
    lost: LostFiles | None = None,
    live: LiveFiles | None = None,
) -> AsyncGenerator[Item, None]:
    """Read as :func:`read_changes` does, with notices in their places and with the policies.

    ``lost`` and ``live`` are what an earlier attempt found out about the table's files.
    """
    at = start
    reading = Reading.of(log, options, observer, orders, lost, live)
    while True:
        try:
            async with aclosing(_read(reading, at, last, notices=True)) as items:
                async for item in items:
                    yield item
                    at = item.next_offset
        except DataLoss as loss:
            await check_there(log, at.version)  # or all its files are missing, for now
            if options.policies.on_data_loss == "fail":
                raise
            await check_same(log, at)  # or they are missing because the table is another one
            at = at.under(reading.counted_by, reading.former)
            notice = await after_loss(log, at, loss, options.policies.on_data_loss, reading.lost)
            observer.lost(notice)
            yield notice
            at = notice.next_offset
        else:
            return


async def _read(
    reading: Reading, start: Offset, last: int | None, *, notices: bool
) -> AsyncGenerator[Item, None]:
    """Yield the data on its way to the sink: store -> log -> plan -> fetch -> decode."""
    at = start
    if at.snapshot:
        async with aclosing(initial_snapshot(reading, at, notices=notices)) as items:
            async for item in items:
                yield item
                at = item.next_offset
    # A version that does not exist yet is skipped when it is committed.
    skips = reading.orders.skips
    while at.version in skips and at.version <= await reading.log.latest_version():
        notice = await skipped(reading, at)
        yield notice
        at = notice.next_offset
    snapshots = Resnapshots(reading)
    async with aclosing(snapshots.turn(at)) as items:
        async for item in items:
            yield item
    following = (reading.options.follow, reading.observer.newest)
    async with aclosing(follow_runs(reading.log, at, last, *following)) as runs:
        async for found in runs:
            # A snapshot's turn comes after each commit.
            for commits in ([commit] for commit in found) if snapshots.waiting else (found,):
                async with aclosing(commit_items(reading, commits, at, notices=notices)) as items:
                    async for item in items:
                        yield item
                        at = item.next_offset
                for commit in commits:
                    snapshots.passed(commit)
                async with aclosing(snapshots.turn(at)) as items:
                    async for item in items:
                        yield item
