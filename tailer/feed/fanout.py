"""Several sinks behind one reader: the table is read once, and each sink keeps its own offset.

The reader starts at the offset that is furthest behind, and each sink passes over what it has
already. It goes at the pace of the slowest sink, two batches ahead at most. A sink that is still in
an initial snapshot is served alone; the others wait and join in when it has caught up with them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import pyarrow.compute as pc

from tailer.changes import ChangeBatch, Notice, Offset
from tailer.errors import first_error
from tailer.feed.commit import Item
from tailer.feed.publish import Saver
from tailer.offsets import OffsetStore
from tailer.sink import Sink, SinkTraits, announce, delivery_of, reopen, sink_traits

__all__ = ["Branch", "FanOut"]


@dataclass(slots=True)
class Branch:
    """One sink with its offset store, and the next change it has to get."""

    name: str
    sink: Sink
    offsets: OffsetStore
    at: Offset | None = None
    saver: Saver = field(default_factory=Saver)

    async def save(self, offset: Offset) -> None:
        """Save its offset, and go on from it."""
        await self.saver.save(self.offsets, offset)
        self.at = offset

    def stage(self) -> tuple[int, int]:
        """What a branch must share with others to be served with them."""
        at = self.at or Offset(0)
        return (0, at.version) if at.snapshot else (1, 0)


class FanOut(OffsetStore):
    """A sink made of sinks, and the offset store made of theirs."""

    def __init__(self, branches: list[Branch], start: Callable[[], Awaitable[Offset]]) -> None:
        self.branches = branches
        self._start = start
        self._active: list[Branch] = []
        traits = [sink_traits(branch.sink) for branch in branches]
        #: What any of them asks of the reader; in their key they do not differ.
        self.traits = SinkTraits(
            paired=any(one.paired for one in traits),
            key_columns=traits[0].key_columns,
            row_ids=any(one.row_ids for one in traits),
        )

    # For the feed, which opens the sinks again when a stage is over

    @property
    def waiting(self) -> bool:
        """Whether sinks wait until those that are served have their snapshot."""
        return len(self._active) < len(self.branches)

    def ends_stage(self, item: Item) -> bool:
        """Whether those that wait join in behind this item."""
        return self.waiting and not item.next_offset.snapshot

    async def stage(self, items: AsyncGenerator[Item, None]) -> AsyncGenerator[Item, None]:
        """The items up to the one behind which others join in; all, if none waits."""
        async with aclosing(items) as found:
            async for item in found:
                yield item
                if self.ends_stage(item):
                    return

    # As a sink

    async def open(self, feed: str) -> Offset:
        """Open all sinks; the offset of the one that is furthest behind."""
        first: Offset | None = None

        async def start() -> Offset:
            nonlocal first  # one place for all that are new
            first = first or await self._start()
            return first

        for branch in self.branches:
            kept = await branch.sink.open(f"{feed}/{branch.name}")
            branch.at = await branch.saver.begin(branch.offsets, kept, start)
        stage = min(branch.stage() for branch in self.branches)
        self._active = [branch for branch in self.branches if branch.stage() == stage]
        active = (branch.at for branch in self._active if branch.at is not None)
        return min(active, key=lambda at: at.position)

    def delivery(
        self, feed: str, kept: Mapping[str, Any] | None, at: Offset | None
    ) -> Mapping[str, Any]:
        """See :class:`tailer.sink.KnowsDelivery`: that of each sink that tells, by its name."""
        before = kept or {}
        found = {
            branch.name: delivery_of(
                branch.sink, f"{feed}/{branch.name}", before.get(branch.name), at
            )
            for branch in self.branches
        }
        return {name: delivery for name, delivery in found.items() if delivery}

    async def write(self, batch: ChangeBatch) -> None:
        """Write to every sink what of the batch it does not have; save its offset behind it."""
        await self._each(lambda branch: self._write(branch, batch))

    async def announce(self, notice: Notice) -> None:
        """Tell every sink that has not gone past it."""
        await self._each(lambda branch: self._announce(branch, notice))

    async def reopen(self) -> None:
        """Have all sinks reopen their files."""
        for branch in self.branches:
            await reopen(branch.sink)

    async def aclose(self) -> None:
        """Close all sinks, whatever one of them says to it."""
        async with AsyncExitStack() as stack:
            for branch in self.branches:
                stack.push_async_callback(branch.sink.aclose)

    async def _each(self, work: Callable[[Branch], Awaitable[None]]) -> None:
        """All sinks at once. One that fails does not break off what the others have begun."""

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
        await branch.sink.write(wanted)
        await branch.save(batch.next_offset)

    async def _announce(self, branch: Branch, notice: Notice) -> None:
        if branch.at is not None and notice.next_offset.position < branch.at.position:
            return
        await announce(branch.sink, notice)
        if notice.kind != "heartbeat":
            await branch.save(notice.next_offset)

    # As an offset store

    @property
    def waiting_for(self) -> str | None:
        """Who holds one of them."""
        return next((o for b in self.branches if (o := b.offsets.waiting_for)), None)

    async def check(self) -> None:
        """Make sure that all are still this process's own."""
        for branch in self._active:
            await branch.offsets.check()

    async def acquire(self) -> None:
        """Become the owner of all; or, if one is held, of none."""
        try:
            for branch in self.branches:
                await branch.offsets.acquire()
        except BaseException:
            await self.release()
            raise

    async def load(self) -> Offset | None:
        """Opening the sinks says where to go on."""
        return None

    async def save(self, offset: Offset) -> None:
        """Each sink's offset was saved behind its own write."""

    async def clear(self) -> None:
        """Forget all offsets."""
        for branch in self.branches:
            await branch.offsets.clear()

    async def load_orders(self) -> dict[str, Any]:
        """Orders are the whole feed's: each branch has them, but for one that is new."""
        kept = [await branch.offsets.load_orders() for branch in self.branches]
        return next(filter(None, kept), {})

    async def save_orders(self, orders: dict[str, Any]) -> None:
        """Keep them with every branch."""
        for branch in self.branches:
            await branch.offsets.save_orders(orders)

    async def release(self) -> None:
        """Give up all."""
        async with AsyncExitStack() as stack:
            for branch in self.branches:
                stack.push_async_callback(branch.offsets.release)


def _rest(batch: ChangeBatch, at: Offset | None) -> ChangeBatch | None:
    """What of a batch a sink does not have yet; None if it has it all."""
    if at is None or at.position <= batch.offset.position:
        return batch
    if at.position >= batch.next_offset.position:
        # Rows of a snapshot in mid-stream do not move the offset, and are for everyone at it.
        again = batch.offset.snapshot and at.position == batch.next_offset.position
        return batch if again else None
    first = pc.sum(pc.less(batch.row_indices(), at.index)).as_py() or 0
    if first == batch.num_rows:  # behind its last row there may be preimages, which are no rows
        return replace(batch.slice(0, 0), offset=at, next_offset=batch.next_offset)
    return batch.slice(first, batch.num_rows)
