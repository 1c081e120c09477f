"""Storage of S3, Azure and Google: ``s3://``, ``abfss://``, ``az://``, ``https://`` of a blob,
``gs://``."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import structs

from tailer.errors import ConfigError
from tailer.storage import Storage, take_also
from tailer.store.objects.options import AzureOptions, CloudOptions, Credentials, GcsOptions
from tailer.store.objects.place import Place, azure_place, gcs_place, s3_place
from tailer.store.s3.cloud import S3Cloud
from tailer.store.s3.options import S3Options

if TYPE_CHECKING:
    from tailer.offsets import OffsetStore
    from tailer.storage.targets import FolderTarget
    from tailer.store.objects.requests import Client
    from tailer.store.objects.store import ObjectStore
    from tailer.store.traffic import Traffic
    from tailer.store.vended import Vendor

#: What a catalog need not vend.
_TOKEN = "s3.session-token"  # noqa: S105 - a name


class _ObjectStorage(Storage):
    """See :class:`tailer.storage.Storage`. A cloud has its options and its spellings."""

    _title = ""
    #: What a catalog vends, by what obstore calls it.
    _vended: Mapping[str, str] = {}
    _settings: type[S3Options | AzureOptions | GcsOptions]

    def _parse_options(self, options: Mapping[str, Any]) -> CloudOptions:
        raise NotImplementedError

    def _parse_place(self, address: str) -> Place | None:
        raise NotImplementedError

    def _require_place(self, address: str) -> Place:
        place = self._parse_place(address)
        if place is None:
            raise ConfigError(f"{address!r} is not an address of {self._title}")
        return place

    def _make_client(
        self, options: Mapping[str, Any], credentials: Credentials | None = None
    ) -> Client:
        found = self._parse_options(options)
        from tailer.store.objects.requests import Client  # on demand: local tables need no client

        return Client(found, self._parse_place, credentials or found.find_credentials())

    def _format_address(self, address: str) -> str:
        """Return an address in the spelling of messages. Raises :class:`ConfigError`."""
        self._require_place(address)
        return address

    def check_options(self, options: Mapping[str, Any]) -> None:
        self._parse_options(options)

    def rename_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        table = structs.replace(self._settings.setting_table(), renames=True)
        answers = {name: table.answers.get(table.spelling(name), "") for name in options}
        needed = {n: v for n, v in options.items() if not answers[n].endswith("leave it out")}
        return table.rename(needed)

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
        address = self._format_address(table)
        client = self._make_client(rest, credentials)
        from tailer.store.objects.store import ObjectStore

        return ObjectStore(
            address, client, traffic, also=[self._require_place(one) for one in also]
        )

    async def open_vended(
        self,
        table: str,
        options: Mapping[str, Any],
        vendor: Vendor,
        traffic: Traffic | None = None,
    ) -> ObjectStore:
        needed = [name for name in self._vended.values() if name != _TOKEN]
        await vendor.values(*needed)  # a fault raises now, in our words

        async def credentials() -> dict[str, Any]:
            values = await vendor.values(*needed)
            end_s = vendor.expires_s
            end = None if end_s is None else dt.datetime.fromtimestamp(end_s, dt.UTC)
            found = {ours: values.get(name) for ours, name in self._vended.items()}
            return {**found, "expires_at": end}

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
        address, client = self._format_address(address), self._make_client(options)
        from tailer.offsets.leased import LeasedOffsetStore
        from tailer.offsets.objects import CloudObject

        found = CloudObject(address, feed, client)
        return LeasedOffsetStore(found, feed, standby=standby is not False, lease_s=lease_s)

    def open_target(self, address: str, options: Mapping[str, Any]) -> FolderTarget:
        address, client = self._format_address(address), self._make_client(options)
        from tailer.storage.objects_target import ObjectsTarget

        return ObjectsTarget(address, client)

    async def list_folders(self, address: str, options: Mapping[str, Any]) -> list[str]:
        found = await self.open_store(address, options).entries(address)
        return sorted(found.folders) if found is not None else []


class S3Storage(_ObjectStorage):
    """Buckets of S3, and of servers with its API: ``s3://bucket/key``, also as s3a and s3n."""

    name = "s3"
    _title = "S3"
    _settings = S3Options
    _vended: Mapping[str, str] = {
        "access_key_id": "s3.access-key-id",
        "secret_access_key": "s3.secret-access-key",
        "token": _TOKEN,
    }

    def _parse_options(self, options: Mapping[str, Any]) -> CloudOptions:
        return S3Cloud(S3Options.from_options(options))

    def rename_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        theirs = {name.lower().removeprefix("aws_"): name for name in options}
        name = theirs.get("virtual_hosted_style_request")
        if name is None:
            return super().rename_options(options)
        rest = {n: v for n, v in options.items() if n != name}
        path_style = str(options[name]).lower() in ("false", "0", "no")
        return {**super().rename_options(rest), "path_style": path_style}

    def _parse_place(self, address: str) -> Place | None:
        return s3_place(address)

    def _format_address(self, address: str) -> str:
        place = self._require_place(address)
        return f"s3://{place.container}/{place.key}"


class AzureStorage(_ObjectStorage):
    """Azure's storage."""

    name = "az"
    _title = "Azure's storage"
    _settings = AzureOptions
    _vended: Mapping[str, str] = {"sas_token": "azure.sas-token"}

    def _parse_options(self, options: Mapping[str, Any]) -> CloudOptions:
        return AzureOptions.from_options(options)

    def _parse_place(self, address: str) -> Place | None:
        return azure_place(address)


class GcsStorage(_ObjectStorage):
    """Google's storage."""

    name = "gs"
    _title = "Google's storage"
    _settings = GcsOptions
    _vended: Mapping[str, str] = {"token": "gcs.oauth-token"}

    def _parse_options(self, options: Mapping[str, Any]) -> CloudOptions:
        return GcsOptions.from_options(options)

    def _parse_place(self, address: str) -> Place | None:
        return gcs_place(address)
