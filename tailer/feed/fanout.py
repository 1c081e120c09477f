"""Several sinks behind one reader: the table is read once, and each sink keeps its own offset.

The reader starts at the offset that is furthest behind, and each sink skips what it already has.
The reader runs at the pace of the slowest sink, at most two batches ahead. A sink that is still in
an initial snapshot is served alone; the others wait, and join when it has caught up with them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import anyio.lowlevel

from tailer.changes import ChangeBatch, Notice, Offset
from tailer.errors import first_error
from tailer.feed.publish import Saver, saved_offset
from tailer.feed.reading import Emit, Item
from tailer.offsets import OffsetStore
from tailer.sink import Sink, SinkTraits, announce, delivery_of, reopen, sink_traits, write_pieces

__all__ = ["Branch", "FanOut"]


@dataclass(slots=True)
class Branch:
    """One sink with its offset store, and the offset of the next change that it needs."""

    name: str
    sink: Sink
    offsets: OffsetStore
    at: Offset | None = None
    saver: Saver = field(default_factory=Saver)

    async def save(self, offset: Offset) -> None:
        """Save the sink's offset, and continue from it."""
        await self.saver.save(self.offsets, offset)
        self.at = offset

    def stage(self) -> tuple[int, int]:
        """Return what a branch must have in common with others to be served with them."""
        at = self.at or Offset(0)
        return (0, at.version) if at.snapshot else (1, 0)


