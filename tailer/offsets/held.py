"""An offset store that keeps its ownership while its feed restarts."""

from __future__ import annotations

from typing import Any

from tailer.changes import Offset
from tailer.offsets import OffsetStore


class HeldOffsets(OffsetStore):
    """An offset store that stays acquired while its feed restarts, or is paused."""

    def __init__(self, inner: OffsetStore) -> None:
        self.inner = inner
        self.held = False

    @property
    def waiting_for(self) -> str | None:
        return self.inner.waiting_for

    async def acquire(self) -> None:
        if not self.held:
            await self.inner.acquire()
            self.held = True

    async def check(self) -> None:
        await self.inner.check()

    async def load(self) -> Offset | None:
        return await self.inner.load()

    async def save(self, offset: Offset) -> None:
        await self.inner.save(offset)

    async def clear(self) -> None:
        await self.inner.clear()

    async def load_orders(self) -> dict[str, Any]:
        return await self.inner.load_orders()

    async def save_orders(self, orders: dict[str, Any]) -> None:
        if self.held:  # else they are stored once it is held
            await self.inner.save_orders(orders)

    async def release(self) -> None:
        """Do nothing: who made this releases the inner store."""
