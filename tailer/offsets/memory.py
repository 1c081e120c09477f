"""Offsets of a feed that is not resumed later: `tailer tail`."""

from __future__ import annotations

from typing import Any

from tailer.changes import Offset
from tailer.offsets import OffsetStore


class MemoryOffsetStore(OffsetStore):
    """Keeps the offset in memory, so that a retry within the process resumes from it."""

    def __init__(self) -> None:
        self._offset: Offset | None = None
        self._orders: dict[str, Any] = {}

    async def acquire(self) -> None:
        """See :class:`tailer.offsets.OffsetStore`."""

    async def load(self) -> Offset | None:
        return self._offset

    async def save(self, offset: Offset) -> None:
        self._offset = offset

    async def clear(self) -> None:
        self._offset = None

    async def load_orders(self) -> dict[str, Any]:
        return self._orders

    async def save_orders(self, orders: dict[str, Any]) -> None:
        self._orders = orders

    async def release(self) -> None:
        """See :class:`tailer.offsets.OffsetStore`."""
