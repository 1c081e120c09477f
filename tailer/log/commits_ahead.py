"""Commits that are requested ahead, from a store that answers slowly."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial

import anyio

from tailer.delta.commit import Commit
from tailer.log.json_files import MEMORY_BYTES_MAX
from tailer.log.table import TableLog
from tailer.store.budget import Budget

__all__ = ["Coming", "CommitsAhead", "NotThen"]

#: Most commits that are requested ahead.
_COMMITS_MAX = 3


class NotThen(Exception):
    """A version did not exist when it was requested ahead, and that was some time ago."""


class Coming:
    """A commit requested ahead at ``since`` (by the event loop's clock).

    After it arrives, ``then`` is called with it, and ``unchanged`` checks that the commit before is
    still the same. Its size is unknown until then, so it takes the most that a commit may keep in
    memory from the budget.
    """

    def __init__(
        self,
        commit: Callable[[], Coroutine[None, None, Commit]],
        unchanged: Callable[[], Coroutine[None, None, bool]],
        then: Callable[[Commit], None],
        budget: Budget,
    ) -> None:
        self.since = anyio.current_time()
        self._commit, self._unchanged, self._then = commit, unchanged, then
        self._budget, self._taken = budget, MEMORY_BYTES_MAX
        self._task = asyncio.create_task(self._come())

    async def _come(self) -> tuple[Commit, bool]:
        try:
            commit = await self._commit()
        except BaseException:
            self._give(self._taken)  # free the budget now, not only when this commit is taken
            raise
        self._give(self._taken - min(commit.size, self._taken))
        self._then(commit)
        return commit, await self._unchanged()

    def _give(self, size: int) -> None:
        self._taken -= size
        self._budget.give(size)

    async def get(self) -> tuple[Commit, bool]:
        """Return the commit, and whether the commit before was unchanged after this one arrived."""
        return await self._task

    async def let_go(self) -> None:
        """Cancel it if it has not ended, and free its budget."""
        with anyio.CancelScope(shield=True):
            self._task.cancel()
            await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.exception()  # retrieved only: no caller needs it any more
        self._give(self._taken)


class CommitsAhead:
    """The commits requested ahead, up to version ``last``; none if the store does not read ahead.

    ``unchanged`` returns whether a commit is still the very same file.
    """

    def __init__(
        self,
        log: TableLog,
        last: int | None,
        unchanged: Callable[[Commit], Coroutine[None, None, bool]],
    ) -> None:
        self._log = log
        self._last = last
        self._unchanged = unchanged
        self._budget = log.store.ahead()
        self._coming: deque[Coming] = deque()

    def __bool__(self) -> bool:
        return bool(self._coming)

    def start(self, before: Commit) -> None:
        """Request the commit after this one while earlier ones are processed, if the store is slow.

        When it has arrived, request the one after it.
        """
        version = before.version + 1
        if self._budget is None or len(self._coming) >= _COMMITS_MAX:
            return
        if (self._last is None or version <= self._last) and self._budget.take(MEMORY_BYTES_MAX):
            commit = partial(self._log.commit, version, before.after, before.timestamp_ms)
            unchanged = partial(self._unchanged, before)
            self._coming.append(Coming(commit, unchanged, self.start, self._budget))

    async def take(self, patience_s: float) -> tuple[Commit, bool]:
        """Return the next commit, and whether the one before it is still the same file.

        Raises FileNotFoundError if it does not exist yet, :class:`NotThen` if that was found longer
        than ``patience_s`` ago.
        """
        coming = self._coming.popleft()
        try:
            return await coming.get()
        except FileNotFoundError:
            if anyio.current_time() - coming.since >= patience_s:
                raise NotThen from None
            raise
        finally:
            await coming.let_go()

    async def aclose(self) -> None:
        """Cancel all requests."""
        while self._coming:
            await self._coming.pop().let_go()
