"""The offset store contract: where a feed stores the next change to read."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tailer.changes import Offset

if typing.TYPE_CHECKING:
    from tailer.store.traffic import Traffic

__all__ = ["LEASE_S", "OffsetStore", "open_offset_store"]

#: How long, in seconds, a feed on S3 remains its owner's after the owner's last write.
LEASE_S = 60.0


class OffsetStore(typing.Protocol):
    """One feed's saved offset. Only one process at a time holds it.

    A custom store derives from this class, which implements the optional methods.
    """

    @property
    def waiting_for(self) -> str | None:
        """The holder of the offset, while :meth:`acquire` waits for it as a standby; else None."""
        return None

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

    async def load(self) -> Offset | None:
        """Return the saved offset, None if there is none yet.

        Raises :class:`OffsetError` if it is damaged: never guesses; to its owner, also if another
        one has taken over.
        """

    async def save(self, offset: Offset) -> None:
        """Save the offset durably: once this returns, it survives a power cut.

        Raises :class:`OffsetError` if another one has taken over.
        """

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

    async def release(self) -> None:
        """Give up ownership."""


def open_offset_store(
    address: str | Path,
    feed: str,
    options: Mapping[str, Any] | None = None,
    *,
    standby: bool | None = None,
    lease_s: float = LEASE_S,
    traffic: Traffic | None = None,
) -> OffsetStore:
    """Return the offset store of a feed in a local folder or under ``s3://bucket/prefix``.

    ``options`` are those of the S3 store. ``standby`` waits while another process has the feed
    instead of refusing; by default on S3 alone. ``traffic`` counts requests. Raises
    :class:`ConfigError` for wrong options.
    """
    if "://" in str(address):
        from tailer.offsets.s3 import S3OffsetStore  # loads on demand

        return S3OffsetStore(
            str(address), feed, options or {},
            standby=standby is not False, lease_s=lease_s, traffic=traffic,
        )  # fmt: skip
    from tailer.offsets.local import LocalOffsetStore

    return LocalOffsetStore(Path(address), feed, standby=bool(standby))
