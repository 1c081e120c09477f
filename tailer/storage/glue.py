"""Tables that AWS Glue's Data Catalog names: ``glue://database.table``.

All options are those of S3: the account and the region are Glue's too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tailer.errors import ConfigError, placing
from tailer.network.clients import SharedClients
from tailer.storage import Storage, storage_of, take_also
from tailer.storage.patterns import find_matching_tables
from tailer.store.glue import GlueClient
from tailer.store.s3.options import S3Options
from tailer.store.unity.answers import CatalogTable
from tailer.store.unity.store import CatalogStore, TableSource

if TYPE_CHECKING:
    from tailer.store import Store
    from tailer.store.traffic import Traffic

_CLIENTS = SharedClients(GlueClient)
_ADDRESS = re.compile(r"glue://([^./]+)\.([^./]+)/?", re.IGNORECASE)
#: How often, in seconds, Glue is asked whether a table has moved.
_RECHECK_S = 300.0


class GlueStorage(Storage):
    """See :class:`tailer.storage.Storage`. It has no name: the options are those of S3."""

    def options_of(self, table: str, stores: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        return stores.get("s3", {})

    def open_store(
        self, table: str, options: Mapping[str, Any], traffic: Traffic | None = None
    ) -> CatalogStore:
        database, name = _parse_names(table)
        own = _parse_own_options(options)
        client: GlueClient | None = None

        async def load() -> CatalogTable:
            nonlocal client
            client = client or _CLIENTS.take_client(own)
            return CatalogTable("", await client.find_location(database, name))

        async def open_files(found: CatalogTable) -> Store:
            with placing(f"glue://{database}.{name} is at {found.location}"):
                storage = storage_of(found.location)
                return storage.open_store(found.location, options, traffic)

        async def close() -> None:
            nonlocal client
            taken, client = client, None
            if taken is not None:
                await _CLIENTS.give_back(taken)

        source = TableSource(load, open_files, close, "AWS Glue", _RECHECK_S, ratifies=False)
        return CatalogStore(f"glue://{database}.{name}", source)

    async def find_tables(
        self, pattern: str, options: Mapping[str, Any]
    ) -> Mapping[str, list[str]] | None:
        of_database, of_table = _parse_names(pattern)
        async with _CLIENTS.lend_client(_parse_own_options(options)) as client:
            return await find_matching_tables(
                "glue://", of_database, of_table, client.list_databases, client.list_tables
            )


def _parse_own_options(options: Mapping[str, Any]) -> S3Options:
    return S3Options.from_options(take_also(options)[1])


def _parse_names(address: str) -> tuple[str, str]:
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise ConfigError(
            f"{address!r} is not a table of AWS Glue; write it as glue://database.table"
        )
    database, name = found.groups()
    return database, name
