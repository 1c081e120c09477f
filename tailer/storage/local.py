"""Folders of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailer.errors import ConfigError, healing
from tailer.process.threads import run_blocking
from tailer.storage import Storage, take_also
from tailer.store.local import LocalStore

if TYPE_CHECKING:
    from tailer.offsets import OffsetStore
    from tailer.storage.targets import LocalTarget
    from tailer.store.traffic import Traffic
    from tailer.store.vended import Vendor


class LocalStorage(Storage):
    """See :class:`tailer.storage.Storage`. Reading a table loads neither offsets nor targets."""

    def open_store(
        self, table: str, options: Mapping[str, Any], traffic: Traffic | None = None
    ) -> LocalStore:
        also, rest = take_also(options)
        if rest:
            raise ConfigError(f"{table!r} is a local table, and takes no option {min(rest)!r}")
        return LocalStore(table, also)

    async def open_vended(
        self,
        table: str,
        options: Mapping[str, Any],
        vendor: Vendor,
        traffic: Traffic | None = None,
    ) -> LocalStore:
        return self.open_store(table, options, traffic)

    def rename_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """See :class:`tailer.storage.Storage`. Programs have one set of options for their tables
        on the disk and in the cloud."""
        from tailer.store.objects.options import OF_THE_CLIENT

        clouds = ("aws_", "azure_", "google_", *OF_THE_CLIENT)
        return {name: v for name, v in options.items() if not name.lower().startswith(clouds)}

    def open_offsets(
        self,
        address: str,
        feed: str,
        options: Mapping[str, Any],
        *,
        standby: bool | None,
        lease_s: float,
    ) -> OffsetStore:
        from tailer.offsets.local import LocalOffsetStore

        return LocalOffsetStore(_check_folder(address), feed, standby=bool(standby))

    def open_target(self, address: str, options: Mapping[str, Any]) -> LocalTarget:
        from tailer.storage.targets import LocalTarget

        return LocalTarget(_check_folder(address))

    async def list_folders(self, address: str, options: Mapping[str, Any]) -> list[str]:
        def scan() -> list[str]:
            try:
                path = Path(address.removeprefix("file://")).expanduser()
                # An unavailable disk has not lost its tables.
                with healing(f"{address}: it can't be listed"):
                    return sorted(entry.name for entry in path.iterdir() if entry.is_dir())
            except (FileNotFoundError, NotADirectoryError):
                return []

        return await run_blocking(scan)


def _check_folder(address: str) -> Path:
    if address.startswith("file:"):
        raise ConfigError(f"{address!r} is a URI: give the folder's path")
    return Path(address)
