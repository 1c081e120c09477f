"""Where tables lie: the store contract, and the look-up of a store by a table's address.

A store knows files by their location: relative to the table's root, or absolute. It maps its own
failures to the project's errors and retries nothing; only the feed does.
"""

from __future__ import annotations

import typing
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tailer.errors import ConfigError

if typing.TYPE_CHECKING:
    from tailer.store.budget import Budget
    from tailer.store.traffic import Traffic

__all__ = [
    "ChangeSourced",
    "Elsewhere",
    "FileStatus",
    "ReadsAhead",
    "Store",
    "StoreTraits",
    "TimeTravel",
    "Watch",
    "open_store",
    "rest_mark",
    "traits_of",
]

LOG_DIR = "_delta_log"


@dataclass(frozen=True, slots=True)
class FileStatus:
    """One file of a listing. ``name`` is relative to the listed folder, ``size`` in bytes,
    ``mtime_ms`` the modification time in epoch ms, ``tag`` changes whenever the file does."""

    name: str
    size: int
    mtime_ms: int
    tag: str


@dataclass(frozen=True, slots=True)
class StoreTraits:
    """What readers of a log may rely on, to ask a store no more than they must.

    ``atomic``: a file appears whole and never grows. ``check_s``: how often, in seconds, whoever
    waits for a version makes sure that the table is still the same and has no gap; 0: at each poll.
    """

    atomic: bool = False
    check_s: float = 0.0


class Store(typing.Protocol):
    """A table's files. A store may have ``traits`` (:func:`traits_of`).

    All methods raise FileNotFoundError for a file that is not there,
    :class:`TransientError` for what may heal, :class:`TableError` for what will not."""

    @property
    def root(self) -> str:
        """The table's address, for messages."""

    def list(self, folder: str, start_after: str = "") -> AsyncGenerator[FileStatus, None]:
        """The files in a folder whose name is greater than ``start_after``, in any order.

        A folder that is not there has none.
        """

    async def stat(self, location: str) -> FileStatus:
        """One file's status. ``mtime_ms`` is the same as :meth:`read` and :meth:`list` give."""

    async def read(
        self, location: str, offset: int = 0, length: int | None = None
    ) -> tuple[bytes, FileStatus]:
        """A file's bytes, or a range of them, and its status; never a mix of two states of it."""

    async def open(self, location: str, size: int | None) -> pa.NativeFile:
        """A data file for random access from worker threads; the caller closes it.

        ``size`` in bytes if the log tells it.
        """

    def watch(self, folder: str) -> AbstractAsyncContextManager[Watch]:
        """Notices changes in a folder."""

    async def aclose(self) -> None:
        """Release connections."""


class Watch(typing.Protocol):
    """Waits for a folder to change."""

    async def wait(self, seconds: float) -> None:
        """Return when something changed in the folder, or after so many seconds at the latest."""


def traits_of(store: Store) -> StoreTraits:
    """A store's traits; for one that names none, those that ask nothing of it."""
    traits = getattr(store, "traits", None)
    return traits if isinstance(traits, StoreTraits) else StoreTraits()


@typing.runtime_checkable
class ReadsAhead(typing.Protocol):
    """A store whose files take their time to come, so that the next is had while one is worked
    on."""

    def ahead(self) -> Budget:
        """What may be fetched of this table before its turn."""

    async def open_ahead(self, location: str, size: int, first: int) -> pa.NativeFile:
        """As :meth:`Store.open`, the first so many bytes of the file there already."""


@typing.runtime_checkable
class ChangeSourced(typing.Protocol):
    """A store that asks another side for a table's changes, in one of several ways."""

    def serve(self, change_source: str) -> None:
        """From now on, give what the changes are found by that the feed asks for."""


@typing.runtime_checkable
class Elsewhere(typing.Protocol):
    """A store that knows where a file lies only once it has read of it.

    Who reads a file that another process has planned tells first what it is about to read.
    """

    async def expect(self, location: str, version: int, *, snapshot: bool) -> None:
        """Make a file known that a version's commit names, or that version's snapshot."""


@typing.runtime_checkable
class TimeTravel(typing.Protocol):
    """A store whose other side looks versions up by time, where a log's commits would be listed."""

    async def version_at_or_after(self, timestamp_ms: int) -> int | None:
        """The first version at or after a time in epoch ms; None if all are before it."""


def rest_mark(store: Store, folder: str) -> str | None:
    """A mark of a folder that has been at rest for a while, None if that is not cheap to tell.

    While it stays the same no file has come into the folder, gone from it or been renamed there.
    """
    mark = getattr(store, "rest_mark", None)
    return mark(folder) if callable(mark) else None


def open_store(
    table: str, options: Mapping[str, Any] | None = None, traffic: Traffic | None = None
) -> Store:
    """The store of a table's address: a path, ``file:``, ``s3://bucket/key`` or a shared table's
    ``profile.share#share.schema.table``.

    ``options`` are the store's own: those of :class:`tailer.store.s3.options.S3Options` or of
    :class:`tailer.store.shared.store.SharingOptions`. ``traffic`` counts its requests. Raises
    :class:`ConfigError` for an address that no store serves, or an option that its store does not
    have.
    """
    if "#" in table:
        from tailer.sharing.profile import is_shared

        if is_shared(table):
            from tailer.store.shared.store import SharingOptions, SharingStore

            return SharingStore(table, SharingOptions.parse(options or {}))
    scheme, separator, _ = table.partition("://")
    if not separator or scheme == "file" or table.startswith("file:"):
        from tailer.store.local import LocalStore  # stores load on demand

        if options:
            raise ConfigError(f"{table!r} is a local table, and takes no option {min(options)!r}")
        return LocalStore(table)
    if scheme.lower() in ("s3", "s3a", "s3n"):
        from tailer.store.s3.store import S3Store

        return S3Store(table, options or {}, traffic)
    raise ConfigError(
        f"no store for {table!r}: a local path is read, s3://bucket/key and "
        "profile.share#share.schema.table"
    )
