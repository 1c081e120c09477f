"""Tables of a catalog on Azurite, for which it vends signatures: the tests' own server makes them,
and so does the real one."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.catalog.server import TOKEN, CatalogServer
from tests.catalog.writer import ManagedTable
from tests.clouds.servers import ACCOUNT, KEY, Container, sas_token
from tests.sharing.shared import orders
from tests.support.token_front import TokenFront

SAS = "azure.sas-token"


@dataclass(frozen=True)
class Place:
    """Where a catalog keeps the tables of a schema."""

    endpoint: str
    container: Container
    schema: str

    def table(self, name: str = "orders") -> ManagedTable:
        """A table to be made, that the catalog manages."""
        return ManagedTable(self.endpoint, TOKEN, name, self.schema, self.container)


def azure_address(container: Container, key: str = "") -> str:
    """The address of a key as catalogs say it, with the account."""
    return f"abfss://{container.name}@{ACCOUNT}.dfs.core.windows.net/{key}".rstrip("/")


def keep_on_azure(container: Container, endpoint: str, own: CatalogServer | None) -> Place:
    """Have a catalog keep the tables of a schema in a container of Azurite."""
    where, name = azure_address(container), container.name
    if own is not None:
        own.root, own.vends = where, _signature
        return Place(endpoint, container, "sales")
    place = Place(endpoint, container, f"s{uuid4().hex}")
    for path, body in (
        ("/catalogs", {"name": "main"}),
        ("/credentials", {"name": name, "purpose": "STORAGE",
                          "azure_storage_key": {"account_name": ACCOUNT, "account_key": KEY}}),
        ("/external-locations", {"name": name, "url": where, "credential_name": name}),
        ("/schemas", {"name": place.schema, "catalog_name": "main", "storage_root": where}),
    ):  # fmt: skip
        status, answer = place.table().call("POST", path, body)
        assert status in (200, 409), answer
    return place


def _signature(location: str) -> list[dict[str, Any]]:
    """What the tests' own server vends, as the real one does."""
    end_ms = int((time.time() + 3600) * 1000)
    return [{"prefix": location, "operation": "READ", "config": {SAS: sas_token()},
             "expiration-time-ms": end_ms}]  # fmt: skip


@dataclass(frozen=True)
class Lake:
    """A schema of tables on Azure, and the front of its catalog, ``own`` or the real one."""

    front: TokenFront
    place: Place
    own: CatalogServer | None

    @property
    def container(self) -> Container:
        """Where the tables are."""
        return self.place.container

    @property
    def options(self) -> dict[str, str]:
        """Where Azure is."""
        return {"endpoint_url": self.container.url}

    def managed(self) -> ManagedTable:
        """A new table that the catalog manages."""
        return self.place.table().create()

    async def external(self, folder: Path, name: str = "external") -> str:
        """A table of three versions by path, registered in the catalog; its address there."""
        orders(folder, 4)
        await self.container.upload(folder, name)
        where = azure_address(self.container, name)
        if self.own is not None:
            self.own.table(name, where)
        else:
            body = {
                "name": name, "catalog_name": "main", "schema_name": self.place.schema,
                "table_type": "EXTERNAL", "data_source_format": "DELTA",
                "storage_location": where, "columns": [],
            }  # fmt: skip
            status, answer = self.place.table().call("POST", "/tables", body)
            assert status == 200, answer
        return f"uc://main.{self.place.schema}.{name}"
