"""The offset store contract: where a feed stores the next change to read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from tailer.changes import Offset
from tailer.plugins.contract import Contract

__all__ = ["LEASE_S", "OffsetStore"]

#: How long, in seconds, a feed whose state is in an object store remains its owner's after the
#: last write of that one.
LEASE_S = 60.0


class OffsetStore(Contract, ABC):
    """One feed's saved offset. Only one process at a time holds it.

    A custom store derives from this class, which implements the optional methods. A public name
    that this class does not have is an error when the custom one is made.
    """

    @property
    def waiting_for(self) -> str | None:
        """The holder of the offset, while :meth:`acquire` waits for it as a standby; else None."""
        return None

    @abstractmethod
    async def acquire(self) -> None:
        """Become the one owner.

        While another owner exists, wait for it as a standby if the store is configured to, else
        raise :class:`OffsetError`. Waiting can be cancelled.
        """

    async def check(self) -> None:
        """Check, before a batch is written, that this is still the owner.

        Raises :class:`OffsetError` if another one has taken over, :class:`TransientError` if that
        can't be found out now. Costs nothing while there is no doubt.
        """
        return

    @abstractmethod
    async def load(self) -> Offset | None:
        """Return the saved offset, None if there is none yet.

        Raises :class:`OffsetError` if it is damaged: never guesses; to its owner, also if another
        one has taken over.
        """

    @abstractmethod
    async def save(self, offset: Offset) -> None:
        """Save the offset durably: once this returns, it survives a power cut.

        Raises :class:`OffsetError` if another one has taken over.
        """

    @abstractmethod
    async def clear(self) -> None:
        """Delete the saved offset."""

    async def load_orders(self) -> dict[str, Any]:
        """Return the operator's orders, as passed to :meth:`save_orders`; empty if there are none.

        A store that keeps no orders returns none.
        """
        return {}

    async def save_orders(self, orders: dict[str, Any]) -> None:  # noqa: ARG002
        """Store the orders of the feed's operator, a JSON object, beside the offset.

        Raises the errors of :meth:`save`.
        """
        return

    @abstractmethod
    async def release(self) -> None:
        """Give up ownership."""
