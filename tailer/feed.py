"""One table to one sink: the page to read first.

    store -> log -> plan -> fetch -> decode -> write -> save offset

Two tasks and one stream between them. The reader follows the log, plans each commit's files,
fetches and decodes them, and hands over batches; the publisher writes a batch, then saves the
offset behind it. The stream holds nothing back, so two batches are alive at any time: one being
written and one ready. Decoding runs in worker threads; everything else here only awaits.

After a failure nothing in memory is believed: the feed starts again from its saved offset.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import anyio
import anyio.to_thread
import pyarrow as pa

from tailer.changes import ChangeBatch, ChangeFile, Offset, Rows
from tailer.decode.engine import DiffOptions
from tailer.decode.kept import kept_rows
from tailer.decode.plan import (
    ChangeSource,
    incomplete_removes,
    plan_changes,
    plan_rewrite,
    plan_snapshot,
    possible_readds,
    source_of,
)
from tailer.decode.rows import DecodeOptions, Skip, decode_file, output_schema
from tailer.delta.commit import Commit
from tailer.delta.snapshot import Snapshot, file_key
from tailer.derive import derive
from tailer.errors import (
    OffsetError,
    TableError,
    TailerError,
    TransientError,
    first_error,
)
from tailer.fetch import fetch
from tailer.follow import FollowOptions, follow
from tailer.log import DeltaLog
from tailer.metrics import FeedMetrics, Observer
from tailer.offsets import OffsetStore
from tailer.pair import pair_updates, paired_batches
from tailer.sink import Sink

__all__ = ["Feed", "FeedOptions", "RetryOptions", "pipe", "read_changes", "run_feed"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryOptions:
    """Bounded, jittered back-off after a :class:`TransientError`, in seconds."""

    pause_min_s: float = 0.2
    pause_max_s: float = 30.0


@dataclass(frozen=True, slots=True)
class FeedOptions:
    """How changes are found and decoded, and how failures are retried.

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
    paired: bool = False

    def for_sink(self, sink: Sink) -> FeedOptions:
        """The same, with updates paired where the sink wants that."""
        if not getattr(sink, "paired", False):
            return self
        key = self.key or tuple(getattr(sink, "key_columns", ()))
        return replace(self, paired=True, key=key)


@dataclass(slots=True)
class Feed:
    """One table to one sink. ``start`` finds the first offset of a feed that has none saved.

    ``last`` ends the feed after that version; None follows for ever. ``jitter`` gives numbers in
    [0, 1).
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
                feed.metrics.failed(e)
                if feed.metrics.versions_delivered > written:
                    pause = feed.options.retry.pause_min_s
                await anyio.sleep(e.retry_after_s or pause * (0.5 + feed.jitter() / 2))
                pause = min(pause * 2, feed.options.retry.pause_max_s)
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
        feed.metrics.started(offset)

        async def publish(batch: ChangeBatch) -> None:
            await feed.sink.write(batch)
            await feed.offsets.save(batch.next_offset)
            feed.metrics.delivered(batch)

        options = feed.options.for_sink(feed.sink)
        changes = read_changes(feed.log, offset, feed.last, options, feed.metrics)
        await pipe(changes, publish, feed.metrics.read)
    finally:
        with anyio.CancelScope(shield=True):
            await feed.sink.aclose()


async def pipe(
    batches: AsyncGenerator[ChangeBatch, None],
    publish: Callable[[ChangeBatch], Awaitable[None]],
    seen: Callable[[ChangeBatch], None] = lambda _: None,
) -> None:
    """Publish batches while the next one is being read. A batch in hand is finished even when
    this is cancelled; the first error of either side is raised as it is."""
    send, receive = anyio.create_memory_object_stream[ChangeBatch](max_buffer_size=0)

    async def read() -> None:
        async with send, aclosing(batches):
            async for batch in batches:
                seen(batch)
                await send.send(batch)

    async def write() -> None:
        async with receive:
            async for batch in receive:
                with anyio.CancelScope(shield=True):
                    await publish(batch)

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
    observer = observer or Observer()
    if start.snapshot:
        async with aclosing(_snapshot_batches(log, start, options)) as batches:
            async for batch in batches:
                yield batch
                start = batch.next_offset
    async with aclosing(follow(log, start, last, options.follow, observer.newest)) as commits:
        async for commit in commits:
            found = _commit_batches(log, commit, start, options, observer)
            async with aclosing(found) as batches:
                async for batch in batches:
                    yield batch
                    start = batch.next_offset


async def _commit_batches(
    log: DeltaLog, commit: Commit, start: Offset, options: FeedOptions, observer: Observer
) -> AsyncGenerator[ChangeBatch, None]:
    """One commit's batches: plan, fetch, decode."""
    try:
        files = await _plan(log, commit, options, observer)
        first = replace(start, table_id=commit.after.table_id)
        read = partial(_decode_all, _Context(log, options.decode, commit))
        pairing = None
        if options.paired:
            planned = (log.store, commit, files, options.decode, options.diff, options.key)
            files, pairing = await pair_updates(*planned)
        found = paired_batches(pairing, files, first, read) if pairing else read(files, first)
        async with aclosing(found) as batches:
            async for batch in batches:
                yield batch
    except TableError as e:
        raise e.at(table=log.store.root, version=commit.version) from None


