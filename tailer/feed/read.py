"""What a feed reads, in order: the snapshot, skipped versions, commits, re-snapshots."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import TypeAlias

from tailer.changes import ChangeBatch, Notice, Offset
from tailer.compare.databases import keep_databases
from tailer.errors import DataLoss
from tailer.feed.commit import find_skip_notice, read_commits
from tailer.feed.options import FeedOptions
from tailer.feed.orders import Orders
from tailer.feed.pipe import read_ahead
from tailer.feed.policy import LostFiles, continue_after_loss
from tailer.feed.progress import Observer
from tailer.feed.read_context import Emit, EmitBatch, FeedItem, ReadContext
from tailer.feed.snapshots import Resnapshots, read_snapshot
from tailer.log.follow import follow_backlog
from tailer.log.same_table import check_table_exists, confirm_table
from tailer.log.table import TableLog
from tailer.plan.live_files import LiveFiles
from tailer.process.threads import run_blocking

#: Shaping this number of rows takes no longer than a hop into a thread.
_ROWS_HERE = 1000


class ItemSender:
    """Sends items. ``at`` is the offset after those that were sent."""

    def __init__(self, emit: Emit, at: Offset) -> None:
        self._emit = emit
        self.at = at

    async def __call__(self, item: FeedItem) -> None:
        """Send an item, and move the offset after it."""
        await self._emit(item)
        self.at = item.next_offset


#: Sends what comes after :attr:`ItemSender.at`, up to a version or forever, and moves it on.
ReadFunction: TypeAlias = Callable[[ReadContext, ItemSender, int | None], Awaitable[None]]


def read_changes(
    log: TableLog,
    start: Offset,
    last: int | None,
    options: FeedOptions,
    observer: Observer | None = None,
    *,
    keep_refused: bool = False,
) -> AsyncGenerator[ChangeBatch, None]:
    """Yield the change batches from an offset on, in order, up to version ``last`` or forever.

    A version without changes gives one empty batch, which moves the offset on. The next batch is
    read while one is used. Raises why a row can't be delivered, or yields it, with
    ``keep_refused``, as a batch that says so.
    """
    context = ReadContext.from_options(log, options, observer)
    return read_ahead(partial(send_changes, context, start, last, keep_refused=keep_refused))


def read_items(
    log: TableLog,
    start: Offset,
    last: int | None,
    options: FeedOptions,
    observer: Observer,
    orders: Orders | None = None,
    lost: LostFiles | None = None,
    live: LiveFiles | None = None,
) -> AsyncGenerator[FeedItem, None]:
    """Yield what :func:`send_items` sends. The next item is read while one is used.

    ``lost`` and ``live`` are what an earlier attempt found out about the table's files.
    """
    context = ReadContext.from_options(log, options, observer, orders, lost, live)
    return read_ahead(partial(send_items, context, start, last))


async def send_changes(
    context: ReadContext,
    start: Offset,
    last: int | None,
    emit: EmitBatch,
    *,
    keep_refused: bool = False,
) -> None:
    """Send the batches of :func:`read_changes`."""

    async def emit_changes(item: FeedItem) -> None:
        if isinstance(item, ChangeBatch):
            if item.refused is not None and not keep_refused:
                raise item.refused
            await emit(item)

    sender = ItemSender(_build_shaping_emit(context, emit_changes), start)
    await read_in_process(context, sender, last, notices=False)


def _build_shaping_emit(context: ReadContext, emit: Emit) -> Emit:
    """Return what shapes the rows, and sends on those that are published.

    This comes after all that counts rows, so that offsets, event ids and the rows' places are those
    of a feed that publishes all that is read. A batch without any is sent only if it ends a
    version, or is a snapshot's first: a copy of no rows is one, too.
    """
    shaper, change_types = context.shaper, context.options.selection.list_change_types()
    if change_types is None and not shaper.is_needed:
        return emit

    begun = False

    async def emit_shaped(item: FeedItem) -> None:
        nonlocal begun
        if isinstance(item, Notice):
            await emit(item)
            return
        pieces = shaper.shape_batch(item) if shaper.is_needed else iter([item])
        while True:
            if item.num_rows <= _ROWS_HERE:
                piece = next(pieces, None)
            else:
                piece = await run_blocking(next, pieces, None)
            if piece is None:
                return
            if change_types is not None:
                piece = piece.of_kinds(change_types)
            begins = piece.offset.snapshot and not begun
            if piece.num_rows or begins or piece.next_offset.version != piece.offset.version:
                begun = True
                await emit(piece)

    return emit_shaped


async def read_in_process(
    context: ReadContext, sender: ItemSender, last: int | None, *, notices: bool = True
) -> None:
    """Read in this process: store -> log -> plan -> fetch -> decode."""
    with keep_databases():
        await _read_in_order(context, sender, last, notices=notices)


async def send_items(
    context: ReadContext,
    start: Offset,
    last: int | None,
    emit: Emit,
    read_function: ReadFunction = read_in_process,
) -> None:
    """Read as :func:`send_changes` does, with notices in their places and with the policies.

    ``read_function`` does the reading itself.
    """
    log, policy = context.log, context.options.policies.on_data_loss
    # An item is shaped, looked at by whoever runs the feed, and piped; then the sender moves to its
    # offset, even if no row was left.
    sender = ItemSender(_build_shaping_emit(context, emit), start)
    while True:
        try:
            await read_function(context, sender, last)
        except DataLoss as loss:
            # Without its table, all files are missing, for now.
            await check_table_exists(log, sender.at.version)
            if policy == "fail":
                raise
            # Or they are missing because the table is another one.
            at = await confirm_table(log, sender.at)
            at = at.resumable_with(context.counted_by)
            notice = await continue_after_loss(log, at, loss, policy, context.lost)
            context.observer.note_loss(notice)
            await sender(notice)
        else:
            return


async def _read_in_order(
    context: ReadContext, sender: ItemSender, last: int | None, *, notices: bool
) -> None:
    await context.learn_columns()
    if sender.at.snapshot:
        await read_snapshot(context, sender.at, sender, notices=notices)
    # A version that does not exist yet is skipped when it is committed.
    skips = context.orders.skips
    if sender.at.version in skips:
        await confirm_table(context.log, sender.at)
    while sender.at.version in skips and sender.at.version <= await context.log.latest_version():
        await sender(await find_skip_notice(context, sender.at))
    snapshots = Resnapshots(context)
    await snapshots.take_turn(sender.at, sender)
    backlog = follow_backlog(
        context.log,
        sender.at,
        last,
        context.options.follow,
        on_newest=context.observer.note_newest,
        on_wait=context.check_idle_state,
    )
    async with aclosing(backlog) as deliveries:
        async for delivered in deliveries:
            # A snapshot's turn comes after each commit.
            one_by_one = ([commit] for commit in delivered)
            for commits in one_by_one if snapshots.waiting else (delivered,):
                await read_commits(context, commits, sender.at, sender, notices=notices)
                for commit in commits:
                    snapshots.note_commit(commit)
                await snapshots.take_turn(sender.at, sender)
