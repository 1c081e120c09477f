"""A feed's life: start at the saved offset, read and publish, try again, end.

After a failure nothing in memory is used again: the feed starts from its saved offset.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
from msgspec import structs

from tailer.changes import ChangeBatch, Offset
from tailer.errors import (
    SinkRejected,
    TableError,
    TailerError,
    TransientError,
    first_error,
    healing,
)
from tailer.feed.copy_repairs import CopyRepairs, RepairCopy
from tailer.feed.fitting import Fitting
from tailer.feed.options import FeedOptions
from tailer.feed.orders import Orders
from tailer.feed.parked_file import ParkedFile
from tailer.feed.parking import Parked, Parking
from tailer.feed.pipe import pipe_items
from tailer.feed.policy import FeedPaused, LostFiles
from tailer.feed.progress import FeedProgress
from tailer.feed.publish import Publisher, Saver
from tailer.feed.read import ReadOn, read_in_process, send_items
from tailer.feed.read_context import Emit, FeedItem, ReadContext
from tailer.feed.sink_calls import SinkCalls
from tailer.log.table import TableLog
from tailer.network.backoff import Backoff
from tailer.offsets import OffsetStore
from tailer.plan.live_files import LiveFiles
from tailer.sink import Sink


@dataclass(slots=True)
class Feed:
    """One table to one sink. ``start`` finds the first offset of a feed without a saved one.

    ``last`` ends the feed after that version; None follows forever. ``jitter`` gives numbers in [0,
    1). ``park`` takes the rows that the sink refuses, where ``on_reject`` is park; ``parked`` is
    its file, if that has a limit. ``repair`` carries out the resnapshots of a copy. ``lost``,
    ``live``, ``saver`` and ``apart`` are what a retry needs from the attempts before it: with
    ``apart``, a span was refused, and its versions are written one by one, so that those before the
    one at fault are delivered. ``read`` does the reading: in this process, or with a cluster's
    help. ``on_retry`` is called with each temporary error, and ``on_park`` with the rows of a batch
    that were parked.

    Whoever runs a feed may put something around a field first: a daemon its ``offsets``
    (:class:`tailer.offsets.held.HeldOffsets`), so that ``acquire`` and ``release`` here do nothing
    while a feed restarts; a run that ends, ``read`` and ``start`` (:mod:`tailer.daemon.once`).
    """

    name: str
    log: TableLog
    sink: Sink
    offsets: OffsetStore
    start: Callable[[TableLog], Awaitable[Offset]]
    progress: FeedProgress
    jitter: Callable[[], float]
    options: FeedOptions = field(default_factory=FeedOptions)
    last: int | None = None
    orders: Orders = field(default_factory=Orders)
    park: Sink | None = None
    parked: ParkedFile | None = None
    repair: RepairCopy | None = None
    lost: LostFiles = field(default_factory=LostFiles)
    live: LiveFiles = field(default_factory=LiveFiles)
    saver: Saver = field(default_factory=Saver)
    apart: bool = False
    read: ReadOn = read_in_process
    on_retry: Callable[[TailerError], None] = lambda _: None
    on_park: Callable[[Parked], None] = lambda _: None

    async def pause_before_retry(self, error: TransientError, backoff: Backoff) -> None:
        """Record a temporary error, and wait until the next attempt is due."""
        self.progress.note_retry(error)
        self.on_retry(error)
        await anyio.sleep(backoff.next_s(error.retry_after_s))


async def run_feed(feed: Feed) -> None:
    """Run a feed until its last version, or, if it has none, until it is cancelled.

    Retries after a :class:`TransientError` from the saved offset. Every other error ends the
    feed, with its offset unchanged. On cancellation, the current batch is still written and saved.
    """
    await feed.offsets.acquire()
    feed.apart = False
    try:
        backoff = feed.options.retry.make_backoff(feed.jitter)
        while True:
            written = feed.progress.versions_delivered
            try:
                if await _run_once(feed):
                    return
                backoff.reset()
            except TransientError as e:
                if feed.progress.versions_delivered > written:
                    backoff.reset()
                await feed.pause_before_retry(e, backoff)
            except FeedPaused:
                raise
            except TailerError as e:
                feed.progress.note_failure(e)
                raise
    finally:
        with anyio.CancelScope(shield=True):
            await feed.offsets.release()


async def _run_once(feed: Feed) -> bool:
    """Run one attempt. Return False if another one follows, which writes the versions of a span one
    by one.

    An error of the operating system that may pass is raised as a TransientError, even if a library
    met it and the file's name is unknown.
    """
    with healing(f"{feed.log.store.root}: the feed can't continue"):
        return await _run_attempt(feed)


async def _run_attempt(feed: Feed) -> bool:
    sinks = [feed.sink, *([feed.park] if feed.park else ())]
    fitting = Fitting(feed.log.store.root, sinks)
    calls = SinkCalls(feed.sink, _make_parking(feed), feed.progress, feed.on_retry)
    try:
        if await feed.offsets.load() is None:
            await _check_new_feed(feed, fitting)
        delivery = await _check_delivery(feed)
        kept = await calls.open(feed.name)
        delivered = bool(feed.orders.delivery)
        delivery = await _check_delivery(feed)  # now the sink may know more of its target
        offset = await feed.saver.choose_start(
            feed=feed.name,
            sink=feed.sink,
            offsets=feed.offsets,
            kept=kept,
            start=lambda: feed.start(feed.log),
            delivered=delivered,
        )
        feed.progress.note_start(offset)
        options = feed.options.for_sink(feed.sink)
        options = structs.replace(options, spans=options.spans and not feed.apart)
        publisher = _make_publisher(feed, calls, delivery)
        feed.lost.forget_unconfirmed()
        if (delivered or kept is not None) and delivery != feed.orders.delivery:
            # The options accept it, this once; or a process ended between a write and this.
            await publisher.save_delivery()
        repairs = _make_repairs(feed, publisher)
        context = ReadContext.from_options(
            feed.log, options, feed.progress, repairs.select_orders(), feed.lost, feed.live
        )
        context = structs.replace(context, fits=fitting.check_schema)
        items = partial(send_items, context, offset, feed.last, read=feed.read)

        async def read_all(emit: Emit) -> None:
            async def emit_prepared(item: FeedItem) -> None:
                await emit(publisher.prepare_item(item))

            await items(emit_prepared)

        async def publish(item: FeedItem) -> None:
            if isinstance(item, ChangeBatch):
                fitting.check_batch(item)
            await repairs.publish(item)

        idle: tuple[float, Callable[[], FeedItem]] = (
            options.heartbeat_s or math.inf,
            publisher.make_heartbeat,
        )
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(repairs.run)
                await pipe_items(read_all, publish, idle)
        except BaseExceptionGroup as group:
            refused = isinstance(error := first_error(group), SinkRejected | TableError)
            if not (refused and publisher.refused_span):
                raise error from None
            feed.apart = True
            return False
        return True
    finally:
        with anyio.CancelScope(shield=True):
            try:
                await calls.aclose()
            finally:
                if feed.park is not None:
                    await feed.park.aclose()


def _make_publisher(feed: Feed, calls: SinkCalls, delivery: Mapping[str, Any]) -> Publisher:
    return Publisher(
        calls=calls,
        offsets=feed.offsets,
        progress=feed.progress,
        orders=feed.orders,
        saver=feed.saver,
        delivery=delivery,
        lost=feed.lost,
    )


def _make_repairs(feed: Feed, publisher: Publisher) -> CopyRepairs:
    backoff, parks = feed.options.retry.make_backoff(feed.jitter), feed.park is not None
    return CopyRepairs(publisher, feed.repair, backoff, feed.on_retry, parks=parks)


async def _check_new_feed(feed: Feed, fitting: Fitting) -> None:
    """Check the table's columns before the sink makes anything for a feed that is new."""
    context = ReadContext.from_options(feed.log, feed.options)
    try:
        newest = await feed.log.load_snapshot()
        context.columns.learn_state(newest.version, newest.state)
        schema = context.shaper.shape_schema(newest.state)
    except TableError:
        return  # where the feed begins, this is an error or not
    fitting.check_schema(schema, newest.version)


def _make_parking(feed: Feed) -> Parking | None:
    """Return what writes the batches of a feed that parks rows."""
    if feed.park is None:
        return None
    return Parking(feed.sink, feed.park, feed.progress, feed.on_park, feed.parked)


async def _check_delivery(feed: Feed) -> Mapping[str, Any]:
    """Return the form of the sink's records. Raises :class:`ConfigError` if it has changed,
    unless the change is accepted."""
    kept = feed.orders.delivery
    at = await feed.offsets.load() if kept else None
    return feed.sink.delivery(feed.name, kept or None, at)
