"""One table to one sink: the page to read first.

    store -> log -> plan -> fetch -> decode -> write -> save offset

Two tasks and one stream between them. The reader follows the log, plans each commit's files,
fetches and decodes them, and hands over batches; the publisher writes a batch, then saves the
offset behind it. The stream holds nothing back, so two batches are alive at any time: one being
written and one ready. Decoding runs in worker threads; everything else here only awaits.

After a failure nothing in memory is believed: the feed starts again from its saved offset.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TypeAlias, TypeVar

import anyio
import anyio.to_thread

from tailer.batches import Reading, VersionReader
from tailer.changes import ChangeBatch, ChangeFile, Notice, Offset
from tailer.decode.engine import DiffOptions
from tailer.decode.plan import (
    ChangeSource,
    incomplete_removes,
    plan_changes,
    plan_rewrite,
    possible_readds,
    source_of,
)
from tailer.decode.rows import DecodeOptions
from tailer.delta.commit import Commit
from tailer.delta.snapshot import file_key
from tailer.derive import derive
from tailer.errors import (
    DataLoss,
    FileGone,
    TableError,
    TailerError,
    TransientError,
    first_error,
)
from tailer.follow import FollowOptions, follow
from tailer.log import DeltaLog
from tailer.metrics import FeedMetrics, Observer
from tailer.offsets import OffsetStore
from tailer.pair import pair_updates, paired_batches
from tailer.policy import (
    FeedPaused,
    Policies,
    Requests,
    after_loss,
    is_passed,
    schema_notice,
    skip_notice,
    stop_for_schema,
)
from tailer.publish import Publisher, PublishOptions
from tailer.select import Selection, Selector
from tailer.sink import Sink, wants_row_ids
from tailer.snapshotting import Resnapshot, initial_snapshot
from tailer.store import ChangeSourced

__all__ = [
    "Feed",
    "FeedOptions",
    "Item",
    "RetryOptions",
    "pipe",
    "read_changes",
    "read_items",
    "run_feed",
]

T = TypeVar("T")

#: What goes from the reader to the publisher.
Item: TypeAlias = ChangeBatch | Notice


@dataclass(frozen=True, slots=True)
class RetryOptions:
    """Bounded, jittered back-off after a :class:`TransientError`, in seconds."""

    pause_min_s: float = 0.2
    pause_max_s: float = 30.0


@dataclass(frozen=True, slots=True)
class FeedOptions:
    """How changes are found and decoded, what of them leaves, and what happens when they can't.

    ``key`` names the columns by which derived changes without row ids are paired into updates.
    ``paired`` gives each update as one row with its preimage in ``ChangeBatch.before``; a feed
    whose sink has a true attribute ``paired`` does so by itself, under the sink's ``key_columns``
    where it has none of its own.
    """

    change_source: ChangeSource = "auto"
    key: tuple[str, ...] = ()
    diff: DiffOptions = field(default_factory=DiffOptions)
    decode: DecodeOptions = field(default_factory=DecodeOptions)
    follow: FollowOptions = field(default_factory=FollowOptions)
    retry: RetryOptions = field(default_factory=RetryOptions)
    selection: Selection = field(default_factory=Selection)
    policies: Policies = field(default_factory=Policies)
    publish: PublishOptions = field(default_factory=PublishOptions)
    paired: bool = False

    def for_sink(self, sink: Sink) -> FeedOptions:
        """The same, with row ids and with updates paired where the sink wants that."""
        paired = bool(getattr(sink, "paired", False))
        options = self
        if paired or wants_row_ids(sink):
            options = replace(options, decode=replace(self.decode, row_ids=True))
        if not paired:
            return options
        key = self.key or tuple(getattr(sink, "key_columns", ()))
        return replace(options, paired=True, key=key)

    def plan_id(self) -> str:
        """Names the options by which the changes of a version are counted: 12 hex digits."""
        where = self.selection.where.text if self.selection.where else None
        passing = [self.policies.ignore_deletes, self.policies.skip_change_commits]
        text = json.dumps([self.change_source, self.key, where, *passing])
        return blake2b(text.encode(), digest_size=6).hexdigest()


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
    try:
        offset = await feed.sink.open(feed.name) or await feed.offsets.load()
        if offset is None:
            offset = await feed.start(feed.log)
        if feed.requests.unsaved:
            # Before anything is written once more: a disk that is full would have the same batch
            # written again and again.
            await feed.offsets.save(offset)
            feed.requests.unsaved = False
        feed.metrics.started(offset)
        options = feed.options.for_sink(feed.sink)
        publisher = Publisher(feed.sink, feed.park, feed.offsets, feed.metrics, feed.requests)
        items = publisher.paced(
            read_items(feed.log, offset, feed.last, options, feed.metrics, feed.requests),
            options.publish.rows_per_s_max,
        )
        idle: tuple[float, Callable[[], Item]] = (
            options.publish.heartbeat_s or math.inf,
            publisher.heartbeat,
        )
        await pipe(items, publisher.publish, feed.metrics.read, idle)
    finally:
        with anyio.CancelScope(shield=True):
            await feed.sink.aclose()
            if feed.park is not None:
                await feed.park.aclose()


async def pipe(
    batches: AsyncGenerator[T, None],
    publish: Callable[[T], Awaitable[None]],
    seen: Callable[[T], None] = lambda _: None,
    idle: tuple[float, Callable[[], T]] | None = None,
) -> None:
    """Publish batches while the next one is being read. A batch in hand is finished even when
    this is cancelled; the first error of either side is raised as it is.

    ``idle``: after so many seconds without any, what to publish instead.
    """
    patience = idle[0] if idle else math.inf
    send, receive = anyio.create_memory_object_stream[T](max_buffer_size=0)

    async def read() -> None:
        async with send, aclosing(batches):
            async for batch in batches:
                seen(batch)
                await send.send(batch)

    async def write() -> None:
        async with receive:
            while True:
                item: T | None = None
                with anyio.move_on_after(patience):
                    try:
                        item = await receive.receive()
                    except anyio.EndOfStream:
                        return
                if item is None and idle:
                    item = idle[1]()
                if item is not None:
                    with anyio.CancelScope(shield=True):
                        await publish(item)

    # This task owns both ends, or a failing publisher would show up as a broken stream.
    try:
        async with send, receive, anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            tasks.start_soon(write)
    except BaseExceptionGroup as group:
        raise first_error(group) from None


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
    reading = _reading(log, options, observer or Observer(), Requests())
    async with aclosing(_read(reading, start, last, options, notices=False)) as items:
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
    reading = _reading(log, options, observer, requests)
    while True:
        try:
            async with aclosing(_read(reading, at, last, options, notices=True)) as items:
                async for item in items:
                    yield item
                    at = item.next_offset
        except DataLoss as loss:
            if options.policies.on_data_loss == "fail":
                raise
            at = at.under(reading.plan)
            notice = await after_loss(log, at, loss, options.policies.on_data_loss, requests)
            observer.lost(notice)
            yield notice
            at = notice.next_offset
        else:
            return


def _reading(
    log: DeltaLog, options: FeedOptions, observer: Observer, requests: Requests
) -> Reading:
    if isinstance(log.store, ChangeSourced):
        log.store.serve(options.change_source)
    selector = Selector(options.selection, options.decode.writer_timezone)
    columns = options.selection.columns or options.decode.columns
    decode = replace(options.decode, columns=columns, on_read=observer.read_bytes)
    spill = options.diff.spill_folder
    return Reading(log, decode, selector, requests, observer, options.plan_id(), spill)


async def _read(
    reading: Reading, start: Offset, last: int | None, options: FeedOptions, *, notices: bool
) -> AsyncGenerator[Item, None]:
    if start.snapshot:
        async with aclosing(initial_snapshot(reading, start, notices=notices)) as items:
            async for item in items:
                yield item
                start = item.next_offset
    while start.version in reading.requests.skips:
        notice = skip_notice(start, await _time_of(reading.log, start))
        yield notice
        start = notice.next_offset
    again = [Resnapshot(reading, request) for request in reading.requests.resnapshots]
    async with aclosing(_turns(again, start)) as items:
        async for item in items:
            yield item
    observer = reading.observer
    async with aclosing(follow(reading.log, start, last, options.follow, observer.newest)) as found:
        async for commit in found:
            changes = _commit_items(reading, commit, start, options, notices=notices)
            async with aclosing(changes) as items:
                async for item in items:
                    yield item
                    start = item.next_offset
            for resnapshot in again:
                resnapshot.passed(commit)
            async with aclosing(_turns(again, start)) as items:
                async for item in items:
                    yield item


async def _turns(again: list[Resnapshot], stream: Offset) -> AsyncGenerator[Item, None]:
    """The turn of the first snapshot that was asked for and is not read through."""
    if again and stream.version > 0 and not stream.index:
        async with aclosing(again[0].turn(stream)) as items:
            async for item in items:
                yield item
        if again[0].done:
            again.pop(0)


async def _time_of(log: DeltaLog, at: Offset) -> int | None:
    """The timestamp of a version that is to be skipped, if its commit can be read at all."""
    try:
        before = await log.state_before(at.version)
        return (await log.commit(at.version, before, at.timestamp_floor_ms)).timestamp_ms
    except (TableError, FileNotFoundError):
        return None


async def _commit_items(
    reading: Reading, commit: Commit, start: Offset, options: FeedOptions, *, notices: bool
) -> AsyncGenerator[Item, None]:
    """One commit's notice and batches: plan, fetch, decode."""
    try:
        first = replace(start, table_id=commit.after.table_id).under(reading.plan)
        requests, before = reading.requests, commit.before
        if commit.version in requests.skips:
            yield skip_notice(first, commit.timestamp_ms)
            return
        if notices and before is not None and not first.index:
            states = (reading.selector.state(before), reading.selector.state(commit.after))
            changed = schema_notice(*states, first, commit.timestamp_ms)
            if changed is not None:
                policy = options.policies.on_schema_change
                if commit.version in requests.accepted:
                    policy = "continue"
                if policy != "fail":
                    yield changed
                stop_for_schema(changed, policy)
        reading.observer.planned(commit)
        read = VersionReader(reading, commit, commit.timestamp_ms).batches
        files = await _plan(reading, commit, options)
        found = read(files, first)
        if options.paired:
            planned = (reading, commit, files, options.diff, options.key)
            files, pairing = await pair_updates(*planned)
            found = paired_batches(pairing, files, first, read) if pairing else read(files, first)
        async with aclosing(found) as batches:
            async for batch in batches:
                yield batch
    except FileGone as e:
        if options.paired:
            e.rows = None  # a pair's other image may be elsewhere: its places can't be counted
        raise e.at(table=reading.log.store.root, version=commit.version) from None
    except TableError as e:
        raise e.at(table=reading.log.store.root, version=commit.version) from None


