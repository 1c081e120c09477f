"""The writing side of a feed: the sink, then the offset; pace, heartbeats and refused rows."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from msgspec import structs

from tailer.changes import ChangeBatch, Notice, Offset
from tailer.errors import SinkRejected, TableError, TailerError
from tailer.feed.orders import Orders
from tailer.feed.policy import LostFiles
from tailer.feed.progress import FeedProgress
from tailer.feed.read_context import FeedItem
from tailer.feed.sink_calls import SinkCalls
from tailer.offsets import OffsetStore
from tailer.sink import Sink


class Saver:
    """Saves a feed's offsets. It outlives a retry: after a failed save, the next attempt saves
    before it writes. Otherwise a full disk would have one batch written again and again."""

    def __init__(self) -> None:
        self._unsaved = False

    async def choose_start(
        self,
        feed: str,
        sink: Sink,
        offsets: OffsetStore,
        saved: Offset | None,
        sink_offset: Offset | None,
        start: Callable[[], Awaitable[Offset]],
        *,
        has_written: bool = False,
    ) -> Offset:
        """Return the offset to start from: ``sink_offset``, which the sink keeps, ``saved``, or the
        feed's ``start``.

        ``has_written``: the feed has written to this sink before. Raises :class:`SinkRejected` for
        a target that lacks what it has written.
        """
        offset = sink_offset or saved
        if offset is not None and sink.lacks_beginning:
            await sink.set_offset(feed, None)  # or the next start would find it begun
            raise _make_target_lost(offset)
        check_target(sink, sink_offset, offset, has_written=has_written)
        if offset is None:
            # Resolved once: after a failure or a restart, "latest" is another version, and commits
            # made meanwhile would be skipped.
            offset, self._unsaved = await start(), True
        if self._unsaved or offset != saved:
            # A process that was killed after the sink's commit saved nothing. Whatever reads the
            # saved offset without the sink would then see an old one until the next write.
            await self.save(offsets, offset)
        return offset

    async def save(self, offsets: OffsetStore, offset: Offset) -> None:
        """Save an offset. Errors as of :meth:`tailer.offsets.OffsetStore.save`."""
        self._unsaved = True
        await offsets.save(offset)
        self._unsaved = False


def check_target(
    sink: Sink, sink_offset: Offset | None, offset: Offset | None, *, has_written: bool
) -> None:
    """Raise :class:`SinkRejected` if a sink that keeps the offset with the data has none, though
    the feed ``has_written`` to it: its target was removed, emptied or replaced by another one, or
    the options name another one. ``offset`` is where the feed would continue."""
    if has_written and sink_offset is None and offset is not None and sink.traits.keeps_offset:
        raise _make_target_lost(offset)


def _make_target_lost(offset: Offset) -> SinkRejected:
    """Return the error of a target that has nothing of what the feed has written to it."""
    return SinkRejected(
        "what the feed has written is not there: the sink's target is empty, and the feed is at "
        f"version {offset.version}, index {offset.index}; restore the target, or configure the old "
        "one, or start over with `tailer offsets reset`"
    )


async def find_saved_offset(feed: str, sink: Sink, offsets: OffsetStore) -> Offset | None:
    """Return the offset that the feed would start from, as far as it is visible without acquiring
    or opening anything; None if there is none yet.

    A sink that is away does not hide what is saved, which may be an earlier offset.
    """
    sink_offset = None
    with suppress(TailerError, OSError, NotImplementedError):
        sink_offset = await sink.look(feed)
    return sink_offset or await offsets.load()


class Publisher:
    """Writes what was read, then saves its offset. Calls never overlap, except that
    :meth:`prepare_item` may run while the item before it is published.

    ``record_form`` is what the sink says of its records
    (:meth:`tailer.sink.Sink.check_record_form`).
    ``lost`` learns which losses are announced.
    """

    def __init__(
        self,
        calls: SinkCalls,
        offsets: OffsetStore,
        progress: FeedProgress,
        orders: Orders,
        saver: Saver,
        record_form: Mapping[str, Any] | None = None,
        lost: LostFiles | None = None,
    ) -> None:
        self.calls = calls
        self.offsets = offsets
        self.progress = progress
        self.orders = orders
        self.saver = saver
        self.record_form = record_form or {}
        self.lost = lost or LostFiles()
        #: Whether a batch of several files was refused: some of its versions may not be.
        self.refused_span = False

    def prepare_item(self, item: FeedItem) -> FeedItem:
        """Note what was read, and return it. A sink that supports it starts on it while it writes
        another batch."""
        self.progress.note_read_item(item)
        if isinstance(item, Notice) or item.refused is not None:
            return item
        prepared = self.calls.sink.prepare(item)
        return item if prepared is None else structs.replace(item, prepared=prepared)

    async def publish(self, item: FeedItem) -> None:
        """Write a batch or a notice, then save its offset."""
        await self.offsets.check()
        started = time.perf_counter()
        if isinstance(item, Notice):
            await self.calls.announce(item)
            if item.kind != "heartbeat":
                await self.saver.save(self.offsets, item.next_offset)
            self.lost.confirm_notice(item)
            self.progress.note_saved_notice(item)
            if self.orders.complete_order(item):
                await self.offsets.save_orders(self.orders.to_saved_json())
            return
        try:
            written = await self._write_batch(item)
        except (SinkRejected, TableError):
            self.refused_span = bool(item.span)
            raise
        self.progress.note_write_time(time.perf_counter() - started)
        self.progress.targets = self.calls.sink.targets
        await self._save_offset(written, item.next_offset)
        self.progress.note_saved_batch(written)

    async def _write_batch(self, batch: ChangeBatch) -> ChangeBatch:
        """Write a batch; return its last part, after which no offset was saved."""
        left = batch

        async def save(offset: Offset) -> None:
            nonlocal left
            rows = left.rows_before(offset)
            await self._save_offset(left, offset)
            self.progress.note_saved_batch(left.slice(0, rows), whole=False)
            left = left.slice(rows, left.num_rows)

        await self.calls.write(batch, save)
        return left

    async def _save_offset(self, written: ChangeBatch, offset: Offset) -> None:
        is_new_form = self.record_form != self.orders.record_form
        if is_new_form and written.num_rows and not self.calls.all_parked:
            # Only once records are written: until then, the options may still change.
            await self.save_record_form()
        await self.saver.save(self.offsets, offset)

    async def save_record_form(self) -> None:
        """Save the form of the sink's records with the offset."""
        self.orders.record_form = self.record_form
        await self.offsets.save_orders(self.orders.to_saved_json())

    def make_heartbeat(self) -> Notice:
        """Return a sign of life; the only notice that carries the time of day."""
        at = self.progress.offset or Offset(0)
        details = {"offset": at.to_json(), "lag_versions": self.progress.lag_versions()}
        now_ms = int(self.progress.clock() * 1000)
        return Notice("heartbeat", at.version, now_ms, at, at, details)
