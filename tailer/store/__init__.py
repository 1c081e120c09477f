"""The store contract.

A store knows files by their location: relative to the table's root, or absolute. It maps its own
failures to the project's errors. It may repeat a request a few times; the feed does the rest.
"""

from __future__ import annotations

import typing
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeAlias

import anyio
from msgspec import Struct

from tailer.errors import TableError
from tailer.plugins.contract import Contract

if typing.TYPE_CHECKING:
    import datetime as dt
    from pathlib import Path

    import pyarrow as pa

    from tailer.store.budget import Budget

__all__ = [
    "BlockingFiles",
    "FileStatus",
    "FolderEntries",
    "Found",
    "Store",
    "Watch",
    "make_outside_error",
]

LOG_DIR = "_delta_log"

#: A data file up to this size is fetched from a server by the one request that opens it.
WHOLE_BYTES = 2 * 1024 * 1024


class FileStatus(Struct, frozen=True):
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


class FolderEntries(Struct, frozen=True):
    """The names in a folder, perhaps only the first thousand."""

    files: Sequence[str]
    folders: Sequence[str]


class Watch:
    """A watch on one folder. This one only waits, as for a store that sends no notices."""

    async def wait(self, seconds: float) -> None:
        """Return when something changed in the folder, after ``seconds`` at the latest."""
        await anyio.sleep(seconds)


class BlockingFiles(ABC):
    """Files that are read in the calling thread: many small ones need only one step in a worker
    thread. The methods are those of :class:`Store`, and block."""

    @property
    @abstractmethod
    def root(self) -> str:
        """The table's address, for messages."""

    @abstractmethod
    def stat_here(self, location: str) -> FileStatus:
        """Return a file's status, as :meth:`Store.stat` does."""

    @abstractmethod
    def read_here(self, location: str, offset: int = 0, length: int | None = None) -> Found:
        """Return a file's bytes and status, as :meth:`Store.read` does."""

    @abstractmethod
    def open_here(self, location: str) -> pa.NativeFile:
        """Open a data file, as :meth:`Store.open` does."""


class Store(Contract, ABC):
    """A table's files. The abstract methods are every store's; each other member is something that
    a store may have, and the default here is for a store without it.

    All methods raise FileNotFoundError for a file that does not exist, :class:`TransientError` for
    a failure that may heal, :class:`TableError` for one that will not. A public name that is not
    the contract's is an error when the class is made: a misspelt method would never be called.
    """

    #: A file appears whole and never grows.
    atomic: bool = False
    #: How often, in seconds, a reader that waits for a version checks that the table is still the
    #: same and has no gap; 0: at each poll.
    check_s: float = 0.0
    #: The log is made of a server's answers, which already are the changes and name the table. Then
    #: :meth:`serve` and :meth:`version_at_or_after` are called.
    server_log: bool = False
    #: A catalog says which versions there are: tables that only their catalog knows are read.
    by_catalog: bool = False

    @property
    @abstractmethod
    def root(self) -> str:
        """The table's address, for messages."""

    @abstractmethod
    def list(self, folder: str, start_after: str = "") -> AsyncGenerator[FileStatus, None]:
        """Yield the files in a folder whose name is greater than ``start_after``, in any order.

        A folder that does not exist yields nothing.
        """

    @abstractmethod
    async def stat(self, location: str) -> FileStatus:
        """Return a file's status; ``mtime_ms`` is the one of :meth:`read` and :meth:`list`."""

    @abstractmethod
    async def read(self, location: str, offset: int = 0, length: int | None = None) -> Found:
        """Return a file's bytes, or a range of them, and its status; never a mix of two states."""

    @abstractmethod
    async def open(self, location: str, size: int | None) -> pa.NativeFile:
        """Open a data file for random access from worker threads; the caller closes it.

        ``size`` is in bytes, where the log records it.
        """

    async def aclose(self) -> None:
        """Release connections."""

    def watch(self, folder: str) -> AbstractAsyncContextManager[Watch]:
        """Watch a folder for changes."""
        return _only_waits()

    def rest_mark(self, folder: str) -> str | None:
        """Return a mark of a folder that has not changed lately; None if that is costly to find
        out. While the mark stays the same, no file was added to the folder, removed or renamed."""
        return None

    def blocking_files(self) -> BlockingFiles | None:
        """Return the files for reads in the calling thread; None if a read has to wait."""
        return None

    def path(self, location: str) -> Path | None:
        """Return where a file lies on this machine; None if it does not."""
        return None

    def ahead(self) -> Budget | None:
        """Return the budget of bytes that may be fetched ahead for this table; None if reads are
        fast. From a store with one, the next commits are requested and the next files opened before
        their turn, small files of the log are read by :meth:`read_many`, and a file whose ``size``
        is given and at most ``WHOLE_BYTES`` is fetched whole when it is opened."""
        return None

    async def read_many(self, reads: Sequence[tuple[str, int]]) -> Sequence[Found | None]:
        """Return what :meth:`read` does for the beginnings of files, each location with the number
        of bytes to read at most; None for a file that does not exist."""
        return [await self._read_beginning(location, length) for location, length in reads]

    async def _read_beginning(self, location: str, length: int) -> Found | None:
        try:
            return await self.read(location, 0, length)
        except FileNotFoundError:
            return None

    async def entries(self, address: str) -> FolderEntries | None:
        """Return what lies right in any folder that the store reaches; None if there is no such
        folder. It is for messages, and a store that does not know raises NotImplementedError."""
        raise NotImplementedError

    async def presigner(
        self,
        at: dt.datetime,
        ttl_s: int,
    ) -> Callable[[str], str | None] | None:
        """Return a function from location to a URL that can be read without credentials for
        ``ttl_s`` seconds, or to None for a file without one; None if the store makes none."""
        return None

    async def access(self) -> str:
        """Return where the table is and as whom it is read, for people, if the address does not
        say so; "" otherwise. Never a secret."""
        return ""

    def serve(self, change_source: str) -> None:
        """Use the requests that ``change_source`` names from now on; see ``server_log``."""

    async def expect(self, location: str, version: int, *, snapshot: bool) -> None:
        """Make a file known that a version's commit names, or that version's snapshot: another
        process may have planned it, and its URL on a server is known from the log alone."""

    async def version_at_or_after(self, timestamp_ms: int) -> int | None:
        """Return the first version at or after a time in epoch ms; None if all are before it. Only
        of a ``server_log``: for another, the commits are listed."""
        raise NotImplementedError


@asynccontextmanager
async def _only_waits() -> AsyncIterator[Watch]:
    yield Watch()


def make_outside_error(table: str, location: str, leads_to: str = "") -> TableError:
    """Return the error for a file of the log that is neither in the table's folder nor in one that
    the configuration names. Anyone who writes to the table could have any file read by it."""
    return TableError(
        "the log refers to a file outside the table's folder"
        + (f": it leads to {leads_to}" if leads_to else ""),
        table=table,
        path=location,
        hint="if it may be read, as the files that a shallow clone shares may, name its folder as "
        "`also` of the feed, or by --store-option also=FOLDER",
    )