async def _plan(reading: Reading, commit: Commit, options: FeedOptions) -> Iterable[ChangeFile]:
    if is_passed(commit, options.policies):
        return []
    log, wants = reading.log, reading.selector.wants
    derived = source_of(commit, options.change_source) == "derived"
    lacking = incomplete_removes(commit, derived=derived)
    again = possible_readds(commit) if derived else set()
    known = await log.find_files(commit.version - 1, lacking | again)
    if not derived:
        files = (file for file in plan_changes(commit, known) if wants(file))
        if not options.paired:
            return files
        lost = reading.requests.lost
        return (file for file in files if (file.version, file.path) not in lost)
    live = {file_key(add) for where, add in known.items() if where in again}
    rewrite = plan_rewrite(commit, known, live)
    rewrite = replace(
        rewrite,
        leaving=[file for file in rewrite.leaving if wants(file)],
        coming=[file for file in rewrite.coming if wants(file)],
    )
    try:
        found = await derive(
            log.store,
            commit,
            rewrite,
            reading.decode,
            options.diff,
            options.key,
            reading.observer.noops,
        )
    except FileGone as e:
        # Without one of its files the others' rows can't be told apart: the whole version is lost.
        raise DataLoss(e.what, version=commit.version, path=e.path, hint=e.hint) from None
    if options.paired:
        found = [f for f in found if (f.version, f.path) not in reading.requests.lost]
    return found
