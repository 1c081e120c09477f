"""The store contract, and the function that opens the store for a table's address.

A store knows files by their location: relative to the table's root, or absolute. It maps its own
failures to the project's errors and retries nothing; only the feed does.
"""

from __future__ import annotations

import typing
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, TypeAlias

from tailer.errors import ConfigError, TableError

if typing.TYPE_CHECKING:
    import pyarrow as pa

    from tailer.store.budget import Budget
    from tailer.store.traffic import Traffic

__all__ = [
    "ChangeSourced",
    "Elsewhere",
    "FileStatus",
    "Found",
    "ReadsAhead",
    "ReadsHere",
    "Store",
    "StoreTraits",
    "TimeTravel",
    "Watch",
    "is_local",
    "open_store",
    "outside",
    "rest_mark",
    "traits_of",
]

LOG_DIR = "_delta_log"

#: A data file up to this size is fetched from a server by the one request that opens it.
WHOLE_BYTES = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FileStatus:
    """One file of a listing.

    ``name`` is relative to the listed folder, ``size`` is in bytes, ``mtime_ms`` is the
    modification time in epoch ms. ``tag`` changes whenever the file does.
    """

    name: str
    size: int
    mtime_ms: int
    tag: str


#: Bytes of a file, and its status.
Found: TypeAlias = tuple[bytes, FileStatus]


@dataclass(frozen=True, slots=True)
class StoreTraits:
    """Properties of a store that let log readers send it fewer requests.

    ``atomic``: a file appears whole and never grows. ``check_s``: how often, in seconds, a reader
    that waits for a version checks that the table is still the same and has no gap; 0: at each
    poll.
    """

    atomic: bool = False
    check_s: float = 0.0


class Store(typing.Protocol):
    """A table's files. A store may have ``traits`` (:func:`traits_of`).

    All methods raise FileNotFoundError for a file that does not exist, :class:`TransientError` for
    a failure that may heal, :class:`TableError` for one that will not.
    """

    @property
    def root(self) -> str:
        """The table's address, for messages."""

    def list(self, folder: str, start_after: str = "") -> AsyncGenerator[FileStatus, None]:
        """Yield the files in a folder whose name is greater than ``start_after``, in any order.

        A folder that does not exist yields nothing.
        """

    async def stat(self, location: str) -> FileStatus:
        """Return a file's status; ``mtime_ms`` is the one of :meth:`read` and :meth:`list`."""

    async def read(
        self, location: str, offset: int = 0, length: int | None = None
    ) -> tuple[bytes, FileStatus]:
        """Return a file's bytes, or a range of them, and its status; never a mix of two states."""

    async def open(self, location: str, size: int | None) -> pa.NativeFile:
        """Open a data file for random access from worker threads; the caller closes it.

        ``size`` is in bytes, where the log records it.
        """

    def watch(self, folder: str) -> AbstractAsyncContextManager[Watch]:
        """Watch a folder for changes."""

    async def aclose(self) -> None:
        """Release connections."""


class Watch(typing.Protocol):
    """A watch on one folder."""

    async def wait(self, seconds: float) -> None:
        """Return when something changed in the folder, after ``seconds`` at the latest."""


def traits_of(store: Store) -> StoreTraits:
    """Return a store's traits; without any, the defaults, which promise nothing."""
    traits = getattr(store, "traits", None)
    return traits if isinstance(traits, StoreTraits) else StoreTraits()


@typing.runtime_checkable
class ReadsAhead(typing.Protocol):
    """A store with slow reads, from which the next files are opened before their turn.

    A file whose ``size`` is given and at most ``WHOLE_BYTES`` is fetched whole when it is opened.
    """

    def ahead(self) -> Budget:
        """Return the budget of bytes that may be fetched ahead for this table."""


@typing.runtime_checkable
class ReadsHere(typing.Protocol):
    """A store whose files are read in the calling thread: many small ones need only one step in a
    worker thread. The methods are those of :class:`Store`, and block."""

    @property
    def root(self) -> str:
        """The table's address, for messages."""

    def stat_here(self, location: str) -> FileStatus:
        """Return a file's status, as :meth:`Store.stat` does."""

    def read_here(
        self, location: str, offset: int = 0, length: int | None = None
    ) -> tuple[bytes, FileStatus]:
        """Return a file's bytes and status, as :meth:`Store.read` does."""

    def open_here(self, location: str) -> pa.NativeFile:
        """Open a data file, as :meth:`Store.open` does."""


