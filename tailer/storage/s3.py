"""Buckets of S3, and of servers with its API: ``s3://bucket/key``, also as ``s3a`` and ``s3n``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tailer.storage import Storage, take_also
from tailer.storage.s3_target import S3Target
from tailer.store.s3.environment import VENDED
from tailer.store.s3.folders import list_folders
from tailer.store.s3.options import S3Options
from tailer.store.s3.store import S3Store

if TYPE_CHECKING:
    from tailer.offsets import OffsetStore
    from tailer.store.traffic import Traffic
    from tailer.store.vended import Vendor

__all__ = ["S3Storage"]


class S3Storage(Storage):
    """See :class:`tailer.storage.Storage`."""

    name = "s3"

    def check_options(self, options: Mapping[str, Any]) -> None:
        """See :class:`tailer.storage.Storage`."""
        S3Options.from_options(options)

    def open_store(
        self, table: str, options: Mapping[str, Any], traffic: Traffic | None = None
    ) -> S3Store:
        """See :class:`tailer.storage.Storage`."""
        also, rest = take_also(options)
        return S3Store(table, rest, traffic, also=also)

    async def open_vended(
        self,
        table: str,
        options: Mapping[str, Any],
        vendor: Vendor,
        traffic: Traffic | None = None,
    ) -> S3Store:
        """See :class:`tailer.storage.Storage`."""
        await vendor.values(*VENDED)  # what is wrong with it is said now
        return self.open_store(table, {**options, "vendor": vendor}, traffic)

    def open_offsets(
        self,
        address: str,
        feed: str,
        options: Mapping[str, Any],
        *,
        standby: bool | None,
        lease_s: float,
    ) -> OffsetStore:
        """See :class:`tailer.storage.Storage`."""
        from tailer.offsets.s3 import s3_offsets  # on demand: it loads Arrow, as no log does

        return s3_offsets(address, feed, options, standby=standby is not False, lease_s=lease_s)

    def open_target(self, address: str, options: Mapping[str, Any]) -> S3Target:
        """See :class:`tailer.storage.Storage`."""
        return S3Target(address, S3Options.from_options(options))

    async def list_folders(self, address: str, options: Mapping[str, Any]) -> list[str]:
        """See :class:`tailer.storage.Storage`."""
        return await list_folders(address, options)