async def _plan(
    log: DeltaLog, commit: Commit, options: FeedOptions, observer: Observer
) -> Iterable[ChangeFile]:
    derived = source_of(commit, options.change_source) == "derived"
    lacking = incomplete_removes(commit, derived=derived)
    again = possible_readds(commit) if derived else set()
    known = await log.find_files(commit.version - 1, lacking | again)
    if not derived:
        return plan_changes(commit, known)
    live = {file_key(add) for where, add in known.items() if where in again}
    rewrite = plan_rewrite(commit, known, live)
    return await derive(
        log.store, commit, rewrite, options.decode, options.diff, options.key, observer.noops
    )


async def _snapshot_batches(
    log: DeltaLog, start: Offset, options: FeedOptions
) -> AsyncGenerator[ChangeBatch, None]:
    """The rows of the initial snapshot, file by file in the order of their paths."""
    snapshot = await log.snapshot(start.version)
    timestamp = await log.timestamp(start.version, snapshot, start.timestamp_floor_ms)
    adds = [add async for add in log.live_files(snapshot)]
    adds.sort(key=lambda add: add.path)
    files = (plan_snapshot(add, start.version, timestamp, snapshot.state) for add in adds)
    context = _Context(log, options.decode, snapshot, timestamp)
    first = replace(start, table_id=snapshot.state.table_id)
    async with aclosing(_decode_all(context, files, first)) as batches:
        async for batch in batches:
            yield batch


class _Context:
    """What all batches of one version share."""

    def __init__(
        self,
        log: DeltaLog,
        options: DecodeOptions,
        version: Commit | Snapshot,
        timestamp_ms: int | None = None,
    ) -> None:
        self.log = log
        self.options = options
        self.state = version.after if isinstance(version, Commit) else version.state
        self.timestamp_ms = version.timestamp_ms if isinstance(version, Commit) else timestamp_ms

    def batch(self, file: ChangeFile | None, rows: Rows, at: Offset) -> ChangeBatch:
        timestamp = self.timestamp_ms or 0
        following = replace(at, index=at.index + rows.batch.num_rows)
        state = self.state if file is None else file.state
        if file is not None and file.kept is not None:  # what is written need not be kept too
            file = replace(file, kept=())
        batch, positions = rows.batch, rows.positions
        return ChangeBatch(batch, positions, state, file, timestamp, at, following, rows.row_ids)

    def last(self, batch: ChangeBatch) -> ChangeBatch:
        """The version's last batch: behind it comes the next version."""
        return replace(batch, next_offset=batch.offset.next_version(batch.timestamp_ms))

    def empty(self, at: Offset) -> ChangeBatch:
        schema = output_schema(self.options.target or self.state, self.options.columns)
        rows = pa.RecordBatch.from_pylist([], schema=schema)
        return self.batch(None, Rows(rows, pa.array([], pa.int64())), at)


async def _decode_all(
    context: _Context, files: Iterable[ChangeFile], first: Offset
) -> AsyncGenerator[ChangeBatch, None]:
    """The batches of one version's files, the last one leading to the next version."""
    skip, at = Skip(first.index), first
    held: ChangeBatch | None = None
    async with aclosing(_in_thread(iter(files))) as planned:
        async for file in planned:
            async with aclosing(_decode(context, file, skip)) as decoded:
                async for rows in decoded:
                    if held is not None:
                        yield held
                    held = context.batch(file, rows, at)
                    at = held.next_offset
    if skip.remaining:
        raise OffsetError(
            f"the offset names change {first.index} of a version that has "
            f"{first.index - skip.remaining}",
            version=first.version,
            hint="it was saved under another change source, or set wrongly; set it anew",
        )
    yield context.last(held or context.empty(at))


async def _decode(context: _Context, file: ChangeFile, skip: Skip) -> AsyncGenerator[Rows, None]:
    if file.kept is not None:  # finding the changes has decoded them
        for rows in kept_rows(file, skip):
            yield rows
        return
    fetched = await fetch(context.log.store, file)
    with fetched.source:
        decoded = decode_file(fetched.source, file, fetched.selection, context.options, skip)
        async with aclosing(_in_thread(decoded)) as found:
            async for rows in found:
                yield rows


async def _in_thread(iterator: Iterator[T]) -> AsyncGenerator[T, None]:
    """Iterate in worker threads, one step at a time, so that the event loop stays free."""
    try:
        while (item := await anyio.to_thread.run_sync(next, iterator, None)) is not None:
            yield item
    finally:
        close = getattr(iterator, "close", None)
        if close is not None:
            close()