@typing.runtime_checkable
class ChangeSourced(typing.Protocol):
    """A store that requests a table's changes from a server, in one of several ways."""

    def serve(self, change_source: str) -> None:
        """Use the requests that ``change_source`` names from now on."""


@typing.runtime_checkable
class Elsewhere(typing.Protocol):
    """A store that knows the URL of a file only after it has read a log entry that names it.

    A reader of a file that another process has planned calls :meth:`expect` first.
    """

    async def expect(self, location: str, version: int, *, snapshot: bool) -> None:
        """Make a file known that a version's commit names, or that version's snapshot."""


@typing.runtime_checkable
class TimeTravel(typing.Protocol):
    """A store whose server looks versions up by time, so that no commits need to be listed."""

    async def version_at_or_after(self, timestamp_ms: int) -> int | None:
        """Return the first version at or after a time in epoch ms; None if all are before it."""


def rest_mark(store: Store, folder: str) -> str | None:
    """Return a mark of a folder that has not changed lately; None if that is costly to find out.

    While the mark stays the same, no file was added to the folder, removed or renamed there.
    """
    mark = getattr(store, "rest_mark", None)
    return mark(folder) if callable(mark) else None


def is_local(table: str) -> bool:
    """Return whether a table's address names a folder of this machine."""
    return ("://" not in table or table.startswith("file:")) and not _is_shared(table)


def _is_shared(table: str) -> bool:
    if "#" not in table:
        return False
    from tailer.sharing.profile import is_shared

    return is_shared(table)


def outside(table: str, location: str, leads_to: str = "") -> TableError:
    """Return the error for a file of the log that is neither in the table's folder nor in one that
    the configuration names. Anyone who writes to the table could have any file read by it."""
    return TableError(
        "the log names a file outside of the table's folder"
        + (f": it leads to {leads_to}" if leads_to else ""),
        table=table,
        path=location,
        hint="if it may be read, as the files that a shallow clone shares may, name its folder as "
        "`also` of the feed, or by --store-option also=FOLDER",
    )


def _also_of(options: Mapping[str, Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the folders of the option ``also``, and the other options."""
    rest = dict(options)
    also = rest.pop("also", ())
    if isinstance(also, str):
        also = [one.strip() for one in also.split(",") if one.strip()]
    if not isinstance(also, list | tuple) or not all(isinstance(one, str) for one in also):
        raise ConfigError(f"also is {also!r}, and must be a list of folders")
    return tuple(also), rest


def open_store(
    table: str, options: Mapping[str, Any] | None = None, traffic: Traffic | None = None
) -> Store:
    """Return the store for a table's address.

    An address is a path, ``file:``, ``s3://bucket/key`` or a shared table's
    ``profile.share#share.schema.table``. ``options`` are those of the store:
    :class:`tailer.store.s3.options.S3Options` or :class:`tailer.store.shared.store.SharingOptions`.
    Both other stores have ``also``: folders outside of the table's in which its files may be, as
    a list or with commas. ``traffic`` counts its requests. Raises :class:`ConfigError` for an
    address that no store serves, or an option that its store does not have.
    """
    from tailer.store.addresses import check_address

    check_address(table)
    if _is_shared(table):
        from tailer.store.shared.store import SharingOptions, SharingStore

        return SharingStore(table, SharingOptions.parse(options or {}))
    if is_local(table):
        from tailer.store.local import LocalStore  # stores load on demand

        also, rest = _also_of(options or {})
        if rest:
            raise ConfigError(f"{table!r} is a local table, and takes no option {min(rest)!r}")
        return LocalStore(table, also)
    if table.partition("://")[0].lower() in ("s3", "s3a", "s3n"):
        from tailer.store.s3.store import S3Store

        also, rest = _also_of(options or {})
        return S3Store(table, rest, traffic, also=also)
    raise ConfigError(
        f"no store for {table!r}: a local path is read, s3://bucket/key and "
        "profile.share#share.schema.table"
    )
