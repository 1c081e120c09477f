"""The offset store contract: where a feed remembers the next change to read."""

from __future__ import annotations

import typing

from tailer.changes import Offset

__all__ = ["OffsetStore"]


class OffsetStore(typing.Protocol):
    """One feed's saved offset. Only one process at a time holds it."""

    async def acquire(self) -> None:
        """Become the one owner. Raises :class:`OffsetError` while another one is."""

    async def load(self) -> Offset | None:
        """The saved offset, None if there is none yet.

        Raises :class:`OffsetError` if what is there is damaged: never a guess.
        """

    async def save(self, offset: Offset) -> None:
        """Save it durably: after this returns, not even a power cut goes back behind it."""

    async def clear(self) -> None:
        """Forget the saved offset."""

    async def release(self) -> None:
        """Give up ownership."""
