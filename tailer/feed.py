"""One table to one sink: the page to read first.

    store -> log -> plan -> fetch -> decode -> write -> save offset

Two tasks and one stream between them. The reader follows the log, plans each commit's files,
fetches and decodes them, and hands over batches; the publisher writes a batch, then saves the
offset behind it. The stream holds nothing back, so two batches are alive at any time: one being
written and one ready. Decoding runs in worker threads; everything else here only awaits.

After a failure nothing in memory is believed: the feed starts again from its saved offset.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import anyio

from tailer.batches import Reading
from tailer.changes import ChangeBatch, Offset
from tailer.commits import Item, commit_items, skipped
from tailer.errors import DataLoss, TailerError, TransientError, healing
from tailer.follow import check_there, follow
from tailer.log import DeltaLog
from tailer.metrics import FeedMetrics, Observer
from tailer.offsets import OffsetStore
from tailer.options import FeedOptions
from tailer.pipe import pipe
from tailer.policy import FeedPaused, Requests, after_loss
from tailer.publish import Publisher
from tailer.sink import Sink, delivery_of
from tailer.snapshotting import Resnapshots, initial_snapshot

__all__ = ["Feed", "read_changes", "read_items", "run_feed"]


@dataclass(slots=True)
class Feed:
    """One table to one sink. ``start`` finds the first offset of a feed that has none saved.

    ``last`` ends the feed after that version; None follows for ever. ``jitter`` gives numbers in
    [0, 1). ``park`` takes the rows that the sink refuses, where ``on_reject`` is park.
    """

    name: str
    log: DeltaLog
    sink: Sink
    offsets: OffsetStore
    start: Callable[[DeltaLog], Awaitable[Offset]]
    metrics: FeedMetrics
    jitter: Callable[[], float]
    options: FeedOptions = field(default_factory=FeedOptions)
    last: int | None = None
    requests: Requests = field(default_factory=Requests)
    park: Sink | None = None


async def run_feed(feed: Feed) -> None:
    """Run a feed until its last version, if it has one; until it is cancelled, else.

    Retries after a :class:`TransientError` from the saved offset. Every other error ends the
    feed, its offset unmoved. Cancellation lets the batch in hand be written and saved.
    """
    await feed.offsets.acquire()
    try:
        pause = feed.options.retry.pause_min_s
        while True:
            written = feed.metrics.versions_delivered
            try:
                return await _run_once(feed)
            except TransientError as e:
                if e.family != "rejoin":
                    feed.metrics.retried(e)
                if feed.metrics.versions_delivered > written:
                    pause = feed.options.retry.pause_min_s
                await anyio.sleep(e.retry_after_s or pause * (0.5 + feed.jitter() / 2))
                pause = min(pause * 2, feed.options.retry.pause_max_s)
            except FeedPaused:
                raise
            except TailerError as e:
                feed.metrics.failed(e)
                raise
    finally:
        with anyio.CancelScope(shield=True):
            await feed.offsets.release()


async def _run_once(feed: Feed) -> None:
    """One attempt. What the operating system refuses for now is raised as a TransientError, also
    where a library met it and nobody could name the file."""
    with healing(f"{feed.log.store.root}: the feed can't go on"):
        await _attempt(feed)


async def _attempt(feed: Feed) -> None:
    try:
        delivery = await _delivery(feed)
        offset = await feed.sink.open(feed.name) or await feed.offsets.load()
        if offset is None:
            # Found once: "latest" is another version after a failure or a restart, and what was
            # committed meanwhile would be passed over.
            offset, feed.requests.unsaved = await feed.start(feed.log), True
        if feed.requests.unsaved:
            # Before anything is written, or written once more: a disk that is full would have the
            # same batch written again and again.
            await feed.offsets.save(offset)
            feed.requests.unsaved = False
        feed.metrics.started(offset)
        options = feed.options.for_sink(feed.sink)
        how = (feed.sink, feed.park, feed.offsets, feed.metrics, feed.requests)
        publisher = Publisher(*how, delivery)
        if feed.requests.delivery and delivery != feed.requests.delivery:
            await publisher.keep_delivery()  # the options accept it, this once
        items = publisher.paced(
            read_items(feed.log, offset, feed.last, options, feed.metrics, feed.requests),
            options.publish.rows_per_s_max,
        )
        idle: tuple[float, Callable[[], Item]] = (
            options.publish.heartbeat_s or math.inf,
            publisher.heartbeat,
        )
        await pipe(items, publisher.publish, publisher.seen, idle)
    finally:
        with anyio.CancelScope(shield=True):
            try:
                await feed.sink.aclose()
            finally:
                if feed.park is not None:
                    await feed.park.aclose()


async def _delivery(feed: Feed) -> Mapping[str, Any]:
    """What the sink's records are like. Raises :class:`ConfigError` if they were of another kind
    before, unless that is accepted."""
    kept = feed.requests.delivery
    return delivery_of(feed.sink, feed.name, kept, await feed.offsets.load() if kept else None)


async def read_changes(
    log: DeltaLog,
    start: Offset,
    last: int | None,
    options: FeedOptions,
    observer: Observer | None = None,
) -> AsyncGenerator[ChangeBatch, None]:
    """The change batches from an offset on, in order, up to version ``last`` or without end.

    A version without changes gives one empty batch, which carries the offset on.
    """
    reading = Reading.of(log, options, observer or Observer(), Requests())
    async with aclosing(_read(reading, start, last, notices=False)) as items:
        async for item in items:
            if isinstance(item, ChangeBatch):
                yield item


async def read_items(
    log: DeltaLog,
    start: Offset,
    last: int | None,
    options: FeedOptions,
    observer: Observer,
    requests: Requests,
) -> AsyncGenerator[Item, None]:
    """As :func:`read_changes`, with the notices in their places, and with the policies."""
    at = start
    reading = Reading.of(log, options, observer, requests)
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
            at = at.under(reading.plan, reading.former)
            notice = await after_loss(log, at, loss, options.policies.on_data_loss, requests)
            observer.lost(notice)
            yield notice
            at = notice.next_offset
        else:
            return


async def _read(
    reading: Reading, start: Offset, last: int | None, *, notices: bool
) -> AsyncGenerator[Item, None]:
    """The way of the data up to the sink: store -> log -> plan -> fetch -> decode."""
    at = start
    if at.snapshot:
        async with aclosing(initial_snapshot(reading, at, notices=notices)) as items:
            async for item in items:
                yield item
                at = item.next_offset
    # What is not there yet is skipped when it comes.
    skips = reading.requests.skips
    while at.version in skips and at.version <= await reading.log.latest_version():
        notice = await skipped(reading, at)
        yield notice
        at = notice.next_offset
    snapshots = Resnapshots(reading)
    async with aclosing(snapshots.turn(at)) as items:
        async for item in items:
            yield item
    following = (reading.options.follow, reading.observer.newest)
    async with aclosing(follow(reading.log, at, last, *following)) as commits:
        async for commit in commits:
            async with aclosing(commit_items(reading, commit, at, notices=notices)) as items:
                async for item in items:
                    yield item
                    at = item.next_offset
            snapshots.passed(commit)
            async with aclosing(snapshots.turn(at)) as items:
                async for item in items:
                    yield item
