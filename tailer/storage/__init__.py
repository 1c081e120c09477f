"""The kinds of storage, by the scheme of an address: what serves tables, offsets and targets there.

A kind is a class below :class:`Storage`. Those of this package are listed here; another package
names its own by an entry point in the group ``tailer.stores``, whose name is the scheme. Each is
loaded when an address needs it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailer.errors import ConfigError
from tailer.plugins.contract import Contract
from tailer.plugins.entry_points import installed_points, load_point
from tailer.store.addresses import check_address
from tailer.store.objects.place import is_azure_url

if TYPE_CHECKING:
    from tailer.offsets import OffsetStore
    from tailer.storage.targets import FolderTarget
    from tailer.store import Store
    from tailer.store.traffic import Traffic
    from tailer.store.vended import Vendor

__all__ = [
    "GROUP",
    "Storage",
    "is_local",
    "is_served",
    "is_url",
    "open_offset_store",
    "open_store",
    "open_target",
    "remote_schemes",
    "serve_scheme",
    "storage_named",
    "storage_of",
    "take_also",
]

#: The group of entry points in which further kinds of storage are found.
GROUP = "tailer.stores"

#: Stands for the scheme of a shared table's address, which has none.
_SHARED = "#"
#: Names in a catalog; their tables are in another storage, whose options they have.
_CATALOGS = {
    "uc": "tailer.storage.unity:UnityStorage",
    "glue": "tailer.storage.glue:GlueStorage",
}
#: The kinds of this package, by scheme.
_KINDS = {
    "file": "tailer.storage.local:LocalStorage",
    _SHARED: "tailer.storage.shared:SharedStorage",
    **dict.fromkeys(("s3", "s3a", "s3n"), "tailer.storage.objects:S3Storage"),
    **dict.fromkeys(
        ("az", "azure", "abfss", "abfs", "wasbs", "wasb", "adl"),
        "tailer.storage.objects:AzureStorage",
    ),
    **dict.fromkeys(("gs", "gcs"), "tailer.storage.objects:GcsStorage"),
    **_CATALOGS,
}
#: Storage that only this process can reach, by scheme.
_SERVED: dict[str, Storage] = {}


class Storage(Contract, ABC):
    """One kind of storage. Without the methods that are not abstract, it has tables alone.

    The methods raise :class:`ConfigError` for an address or an option that is wrong. ``options``
    are a table's of the configuration; their values may be text.
    """

    #: The table ``[store.NAME]`` of the options that all its tables share; "" if there is none.
    name: str = ""

    @abstractmethod
    def open_store(
        self, table: str, options: Mapping[str, Any], traffic: Traffic | None = None
    ) -> Store:
        """Return the store of a table; ``traffic`` counts its requests."""

    async def open_vended(
        self,
        table: str,
        options: Mapping[str, Any],
        vendor: Vendor,
        traffic: Traffic | None = None,
    ) -> Store:
        """Return the store of a table that is read with what a catalog vends for it.

        Raises the errors of :meth:`tailer.store.vended.Vendor.values`.
        """
        raise ConfigError("what a catalog vends can't be used there")

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Raise :class:`ConfigError` for options that no table can have."""

    def rename_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return options that may have the names that deltalake and Spark give them, under ours,
        without those that nothing here needs. Raises :class:`ConfigError` for an option that is
        given twice, or that can't be followed."""
        return dict(options)

    def options_of(self, table: str, stores: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        """Return the options that a table or a pattern has of the configuration's ``[store.NAME]``,
        ``stores``; ``catalogs`` there has the tables ``[catalogs.NAME]``."""
        return stores.get(self.name, {})

    def open_offsets(
        self,
        address: str,
        feed: str,
        options: Mapping[str, Any],
        *,
        standby: bool | None,
        lease_s: float,
    ) -> OffsetStore:
        """Return the store of a feed's offset; see :func:`open_offset_store`."""
        raise ConfigError(f"no offsets are kept at {address!r}")

    def open_target(self, address: str, options: Mapping[str, Any]) -> FolderTarget:
        """Return where a sink publishes files."""
        raise ConfigError(f"no files are written to {address!r}")

    async def find_tables(
        self, pattern: str, options: Mapping[str, Any]
    ) -> Mapping[str, list[str]] | None:
        """Return the tables that a pattern finds, by the text that its stars match; None if they
        are the folders with a log. Raises the errors of :meth:`list_folders`."""
        return None

    async def list_folders(self, address: str, options: Mapping[str, Any]) -> list[str]:
        """Return the names of the folders in a folder, sorted; none if there is no such folder.

        Raises the errors of :meth:`tailer.store.Store.list`, and OSError for a folder that this
        user may not list.
        """
        scheme = address.partition("://")[0]
        raise ConfigError(f"a pattern can't be looked for at {scheme}://")


def open_store(
    table: str, options: Mapping[str, Any] | None = None, traffic: Traffic | None = None
) -> Store:
    """Return the store for a table's address: a path, ``file:``, ``s3://bucket/key``, a shared
    table's ``profile.share#share.schema.table``, or another scheme that is installed.

    ``options`` are those of the store. ``traffic`` counts its requests. Raises
    :class:`ConfigError` for an address that no store serves, or an option that its store does not
    have.
    """
    if _find_scheme(table) not in _SERVED:
        check_address(table)
    return storage_of(table).open_store(table, options or {}, traffic)


def open_offset_store(
    address: str | Path,
    feed: str,
    options: Mapping[str, Any] | None = None,
    *,
    lease_s: float,
    standby: bool | None = None,
) -> OffsetStore:
    """Return the offset store of a feed in a local folder or under ``s3://bucket/prefix``.

    ``options`` are those of the store. ``standby`` waits while another process has the feed
    instead of refusing; by default everywhere but in a local folder. Raises :class:`ConfigError`
    for wrong options.
    """
    return storage_of(str(address)).open_offsets(
        str(address), feed, options or {}, standby=standby, lease_s=lease_s
    )


def open_target(address: str, folder: Path, options: Mapping[str, Any]) -> FolderTarget:
    """Return the target of an address; a local one is relative to ``folder``."""
    where = address if "://" in address else str(folder / address)
    return storage_of(address).open_target(where, options)


def is_local(table: str) -> bool:
    """Return whether a table's address names a folder of this machine."""
    return _find_scheme(table) == "file"


def is_served(address: str) -> bool:
    """Return whether a kind of storage has the scheme of an address, in every process."""
    scheme = _find_scheme(address)
    return scheme in _KINDS or scheme in installed_points(GROUP)


def serve_scheme(scheme: str, storage: Storage) -> None:
    """Let a storage serve a scheme that no kind has, in this process: what it reads by is here
    alone. A later one takes its place."""
    _SERVED[scheme] = storage


def is_url(address: str) -> bool:
    """Return whether an address is a URL, in which names are encoded: one of a sink's server, or a
    storage's address of the web. The keys of other storage are plain text, as paths are."""
    scheme, separator, _ = address.partition("://")
    if not separator or not scheme.isalpha():
        return False
    kind = _find_scheme(address)
    is_storage = kind != "file" and is_served(address)
    return scheme.lower() == "https" or not is_storage


def remote_schemes(*, catalogs: bool = True) -> list[str]:
    """Return the schemes of remote storage, without other spellings; with those of catalogs."""
    ours = {place: scheme for scheme, place in reversed(_KINDS.items())}
    return sorted(
        {*ours.values(), *installed_points(GROUP)}
        - {"file", _SHARED, *(() if catalogs else _CATALOGS)}
    )


def storage_of(address: str) -> Storage:
    """Return the storage that serves an address. Raises :class:`ConfigError` if there is none."""
    scheme = _find_scheme(address)
    found = _SERVED.get(scheme) or _load_storage(scheme)
    if found is None:
        schemes = "".join(f", {scheme}://" for scheme in remote_schemes())
        raise ConfigError(
            f"no store for {address!r}: a local path is read{schemes} and "
            "profile.share#share.schema.table"
        )
    return found


def storage_named(name: str) -> Storage:
    """Return the storage whose options are in ``[store.NAME]``. Raises :class:`ConfigError`."""
    found = storage_of(f"{name}://")
    if found.name != name:
        other = f"[store.{found.name}]" if found.name else "a feed's own `store`"
        raise ConfigError(f"the options of {name}:// are those of {other}")
    return found


def take_also(options: Mapping[str, Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the folders of the option ``also``, and the other options.

    They are folders outside of the table's in which its files may be: a list, or with commas.
    """
    rest = dict(options)
    also = rest.pop("also", ())
    if isinstance(also, str):
        also = [one.strip() for one in also.split(",") if one.strip()]
    if not isinstance(also, list | tuple) or not all(isinstance(one, str) for one in also):
        raise ConfigError(f"also is {also!r}, and must be a list of folders")
    return tuple(also), rest


def _find_scheme(address: str) -> str:
    if "#" in address and _is_shared(address):
        return _SHARED
    if is_azure_url(address):
        return "az"
    scheme, separator, _ = address.partition("://")
    return scheme.lower() if separator and not address.startswith("file:") else "file"


def _is_shared(address: str) -> bool:
    from tailer.sharing.profile import is_shared

    return is_shared(address)


@cache
def _load_storage(scheme: str) -> Storage | None:
    what = f"the store of {scheme}://"
    if scheme in _KINDS:
        module, _, name = _KINDS[scheme].partition(":")
        try:
            kind: type[Storage] = getattr(import_module(module), name)
        except ImportError as e:
            raise ConfigError(f"{what} can't be loaded ({e})") from e
    elif scheme in installed_points(GROUP):
        kind = load_point(installed_points(GROUP)[scheme], what)
    else:
        return None
    return kind()
