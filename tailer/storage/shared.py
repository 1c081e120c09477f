"""Tables that a Delta Sharing server shares: ``profile.share#share.schema.table``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tailer.storage import Storage
from tailer.store.shared.store import SharingOptions, SharingStore

if TYPE_CHECKING:
    from tailer.store.traffic import Traffic


class SharedStorage(Storage):
    """See :class:`tailer.storage.Storage`."""

    def open_store(
        self, table: str, options: Mapping[str, Any], traffic: Traffic | None = None
    ) -> SharingStore:
        return SharingStore(table, SharingOptions.from_options(options))
