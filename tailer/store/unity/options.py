"""The options of a catalog, and the names of tables in it: ``uc://catalog.schema.table``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from tailer.errors import ConfigError
from tailer.secrets.urls import parse_url
from tailer.setting_fields import declared, settings_of
from tailer.settings import Setting, SettingTable
from tailer.sharing.profile import BearerToken, ClientCredentials

_ADDRESS = re.compile(r"uc://([^./]+)\.([^./]+)\.([^./]+)/?", re.IGNORECASE)
_API = "/api/2.1/unity-catalog"
#: What Databricks' own tools read.
_ENVIRONMENT = {
    "endpoint": "DATABRICKS_HOST",
    "token": "DATABRICKS_TOKEN",
    "client_id": "DATABRICKS_CLIENT_ID",
    "client_secret": "DATABRICKS_CLIENT_SECRET",
}


def _parse_url(text: str) -> str | None:
    if not text:
        return None
    parse_url(text, ("http", "https"), login=False)
    return text.rstrip("/").removesuffix(_API)


def _one_line(text: str) -> str | None:
    if not text.isprintable():
        raise ValueError  # it would begin another header
    return text or None


@dataclass(frozen=True, slots=True)
class CatalogOptions:
    """How a catalog is reached, and as whom; equal options share one client."""

    # fmt: off
    endpoint: str | None = declared(Setting(
        "text", None, "Address of the catalog's server.", form="http://host or https://host",
        parse=_parse_url, elsewhere=("uri", "host", "workspace_url"), unset="`DATABRICKS_HOST`",
    ))
    token: str | None = declared(Setting(
        "text", None, "Bearer token.", secret=True, parse=_one_line,
        unset="`DATABRICKS_TOKEN`, or none",
    ))
    client_id: str | None = declared(Setting(
        "text", None, "OAuth client, used instead of a token; requires `client_secret`.",
        unset="`DATABRICKS_CLIENT_ID`", advanced=True,
    ))
    client_secret: str | None = declared(Setting(
        "text", None, "Secret of `client_id`.", secret=True, parse=_one_line,
        unset="`DATABRICKS_CLIENT_SECRET`", advanced=True,
    ))
    token_endpoint: str | None = declared(Setting(
        "text", None, "Where the OAuth client gets its tokens.", form="https://host/path",
        parse=_parse_url, unset="`/oidc/v1/token` of the endpoint, as on Databricks", advanced=True,
    ))
    scope: str | None = declared(Setting(
        "text", None, "OAuth scope.", unset="`all-apis` on Databricks, or none", advanced=True,
    ))
    ca_file: str | None = declared(Setting(
        "text", None, "PEM file of the trusted authorities.", unset="the system's authorities",
        advanced=True,
    ))
    # fmt: on

    @classmethod
    def from_options(
        cls, values: Mapping[str, Any], environment: Mapping[str, str] | None = None
    ) -> Self:
        """Parse the options of a table ``[catalogs.NAME]``; ``environment`` has what is left out.

        Raises :class:`ConfigError` for a wrong one.
        """
        table = SettingTable("the catalog", settings_of(cls), text=True)
        found = table.take({**_left_out(values, environment or {}), **values})
        if bool(found["client_id"]) != bool(found["client_secret"]):
            raise ConfigError("client_id and client_secret go together: give both or none")
        if found["token"] and found["client_id"]:
            raise ConfigError("token and client_id exclude each other; give one")
        return cls(**found)

    def find_credentials(self) -> BearerToken | ClientCredentials | None:
        """Return what requests sign in with; None if the server asks for nothing."""
        if self.client_id and self.client_secret:
            own = self.token_endpoint
            endpoint = own or f"{self.endpoint}/oidc/v1/token"
            scope = self.scope or (None if own else "all-apis")
            return ClientCredentials(endpoint, self.client_id, self.client_secret, scope)
        return BearerToken(self.token) if self.token else None

    @property
    def account(self) -> str:
        """Return who signs in, for messages: never a secret."""
        if self.client_id:
            return f"the OAuth client {self.client_id}"
        return "the owner of the token" if self.token else "an anonymous client"

    @property
    def api(self) -> str:
        """Return the base of the API's paths."""
        return f"{self.endpoint}{_API}"


def _left_out(values: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the options that the environment has and the configuration leaves out: not an
    account beside another, and of two accounts the token."""
    names = ["endpoint"]
    if not (values.get("token") or values.get("client_id")):
        with_token = environment.get(_ENVIRONMENT["token"])
        names += ["token"] if with_token else ["client_id", "client_secret"]
    found = {name: environment.get(_ENVIRONMENT[name], "") for name in names}
    endpoint = found["endpoint"]
    found["endpoint"] = f"https://{endpoint}" if endpoint and "://" not in endpoint else endpoint
    return found


@dataclass(frozen=True, slots=True)
class TableName:
    """The three parts of a table's name."""

    catalog: str
    schema: str
    table: str

    def __str__(self) -> str:
        return f"{self.catalog}.{self.schema}.{self.table}"


def parse_uc_address(address: str) -> TableName:
    """Parse the address of a table. Raises :class:`ConfigError` for another shape."""
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise ConfigError(
            f"{address!r} is not a table of a catalog; write it as uc://catalog.schema.table"
        )
    catalog, schema, table = found.groups()
    return TableName(catalog, schema, table)
