"""An offset store that keeps its ownership while its feed restarts."""

from __future__ import annotations

from typing import Any

from tailer.changes import Offset
from tailer.offsets import OffsetStore

__all__ = ["HeldOffsets"]


class HeldOffsets(OffsetStore):
    """An offset store that stays acquired while its feed restarts, or is paused."""

    def __init__(self, inner: OffsetStore) -> None:
        self.inner = inner
        self.held = False

    @property
    def waiting_for(self) -> str | None:
        """See :class:`tailer.offsets.OffsetStore`."""
        return self.inner.waiting_for

    async def acquire(self) -> None:
        """See :class:`tailer.offsets.OffsetStore`."""
        if not self.held:
            await self.inner.acquire()
            self.held = True

    async def check(self) -> None:
        """See :class:`tailer.offsets.OffsetStore`."""
        await self.inner.check()

    async def load(self) -> Offset | None:
        """See :class:`tailer.offsets.OffsetStore`."""
        return await self.inner.load()

    async def save(self, offset: Offset) -> None:
        """See :class:`tailer.offsets.OffsetStore`."""
        await self.inner.save(offset)

    async def clear(self) -> None:
        """See :class:`tailer.offsets.OffsetStore`."""
        await self.inner.clear()

    async def load_orders(self) -> dict[str, Any]:
        """See :class:`tailer.offsets.OffsetStore`."""
        return await self.inner.load_orders()

    async def save_orders(self, orders: dict[str, Any]) -> None:
        """See :class:`tailer.offsets.OffsetStore`."""
        if self.held:  # else they are stored once it is held
            await self.inner.save_orders(orders)

    async def release(self) -> None:
        """Do nothing: who made this releases the inner store."""
