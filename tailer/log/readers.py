"""How a store is asked for the files of a log; only :meth:`TableLog.open_reader` chooses.

Each reader reads the next commit (``read_commit``), many small files in one step
(``find_blocking_files``), and may request commits early (``request_ahead``). What
they read says nothing about the table: commits are parsed by :class:`tailer.log.table.TableLog`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import takewhile

from tailer.delta.segment import format_commit_name
from tailer.log.json_files import CommitText, JsonFiles
from tailer.log.questions import NotThere, Torn
from tailer.store import LOG_DIR, BlockingFiles
from tailer.store.budget import Budget

#: A larger file of a log on a server is read by itself.
SMALL_BYTES_MAX = 256 * 1024


class LogReader(ABC):
    """One way to read a log's files. Errors are those of :class:`tailer.store.Store`."""

    @abstractmethod
    async def read_commit(self, version: int, asked_at: float) -> CommitText | NotThere | Torn:
        """Read a commit that is wanted since ``asked_at``."""

    @abstractmethod
    async def find_blocking_files(
        self, reads: Sequence[tuple[str, int]], after: str | None = None
    ) -> BlockingFiles | None:
        """Return from where files can be read in a worker thread: each name with the most bytes to
        read of it. Later ones may be left out; None if it is no quicker than one by one. Also
        returns the status of ``after``, taken once all reads have finished."""

    def request_ahead(self, version: int, last: int | None) -> None:  # noqa: B027  # it need not
        """Request the commits from a version on, up to ``last``, if that helps."""

    async def aclose(self) -> None:  # noqa: B027  # only some request ahead
        """Drop all requests."""


class PlainReader(LogReader):
    """Reads a file when it is wanted, from a store that answers at once."""

    def __init__(self, json: JsonFiles) -> None:
        self._json = json
        self._missing_at_mark: str | None = None

    async def read_commit(self, version: int, asked_at: float) -> CommitText | NotThere | Torn:
        """See :class:`LogReader`. A folder that has not changed is not searched again."""
        mark = self._json.store.rest_mark(LOG_DIR)
        if mark is not None and mark == self._missing_at_mark:
            return NotThere(asked_at, idle=True)
        try:
            return await self._json.read_commit_text(format_commit_name(version))
        except FileNotFoundError:
            self._missing_at_mark = mark
            return NotThere(asked_at)

    async def find_blocking_files(
        self,
        reads: Sequence[tuple[str, int]],  # noqa: ARG002 - all files are there
        after: str | None = None,  # noqa: ARG002
    ) -> BlockingFiles | None:
        return self._json.store.blocking_files()


class BulkReader(LogReader):
    """Asks a server for many small files at once, within a budget of bytes."""

    def __init__(self, json: JsonFiles, budget: Budget) -> None:
        self._json = json
        self._budget = budget

    async def read_commit(self, version: int, asked_at: float) -> CommitText | NotThere | Torn:
        try:
            return await self._json.read_commit_text(format_commit_name(version))
        except FileNotFoundError:
            return NotThere(asked_at)

    async def find_blocking_files(
        self, reads: Sequence[tuple[str, int]], after: str | None = None
    ) -> BlockingFiles | None:
        """See :class:`LogReader`: as many as the budget has room for."""
        reads = list(takewhile(lambda read: read[1] <= SMALL_BYTES_MAX, reads))
        while len(reads) > 1 and not self._budget.try_take(size := sum(size for _, size in reads)):
            reads = reads[: len(reads) // 2]
        if len(reads) < 2:
            return None
        try:
            return await self._json.fetch_files(reads, after)
        finally:
            self._budget.give_back(size)
