"""A resnapshot of a copy: what differs is set right, and the stream delivers no row for it.

The copy is compared with the table, at the version that it has, as `tailer verify --repair` does.
So rows that the table no longer has are removed, and rows that are right are not written again.
Beside a database server the stream continues meanwhile; any other copy has one writer at a time or
can't be read while it is written, so its feed waits between two versions.

A repair that ends early leaves its order, and the next one sets right what is left.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

import anyio
from msgspec import structs

from tailer.changes import Notice
from tailer.errors import SinkRejected, TailerError, TransientError
from tailer.feed.orders import Orders, ResnapshotRequest
from tailer.feed.progress import Observer
from tailer.feed.publish import Publisher
from tailer.feed.read_context import FeedItem
from tailer.network.backoff import Backoff
from tailer.shape.expressions import Condition

#: How often a copy in the middle of a version is looked at.
_LOOK_S = 0.2


@dataclass(slots=True)
class RepairCounts:
    """What was written: rows, keys that were removed without another row, transactions. ``refused``
    counts the rows that the target does not take, and ``reason`` says why the first one."""

    rows: int = 0
    removed: int = 0
    transactions: int = 0
    refused: int = 0
    reason: str = ""


#: Sets a copy right, within a condition if there is one.
RepairCopy = Callable[[Condition | None, Observer], Awaitable[RepairCounts]]


class CopyRepairs:
    """The resnapshots of a feed that keeps a copy, one after the other, and the feed's own writes.

    ``parks``: rows that the target does not take are parked, and end no repair. ``report`` is
    called with each temporary error.
    """

    def __init__(
        self,
        publisher: Publisher,
        repair: RepairCopy | None,
        backoff: Backoff,
        report: Callable[[TailerError], None],
        *,
        parks: bool,
    ) -> None:
        self._publisher = publisher
        self._repair = repair
        self._backoff = backoff
        self._report = report
        self._parks = parks
        self._turn = anyio.Lock()

    def select_orders(self) -> Orders:
        """Return the orders that the stream carries out."""
        orders = self._publisher.orders
        return orders if self._repair is None else structs.replace(orders, resnapshots=[])

    async def publish(self, item: FeedItem) -> None:
        """Publish an item of the stream, while no repair has the copy for itself."""
        async with self._turn:
            await self._publisher.publish(item)

    async def run(self) -> None:
        """Carry out the orders that are open. Raises :class:`SinkRejected` for a row that the
        target does not take, and what else is for good."""
        orders = self._publisher.orders
        while self._repair is not None and orders.resnapshots:
            try:
                if await self._repair_between_versions(self._repair, orders.resnapshots[0]):
                    self._backoff.reset()
                else:
                    await anyio.sleep(_LOOK_S)
            except TransientError as e:
                self._report(e)
                await anyio.sleep(self._backoff.next_s(e.retry_after_s))

    async def _repair_between_versions(
        self, repair: RepairCopy, request: ResnapshotRequest
    ) -> bool:
        """Carry out an order, unless the copy is in the middle of a version."""
        publisher = self._publisher
        beside = publisher.calls.sink.traits.repaired_beside
        async with AsyncExitStack() as turn:
            if not beside:
                await turn.enter_async_context(self._turn)
            at = publisher.progress.offset
            if at is None or at.snapshot or at.index or not at.version:
                return False
            counts = await repair(request.where, publisher.progress)
            if counts.refused and not self._parks:
                raise SinkRejected(
                    f"a resnapshot could not write {counts.refused} rows: {counts.reason}"
                )
            if beside:
                await turn.enter_async_context(self._turn)
            with anyio.CancelScope(shield=True):
                await publisher.publish(self._build_notice(request, counts))
        return True

    def _build_notice(self, request: ResnapshotRequest, counts: RepairCounts) -> Notice:
        """Return what ends the order."""
        progress = self._publisher.progress
        at = progress.offset
        assert at is not None, "the feed has written"
        details = {
            "reason": "resnapshot",
            "version": at.version - 1,
            "where": request.text,
            "rows": counts.rows,
            "removed": counts.removed,
        }
        return Notice("snapshot_end", at.version, int(progress.clock() * 1000), at, at, details)
