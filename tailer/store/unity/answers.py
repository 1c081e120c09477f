"""What a Unity Catalog's server answers, and what it means."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from tailer.delta.segment import format_commit_name
from tailer.errors import TableError, TransientError
from tailer.store.unity.options import TableName
from tailer.store.vended import VendedCredential

#: Properties of a table whose commits its catalog ratifies.
_MANAGED = ("delta.feature.catalogManaged", "delta.feature.catalogOwned-preview")
_STAGED_NAME = re.compile(r"([0-9]{20})\.[0-9A-Za-z-]{1,64}\.json")


class Ratified(Struct, frozen=True, rename="kebab"):
    """A commit that the catalog has ratified and that need not be published yet: its file in
    ``_delta_log/_staged_commits``."""

    version: int
    file_name: str
    file_size: int
    file_modification_timestamp: int


class CatalogTable(Struct, frozen=True):
    """What a table's name stands for.

    ``managed``: the catalog ratifies its commits. ``commits`` are those that need not be published
    yet, by version, without a gap up to ``latest``, the newest one that is ratified. Every earlier
    version is published.
    """

    table_id: str
    location: str
    managed: bool = False
    latest: int = -1
    commits: Mapping[int, Ratified] = {}


class _Metadata(Struct, rename="kebab"):
    table_uuid: str
    location: str
    properties: dict[str, str | None] = {}


class Loaded(Struct, rename="kebab"):
    """The Delta API's answer to the load of a table."""

    metadata: _Metadata
    commits: list[Ratified] | None = None
    latest_table_version: int | None = None


class _Listed(Struct):
    name: str = ""
    data_source_format: str | None = None


class TablePage(Struct):
    """A page of tables."""

    tables: list[_Listed] | None = None
    next_page_token: str | None = None


class Named(Struct):
    """A catalog or a schema, of which only the name counts."""

    name: str


class Schemas(Struct):
    """A page of schemas."""

    schemas: list[Named] | None = None
    next_page_token: str | None = None


class _Credential(Struct, rename="kebab"):
    prefix: str
    config: dict[str, str | None] = {}
    expiration_time_ms: int | None = None


class TableCredentials(Struct, rename="kebab"):
    """Credentials for a table, by the Delta API."""

    storage_credentials: list[_Credential]


def table_of(name: TableName, loaded: Loaded) -> CatalogTable:
    """Return what the Delta API says of a table.

    Raises :class:`TransientError` for a list of commits with a gap, :class:`TableError` for a name
    that is none of a staged commit.
    """
    metadata = loaded.metadata
    managed = any(metadata.properties.get(key) for key in _MANAGED)
    if not managed:
        return CatalogTable(metadata.table_uuid, metadata.location)
    commits = {commit.version: commit for commit in loaded.commits or ()}
    # The two may be of different moments: what is listed is ratified, and the next answer has more.
    latest = max(commits, default=loaded.latest_table_version or 0)
    for commit in commits.values():
        match = _STAGED_NAME.fullmatch(commit.file_name)
        if match is None or int(match[1]) != commit.version:
            raise TableError(
                f"the catalog names {commit.file_name!r} as the commit of version {commit.version}",
                table=f"uc://{name}",
                hint="it is no name of a staged commit: ask the catalog's administrator",
            )
    if commits and sorted(commits) != [*range(min(commits), latest + 1)]:
        listed = ", ".join(format_commit_name(version) for version in sorted(commits)[:5])
        raise TransientError(
            f"uc://{name}: the catalog's answer has a gap: version {latest} is the newest, and of "
            f"those not yet published it lists {listed}"
        )
    return CatalogTable(metadata.table_uuid, metadata.location, True, latest, commits)


def parse_credential(one: _Credential) -> VendedCredential:
    """Return a credential of the Delta API."""
    values = {name: value for name, value in one.config.items() if value}
    end_ms = one.expiration_time_ms
    return VendedCredential(one.prefix, values, None if end_ms is None else end_ms / 1000)
