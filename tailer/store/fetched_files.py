"""Small files read from a store at once, for code that reads them in the calling thread.

A server answers many small requests side by side in the time of one. What is made of the files
(commits, decoded rows) then takes one step in a worker thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tailer.store import BlockingFiles, FileStatus, Found

if TYPE_CHECKING:
    import pyarrow as pa


class NotFetched(LookupError):
    """The bytes of a file are not here, or not all of them; read it from the store."""


class FetchedFiles(BlockingFiles):
    """Files of a store, by location; None: there is no such file.

    Its methods are those of :class:`tailer.store.Store`, without waiting. They raise
    FileNotFoundError for a file that does not exist, and :class:`NotFetched`.
    """

    def __init__(self, root: str, files: Mapping[str, Found | None]) -> None:
        self._root = root
        self._files = files

    @property
    def root(self) -> str:
        return self._root

    def stat_here(self, location: str) -> FileStatus:
        """Return a file's status, as it was when the file was read."""
        return self._find_file(location)[1]

    def read_here(self, location: str, offset: int = 0, length: int | None = None) -> Found:
        """Return a file's bytes, or a range of them, and its status."""
        data, status = self._find_file(location)
        end = status.size if length is None else min(status.size, offset + length)
        if end > len(data):
            raise NotFetched(location)
        return data[offset:end], status

    def open_here(self, location: str) -> pa.NativeFile:
        """Open a file that was fetched whole."""
        import pyarrow as pa  # on demand: a log is read without it

        return pa.BufferReader(self.read_here(location)[0])

    def _find_file(self, location: str) -> Found:
        try:
            found = self._files[location]
        except KeyError:
            raise NotFetched(location) from None
        if found is None:
            raise FileNotFoundError(location)
        return found
