"""Commits requested ahead of their turn, from a store that answers slowly.

While the sink is busy with a commit, the next one is requested, and when that has arrived the one
after it. Its predecessor is looked up after it arrived, as a cursor wants it.

What must never happen: bytes are fetched that the budget has no room for; an answer that is old
ends the wait for a commit (:class:`NotThere` says when it was asked for); a request outlives its
reader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import anyio

from tailer.delta.segment import format_commit_name
from tailer.log.json_files import MEMORY_BYTES_MAX, CommitText
from tailer.log.questions import FileTag, NotThere, Torn
from tailer.log.readers import LogReader
from tailer.store import BlockingFiles
from tailer.store.budget import Budget

#: The most commits that are requested ahead.
_REQUESTS_MAX = 3


class AheadReader(LogReader):
    """Requests commits of another reader ahead; ``tag`` looks up a file of the log."""

    def __init__(
        self, reader: LogReader, tag: Callable[[str], Awaitable[str | None]], budget: Budget
    ) -> None:
        self._reader = reader
        self._tag = tag
        self._budget = budget
        self._requests: dict[int, _Request] = {}

    async def read_commit(self, version: int, asked_at: float) -> CommitText | NotThere | Torn:
        request = self._requests.pop(version, None)
        if request is None:
            return await self._reader.read_commit(version, asked_at)
        try:
            return await request.task
        finally:
            await request.aclose()

    async def find_blocking_files(
        self, reads: Sequence[tuple[str, int]], after: str | None = None
    ) -> BlockingFiles | None:
        return None if self._requests else await self._reader.find_blocking_files(reads, after)

    def request_ahead(self, version: int, last: int | None) -> None:
        """See :class:`LogReader`: unless requests are under way."""
        if not self._requests:
            self._start_request(version, last)

    def _start_request(self, version: int, last: int | None) -> None:
        within = last is None or version <= last
        if (
            within
            and len(self._requests) < _REQUESTS_MAX
            and self._budget.try_take(MEMORY_BYTES_MAX)
        ):
            request = _Request(self._budget)
            # A task of its own: whoever follows a log is a generator, which can't have a group.
            request.task = asyncio.create_task(self._read_requested(request, version, last))
            self._requests[version] = request

    async def _read_requested(
        self, request: _Request, version: int, last: int | None
    ) -> CommitText | NotThere | Torn:
        size = 0
        try:
            text = await self._reader.read_commit(version, anyio.current_time())
            if not isinstance(text, CommitText):
                return text
            size = text.status.size
        finally:
            request.keep_bytes(size)  # now, not only when somebody wants the answer
        self._start_request(version + 1, last)
        predecessor = FileTag(await self._tag(format_commit_name(version - 1)))
        return CommitText(text.lines, text.status, predecessor)

    async def aclose(self) -> None:
        while self._requests:
            await self._requests.popitem()[1].aclose()


class _Request:
    """A request under way, and its bytes of the budget: the size of the answer is unknown until it
    arrives, so it begins with the most that a commit keeps in memory."""

    task: asyncio.Task[CommitText | NotThere | Torn]

    def __init__(self, budget: Budget) -> None:
        self._budget, self._taken = budget, MEMORY_BYTES_MAX

    def keep_bytes(self, size: int) -> None:
        """Give back all bytes but ``size``."""
        size = min(size, self._taken)
        self._budget.give_back(self._taken - size)
        self._taken = size

    async def aclose(self) -> None:
        """Cancel it if it has not ended, and give back its bytes."""
        with anyio.CancelScope(shield=True):
            self.task.cancel()
            await asyncio.wait([self.task])
        if not self.task.cancelled():
            self.task.exception()  # retrieved only: it is no longer needed
        self.keep_bytes(0)
