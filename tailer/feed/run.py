"""A feed's life: start at the saved offset, read and publish, try again, end.

After a failure nothing in memory is used again: the feed starts from its saved offset.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
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
from tailer.feed.read import ReadFunction, read_in_process, send_items
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
    ``live``, ``saver`` and ``file_by_file`` are what a retry needs from the attempts before it:
    with ``file_by_file``, a span was refused, and its versions are written one by one, so that
    those before the one at fault are delivered. ``read_function`` does the reading: in this
    process, or with a cluster's help. ``on_retry`` is called with each temporary error, and
    ``on_park`` with the rows of a batch that were parked.

    Whoever runs a feed may put something around a field first: a daemon its ``offsets``
    (:class:`tailer.offsets.held.HeldOffsets`), so that ``acquire`` and ``release`` here do nothing
    while a feed restarts; a run that ends, ``read_function`` and ``start``
    (:mod:`tailer.daemon.once`).
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
    file_by_file: bool = False
    read_function: ReadFunction = read_in_process
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
    feed.file_by_file = False
    try:
        backoff = feed.options.retry.make_backoff(feed.jitter)
        while True:
            written = feed.progress.versions_delivered
            try:
                if await _run_attempt(feed):
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


async def _run_attempt(feed: Feed) -> bool:
    """Run one attempt. Return False if another one follows, which writes the versions of a span one
    by one.

    An error of the operating system that may pass is raised as a TransientError, even if a library
    met it and the file's name is unknown.
    """
    with healing(f"{feed.log.store.root}: the feed can't continue"):
        sinks = [feed.sink, *([feed.park] if feed.park else ())]
        fitting = Fitting(feed.log.store.root, sinks)
        calls = SinkCalls(feed.sink, _make_parking(feed), feed.progress, feed.on_retry)
        try:
            return await _deliver_items(await _prepare_attempt(feed, calls, fitting))
        finally:
            await _close_sinks(feed, calls)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """What one attempt reads and writes with. ``offset`` is where it begins."""

    feed: Feed
    context: ReadContext
    offset: Offset
    publisher: Publisher
    repairs: CopyRepairs
    fitting: Fitting


async def _prepare_attempt(feed: Feed, calls: SinkCalls, fitting: Fitting) -> _Attempt:
    """Check what can be checked, open the sink, and find out where to begin."""
    saved = await feed.offsets.load()
    if saved is None:
        await _check_new_feed(feed, fitting)
    _find_record_form(feed, saved)  # may refuse it, before the sink does anything
    sink_offset = await calls.open(feed.name)
    has_written = bool(feed.orders.record_form)
    form = _find_record_form(feed, saved)  # now the sink may know more of its target
    offset = await feed.saver.choose_start(
        feed=feed.name,
        sink=feed.sink,
        offsets=feed.offsets,
        saved=saved,
        sink_offset=sink_offset,
        start=lambda: feed.start(feed.log),
        has_written=has_written,
    )
    feed.progress.note_start(offset)
    publisher = _make_publisher(feed, calls, form)
    feed.lost.forget_unconfirmed()
    if (has_written or sink_offset is not None) and form != feed.orders.record_form:
        # The sink's options accept another form this once; or a process ended after a write, and
        # before it saved the form.
        await publisher.save_record_form()
    repairs = _make_repairs(feed, publisher)
    options = feed.options.for_sink(feed.sink)
    context = ReadContext.from_options(
        feed.log,
        structs.replace(options, spans=options.spans and not feed.file_by_file),
        feed.progress,
        repairs.select_orders(),
        feed.lost,
        feed.live,
        check_for_sinks=fitting.check_schema,
    )
    return _Attempt(feed, context, offset, publisher, repairs, fitting)


async def _deliver_items(attempt: _Attempt) -> bool:
    """Read and publish to the end. Return False if a span was refused, whose versions are to be
    written one by one."""
    feed, context, publisher = attempt.feed, attempt.context, attempt.publisher

    async def read(emit: Emit) -> None:
        async def emit_prepared(item: FeedItem) -> None:
            await emit(publisher.prepare_item(item))

        await send_items(context, attempt.offset, feed.last, emit_prepared, feed.read_function)

    async def publish(item: FeedItem) -> None:
        if isinstance(item, ChangeBatch):
            attempt.fitting.check_batch(item)
        await attempt.repairs.publish(item)

    heartbeat_s = context.options.heartbeat_s or math.inf
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(attempt.repairs.run)
            await pipe_items(read, publish, (heartbeat_s, publisher.make_heartbeat))
    except BaseExceptionGroup as group:
        refused = isinstance(error := first_error(group), SinkRejected | TableError)
        if not (refused and publisher.refused_span):
            raise error from None
        feed.file_by_file = True
        return False
    return True


async def _close_sinks(feed: Feed, calls: SinkCalls) -> None:
    with anyio.CancelScope(shield=True):
        try:
            await calls.aclose()
        finally:
            if feed.park is not None:
                await feed.park.aclose()


def _make_publisher(feed: Feed, calls: SinkCalls, record_form: Mapping[str, Any]) -> Publisher:
    return Publisher(
        calls=calls,
        offsets=feed.offsets,
        progress=feed.progress,
        orders=feed.orders,
        saver=feed.saver,
        record_form=record_form,
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


def _find_record_form(feed: Feed, at: Offset | None) -> Mapping[str, Any]:
    """Return the form of the sink's records, from the saved offset on. Raises :class:`ConfigError`
    if it has changed, unless the change is accepted."""
    form = feed.orders.record_form
    return feed.sink.check_record_form(feed.name, form or None, at if form else None)
