"""Tables that a Unity Catalog names: ``uc://catalog.schema.table``.

Their options are those of ``[catalogs.NAME]``, NAME being the name's first part. All other options
go to the storage that the table turns out to be in.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tailer.errors import ConfigError, placing
from tailer.network.clients import SharedClients
from tailer.storage import Storage, storage_of
from tailer.storage.patterns import find_matching_tables
from tailer.store.unity.answers import CatalogTable
from tailer.store.unity.client import CatalogClient
from tailer.store.unity.options import CatalogOptions, TableName, parse_uc_address
from tailer.store.unity.store import CatalogStore, TableSource
from tailer.store.vended import Vendor

if TYPE_CHECKING:
    from tailer.store import Store
    from tailer.store.traffic import Traffic

_OWN = frozenset(CatalogOptions.__dataclass_fields__)
_CLIENTS = SharedClients(CatalogClient)
_PATTERN = re.compile(r"uc://([^./*]+)\.([^./]+)\.([^./]+)/?", re.IGNORECASE)


class UnityStorage(Storage):
    """See :class:`tailer.storage.Storage`. It has no name: the options differ by catalog."""

    def options_of(self, table: str, stores: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        catalog = re.split(r"[./]", table.partition("://")[2])[0]
        own = stores.get("catalogs", {}).get(catalog, {})
        return {**own, "stores": stores}

    def check_options(self, options: Mapping[str, Any]) -> None:
        CatalogOptions.from_options(options)

    def open_store(
        self, table: str, options: Mapping[str, Any], traffic: Traffic | None = None
    ) -> CatalogStore:
        name = parse_uc_address(table)
        return CatalogStore(f"uc://{name}", _Source(name, options, traffic).make_source())

    async def find_tables(
        self, pattern: str, options: Mapping[str, Any]
    ) -> dict[str, list[str]] | None:
        found = _PATTERN.fullmatch(pattern)
        if found is None:
            raise ConfigError(
                f"{pattern!r} is no pattern of tables; write uc://catalog.schema.* or "
                "uc://catalog.*.*"
            )
        catalog, of_schema, of_table = found.groups()
        own = _split_options(TableName(catalog, of_schema, of_table), options).own
        async with _CLIENTS.lend_client(own) as client:
            return await find_matching_tables(
                f"uc://{catalog}.",
                of_schema,
                of_table,
                partial(client.list_schemas, catalog),
                partial(client.list_tables, catalog),
            )


class _Options(NamedTuple):
    """The catalog's options, and those of the storage that the table is in."""

    own: CatalogOptions
    others: dict[str, Any]


class _Source:
    """Asks the catalog about one table, and opens the store that it names."""

    def __init__(
        self, name: TableName, options: Mapping[str, Any], traffic: Traffic | None
    ) -> None:
        self._name, self._traffic = name, traffic
        self._own, self._others = _split_options(name, options)
        self._client: CatalogClient | None = None

    def make_source(self) -> TableSource:
        """Return it in the store's terms."""
        own = self._own
        account = f"the catalog {self._name.catalog} at {own.endpoint} as {own.account}"
        return TableSource(self._load_table, self._open_store, self._close_client, account)

    def _take_client(self) -> CatalogClient:
        if self._client is None:
            self._client = _CLIENTS.take_client(self._own)
        return self._client

    async def _load_table(self) -> CatalogTable:
        return await self._take_client().load_table(self._name)

    async def _open_store(self, table: CatalogTable) -> Store:
        location, others = table.location, dict(self._others)
        with placing(f"uc://{self._name} is at {location}"):
            storage = storage_of(location)
            stores = others.pop("stores", {})
            options = {**storage.options_of(location, stores), **others}
            vendor = Vendor(
                f"uc://{self._name}",
                location,
                lambda: self._take_client().request_credentials(self._name),
            )
            return await storage.open_vended(location, options, vendor, self._traffic)

    async def _close_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await _CLIENTS.give_back(client)


def _split_options(name: TableName, options: Mapping[str, Any]) -> _Options:
    """Return the catalog's options, and those of the storage that the table is in."""
    own = {key: value for key, value in options.items() if key in _OWN}
    others = {key: value for key, value in options.items() if key not in _OWN}
    found = CatalogOptions.from_options(own, os.environ)
    if found.endpoint is None:
        raise ConfigError(
            f"the catalog {name.catalog} has no endpoint: set it in [catalogs.{name.catalog}], as "
            "--store-option endpoint=https://HOST, or as DATABRICKS_HOST"
        )
    return _Options(found, others)
