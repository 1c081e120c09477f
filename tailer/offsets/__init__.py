"""The offset store contract: where a feed remembers the next change to read."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tailer.changes import Offset

if typing.TYPE_CHECKING:
    from tailer.store.traffic import Traffic

__all__ = ["LEASE_S", "OffsetStore", "open_offset_store"]

#: How long a feed on S3 stays its owner's without a word from it, in seconds.
LEASE_S = 60.0


class OffsetStore(typing.Protocol):
    """One feed's saved offset. Only one process at a time holds it.

    A store of one's own derives from this class, which has what most need not think about.
    """

    @property
    def waiting_for(self) -> str | None:
        """Who holds the offset, while :meth:`acquire` waits for it as a standby; None else."""
        return None

    async def acquire(self) -> None:
        """Become the one owner. While another one is, wait for it as a standby, where the store
        was told to; raise :class:`OffsetError` else. Waiting can be cancelled."""

    async def check(self) -> None:
        """Make sure, before a batch is written, that this is the owner still.

        Raises :class:`OffsetError` if another one has taken over, :class:`TransientError` if that
        can't be told now. Costs nothing while there is no doubt.
        """
        return

    async def load(self) -> Offset | None:
        """The saved offset, None if there is none yet.

        Raises :class:`OffsetError` if what is there is damaged: never a guess.
        """

    async def save(self, offset: Offset) -> None:
        """Save it durably: after this returns, not even a power cut goes back behind it.

        Raises :class:`OffsetError` if another one has taken over.
        """

    async def clear(self) -> None:
        """Forget the saved offset."""

    async def load_orders(self) -> dict[str, Any]:
        """What the feed's operator has ordered, as :meth:`save_orders` was given it; empty if
        nothing was. A store that keeps no orders has none."""
        return {}

    async def save_orders(self, orders: dict[str, Any]) -> None:  # noqa: ARG002
        """Keep what the feed's operator has ordered, a JSON object, beside the offset.

        Errors as of :meth:`save`.
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
    """The offset store of a feed in a local folder or under ``s3://bucket/prefix``.

    ``options`` are those of the S3 store. ``standby`` waits while another process has the feed
    instead of refusing; by default on S3 alone. ``traffic`` is told of requests. Raises
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