class FanOut(OffsetStore):
    """A sink that writes to several sinks, and an offset store that saves to theirs."""

    def __init__(self, branches: list[Branch], start: Callable[[], Awaitable[Offset]]) -> None:
        self.branches = branches
        self._start = start
        self._active: list[Branch] = []
        #: The forms of the records, and the branches that have written any, by their names.
        self._forms: Mapping[str, Any] | None = None
        self._wrote: set[str] = set()
        traits = [sink_traits(branch.sink) for branch in branches]
        #: What any of them requires of the reader; their keys are the same.
        self.traits = SinkTraits(
            paired=any(one.paired for one in traits),
            key_columns=traits[0].key_columns,
            row_ids=any(one.row_ids for one in traits),
            runs=all(one.runs for one in traits),
        )

    # For the feed, which opens the sinks again when a stage is over

    @property
    def waiting(self) -> bool:
        """Return whether sinks wait for the snapshot of those that are served now."""
        return len(self._active) < len(self.branches)

    @property
    def reached(self) -> Offset | None:
        """Return the offset of the sink that is furthest ahead in the table's versions."""
        known = (b.at for b in self.branches if b.at is not None and not b.at.snapshot)
        return max(known, key=lambda at: at.position, default=None)

    def ends_stage(self, item: Item) -> bool:
        """Return whether the waiting sinks join after this item."""
        return self.waiting and not item.next_offset.snapshot

    async def stage(self, read: Callable[[Emit], Awaitable[None]], emit: Emit) -> None:
        """Read up to the item after which others join; all items if none waits."""
        with anyio.CancelScope() as stage:

            async def staged(item: Item) -> None:
                await emit(item)
                if self.ends_stage(item):
                    stage.cancel()
                    await anyio.lowlevel.checkpoint()

            await read(staged)

    # As a sink

    async def look(self, feed: str) -> Offset | None:
        """Return the saved offset that is furthest behind. See :class:`tailer.sink.Looks`."""
        found = [
            await saved_offset(f"{feed}/{branch.name}", branch.sink, branch.offsets)
            for branch in self.branches
        ]
        return min(filter(None, found), key=lambda at: at.position, default=None)

    async def open(self, feed: str) -> Offset:
        """Open all sinks, and return the offset of the one that is furthest behind."""
        first: Offset | None = None

        async def start() -> Offset:
            nonlocal first  # all new sinks start at one offset
            first = first or await self._start()
            return first

        for branch in self.branches:
            name = f"{feed}/{branch.name}"
            kept = await branch.sink.open(name)
            known = (name, branch.sink, branch.offsets, kept)
            delivered = branch.name in self._wrote
            if kept is not None:
                self._wrote.add(branch.name)
            branch.at = await branch.saver.begin(*known, start, delivered=delivered)
        stage = min(branch.stage() for branch in self.branches)
        self._active = [branch for branch in self.branches if branch.stage() == stage]
        active = (branch.at for branch in self._active if branch.at is not None)
        return min(active, key=lambda at: at.position)

    def delivery(
        self, feed: str, kept: Mapping[str, Any] | None, at: Offset | None
    ) -> Mapping[str, Any]:
        """Return the delivery of each sink that reports one, by the sink's name.

        See :class:`tailer.sink.KnowsDelivery`.
        """
        if self._forms is None:  # then it is what was saved for each branch
            self._wrote.update(kept or {})
        before = {name: form for name, form in (kept or {}).items() if name in self._wrote}
        found = {
            branch.name: delivery_of(
                branch.sink, f"{feed}/{branch.name}", before.get(branch.name), at
            )
            for branch in self.branches
        }
        self._forms = {name: delivery for name, delivery in found.items() if delivery}
        return self._forms

    async def write(self, batch: ChangeBatch) -> None:
        """Write to every sink the part of the batch that it lacks, then save its offset."""
        await self._each(lambda branch: self._write(branch, batch))

    async def announce(self, notice: Notice) -> None:
        """Announce the notice to every sink that has not passed it yet."""
        await self._each(lambda branch: self._announce(branch, notice))

    async def reopen(self) -> None:
        """Have all sinks reopen their files."""
        for branch in self.branches:
            await reopen(branch.sink)

    async def aclose(self) -> None:
        """Close all sinks, even if closing one of them fails."""
        async with AsyncExitStack() as stack:
            for branch in self.branches:
                stack.push_async_callback(branch.sink.aclose)

    async def _each(self, work: Callable[[Branch], Awaitable[None]]) -> None:
        """Run the work for all sinks at once. If one fails, the others still finish theirs."""

        async def whole(branch: Branch) -> None:
            with anyio.CancelScope(shield=True):
                await work(branch)

        try:
            async with anyio.create_task_group() as tasks:
                for branch in self._active:
                    tasks.start_soon(whole, branch)
        except BaseExceptionGroup as group:
            raise first_error(group) from None

    async def _write(self, branch: Branch, batch: ChangeBatch) -> None:
        wanted = _rest(batch, branch.at)
        if wanted is None:
            return
        await write_pieces(branch.sink, wanted, branch.save)
        if wanted.num_rows and branch.name not in self._wrote:
            self._wrote.add(branch.name)
            await self._save_orders(branch, await branch.offsets.load_orders(), self._forms or {})
        await branch.save(batch.next_offset)

    async def _announce(self, branch: Branch, notice: Notice) -> None:
        wanted = _told_to(notice, branch.at)
        if wanted is None:
            return
        await announce(branch.sink, wanted)
        if wanted.kind != "heartbeat":
            await branch.save(wanted.next_offset)

    # As an offset store

    @property
    def waiting_for(self) -> str | None:
        """Return who holds one of the offset stores."""
        return next((o for b in self.branches if (o := b.offsets.waiting_for)), None)

    async def check(self) -> None:
        """Check that this process still owns all offset stores."""
        for branch in self._active:
            await branch.offsets.check()

    async def acquire(self) -> None:
        """Acquire all offset stores; if one is held by another process, acquire none."""
        try:
            for branch in self.branches:
                await branch.offsets.acquire()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.release()
            raise

    async def load(self) -> Offset | None:
        """Return None: opening the sinks gives the offset to start from."""
        return None

    async def save(self, offset: Offset) -> None:
        """Do nothing: each sink's offset was saved after its own write."""

    async def clear(self) -> None:
        """Forget all offsets."""
        for branch in self.branches:
            await branch.offsets.clear()

    async def load_orders(self) -> dict[str, Any]:
        """Load the orders. They are the whole feed's: every branch has them, except a new one; the
        form of a branch's records is what its own store says."""
        kept = {branch.name: await branch.offsets.load_orders() for branch in self.branches}
        orders = dict(next(filter(None, kept.values()), {}))
        of_all = {name: own.get("delivery", {}).get(name) for name, own in kept.items()}
        delivery = {name: form for name, form in of_all.items() if form}
        return (
            {**orders, "delivery": delivery}
            if delivery
            else {name: order for name, order in orders.items() if name != "delivery"}
        )

    async def save_orders(self, orders: dict[str, Any]) -> None:
        """Save the orders with every branch, and with those that have written the form of their
        records."""
        for branch in self.branches:
            await self._save_orders(branch, orders, orders.get("delivery", {}))

    async def _save_orders(
        self, branch: Branch, orders: Mapping[str, Any], forms: Mapping[str, Any]
    ) -> None:
        kept = {name: order for name, order in orders.items() if name != "delivery"}
        if branch.name in self._wrote and branch.name in forms:
            kept["delivery"] = {branch.name: forms[branch.name]}
        await branch.offsets.save_orders(kept)

    async def release(self) -> None:
        """Release all offset stores."""
        async with AsyncExitStack() as stack:
            for branch in self.branches:
                stack.push_async_callback(branch.offsets.release)


def _told_to(notice: Notice, at: Offset | None) -> Notice | None:
    """Return the notice for a sink at an offset; None if the sink has passed it.

    What is lost of a version may lie behind the offset of a sink within that version. If nobody
    knows how many changes that are, the sink goes back with the reader.
    """
    if at is None or at.position <= notice.next_offset.position:
        return notice
    if notice.kind != "data_loss" or at.version > notice.details["last_version"]:
        return None
    return notice if notice.details["rows"] is None else replace(notice, next_offset=at)


def _rest(batch: ChangeBatch, at: Offset | None) -> ChangeBatch | None:
    """Return the part of a batch that a sink lacks; None if the sink has all of it."""
    if at is None or at.position <= batch.offset.position:
        return batch
    if at.position >= batch.next_offset.position:
        # Rows of a snapshot within a stream do not move the offset: all sinks there get them.
        again = batch.offset.snapshot and at.position == batch.next_offset.position
        return batch if again else None
    first = batch.rows_before(at)
    if first == batch.num_rows:  # the last row may be followed by preimages, which are not rows
        return replace(batch.slice(0, 0), offset=at, next_offset=batch.next_offset)
    return batch.slice(first, batch.num_rows)
