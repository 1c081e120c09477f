"""Commits that are asked for before their turn, where a store takes its time to answer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial

import anyio

from tailer.delta.commit import Commit
from tailer.log.json_files import MEMORY_BYTES_MAX
from tailer.log.table import TableLog
from tailer.store import ReadsAhead
from tailer.store.budget import Budget

__all__ = ["Coming", "CommitsAhead", "NotThen"]

#: So many commits are had before their turn at most.
_COMMITS_MAX = 3


class NotThen(Exception):
    """A version was not there when it was asked for ahead, and that is some time ago."""


class Coming:
    """A commit on its way, asked for ``since`` (by the event loop's clock), and behind it the
    question whether the one before is still the same; ``then`` is told when the commit is there.

    Nobody knows its size until then: it has the most of the budget that one keeps in memory.
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
            self._give(self._taken)  # others need not wait until somebody asks for this one
            raise
        self._give(self._taken - min(commit.size, self._taken))
        self._then(commit)
        return commit, await self._unchanged()

    def _give(self, size: int) -> None:
        self._taken -= size
        self._budget.give(size)

    async def get(self) -> tuple[Commit, bool]:
        """The commit, and whether the one before it was the same when this one was there."""
        return await self._task

    async def let_go(self) -> None:
        """End it, if it has not ended; nothing of it is counted any more."""
        with anyio.CancelScope(shield=True):
            self._task.cancel()
            await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.exception()  # nobody asks for it any more
        self._give(self._taken)


class CommitsAhead:
    """The commits on their way, up to version ``last``; none of a store that does not read ahead.

    ``unchanged`` says whether a commit is still the very same file.
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
        self._budget = log.store.ahead() if isinstance(log.store, ReadsAhead) else None
        self._coming: deque[Coming] = deque()

    def __bool__(self) -> bool:
        return bool(self._coming)

    def start(self, before: Commit) -> None:
        """Ask for the commit after this one while those before are worked on, where that takes its
        time; and when it is there, for the one after it."""
        version = before.version + 1
        if self._budget is None or len(self._coming) >= _COMMITS_MAX:
            return
        if (self._last is None or version <= self._last) and self._budget.take(MEMORY_BYTES_MAX):
            commit = partial(self._log.commit, version, before.after, before.timestamp_ms)
            unchanged = partial(self._unchanged, before)
            self._coming.append(Coming(commit, unchanged, self.start, self._budget))

    async def take(self, patience_s: float) -> tuple[Commit, bool]:
        """The next commit, and whether the one before it is still the same file.

        Raises FileNotFoundError where there is none yet, :class:`NotThen` if that was found
        longer than ``patience_s`` ago.
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
        """Ask for nothing more."""
        while self._coming:
            await self._coming.pop().let_go()
