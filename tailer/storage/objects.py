"""Azure's and Google's storage: ``abfss://``, ``az://``, ``https://`` of a blob, ``gs://``."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tailer.errors import ConfigError
from tailer.storage import Storage, take_also
from tailer.store.objects.options import AzureOptions, CloudOptions, Credentials, GcsOptions
from tailer.store.objects.place import Place, azure_place, gcs_place

if TYPE_CHECKING:
    from tailer.offsets import OffsetStore
    from tailer.storage.targets import Target
    from tailer.store.objects.store import Client, ObjectStore
    from tailer.store.traffic import Traffic
    from tailer.store.vended import Vendor

__all__ = ["AzureStorage", "GcsStorage"]


class _ObjectStorage(Storage):
    """See :class:`tailer.storage.Storage`. A cloud has its options and its spellings."""

    _title = _extra = ""
    #: What a catalog vends, and what obstore calls it.
    _vended = ("", "")

    def _options(self, options: Mapping[str, Any]) -> CloudOptions:
        raise NotImplementedError

    def _parse(self, address: str) -> Place | None:
        raise NotImplementedError

    def _place(self, address: str) -> Place:
        place = self._parse(address)
        if place is None:
            raise ConfigError(f"{address!r} is not an address of {self._title}")
        return place

    def _client(self, options: Mapping[str, Any], credentials: Credentials | None = None) -> Client:
        found = self._options(options)
        try:
            from tailer.store.objects.store import Client
        except ImportError as e:
            raise ConfigError(
                f"what reads {self._title} is not installed: pip install "
                f"'delta-tailer[{self._extra}]'"
            ) from e

        return Client(found, self._parse, credentials)

    def check_options(self, options: Mapping[str, Any]) -> None:
        """See :class:`tailer.storage.Storage`."""
        self._options(options)

    def open_store(
        self,
        table: str,
        options: Mapping[str, Any],
        traffic: Traffic | None = None,
        *,
        credentials: Credentials | None = None,
    ) -> ObjectStore:
        """See :class:`tailer.storage.Storage`. ``credentials`` are used instead of the options' and
        the environment's, and asked for again before they end."""
        also, rest = take_also(options)
        self._place(table)
        client = self._client(rest, credentials)
        from tailer.store.objects.store import ObjectStore

        return ObjectStore(table, client, traffic, also=[self._place(one) for one in also])

    async def open_vended(
        self,
        table: str,
        options: Mapping[str, Any],
        vendor: Vendor,
        traffic: Traffic | None = None,
    ) -> ObjectStore:
        """See :class:`tailer.storage.Storage`."""
        name, ours = self._vended
        await vendor.values(name)  # what is wrong with it is said now, and in our words

        async def credentials() -> dict[str, Any]:
            values = await vendor.values(name)
            end_s = vendor.expires_s
            end = None if end_s is None else dt.datetime.fromtimestamp(end_s, dt.UTC)
            return {ours: values[name], "expires_at": end}

        found = Credentials(credentials, vendor.forget)
        return self.open_store(table, options, traffic, credentials=found)

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
        place = self._place(address)
        client = self._client(options)
        from tailer.offsets.leased import LeasedOffsetStore
        from tailer.offsets.objects import CloudObject

        found = CloudObject(address, place.key, feed, client.container(place))
        return LeasedOffsetStore(found, feed, standby=standby is not False, lease_s=lease_s)

    def open_target(self, address: str, options: Mapping[str, Any]) -> Target:
        """See :class:`tailer.storage.Storage`."""
        place = self._place(address)
        client = self._client(options)
        from tailer.storage.objects_target import ObjectsTarget

        return ObjectsTarget(address, place, client)

    async def list_folders(self, address: str, options: Mapping[str, Any]) -> list[str]:
        """See :class:`tailer.storage.Storage`."""
        found = await self.open_store(address, options).entries(address)
        return sorted(found.folders) if found is not None else []


class AzureStorage(_ObjectStorage):
    """Azure's storage."""

    name = "az"
    _title, _extra = "Azure's storage", "azure"
    _vended = ("azure.sas-token", "sas_token")

    def _options(self, options: Mapping[str, Any]) -> CloudOptions:
        return AzureOptions.from_options(options)

    def _parse(self, address: str) -> Place | None:
        return azure_place(address)


class GcsStorage(_ObjectStorage):
    """Google's storage."""

    name = "gs"
    _title, _extra = "Google's storage", "gcs"
    _vended = ("gcs.oauth-token", "token")

    def _options(self, options: Mapping[str, Any]) -> CloudOptions:
        return GcsOptions.from_options(options)

    def _parse(self, address: str) -> Place | None:
        return gcs_place(address)
