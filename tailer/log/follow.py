"""Following a table's log as it grows.

A version is passed only after its commit was read, and versions are contiguous and of one table.
Every violation is an error by name: a gap, a table that was replaced or went back. A log without
any version is not trusted: its file system may not be mounted.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing
from itertools import takewhile

import anyio
from msgspec import Struct

from tailer.changes import Offset
from tailer.delta.commit import Commit
from tailer.delta.segment import commit_name
from tailer.delta.snapshot import TableState
from tailer.log.commits_ahead import CommitsAhead, NotThen
from tailer.log.listing import versions_of
from tailer.log.same_table import SameTable, Witness
from tailer.log.table import TableLog
from tailer.store import LOG_DIR, Watch
from tailer.store.brought import Brought
from tailer.store.budget import Budget
from tailer.threads import blocking

__all__ = ["RUN_COMMITS_MAX", "FollowOptions", "follow", "follow_runs"]

#: The most commits of a backlog that are read at once.
RUN_COMMITS_MAX = 256
#: A larger commit of a backlog on a server is read by itself.
_BROUGHT_BYTES_MAX = 256 * 1024

#: Feeds with long pauses poll together with those of the same quarter of a second.
_TICK_S = 0.25


class FollowOptions(Struct, frozen=True):
    """How to wait for the next commit, in seconds, and what may follow it.

    Polling starts at ``poll_min_s`` after a commit and doubles up to ``poll_max_s``; until then
    each pause is shortened by a random part, up to a half. With ``same_table``, a commit that
    replaces the table by one with another id ends the following; a bounded read of a log's versions
    need not stop there.
    """

    poll_min_s: float = 0.5
    poll_max_s: float = 5.0
    same_table: bool = True


async def follow(
    log: TableLog,
    start: Offset,
    last: int | None = None,
    options: FollowOptions | None = None,
    newest: Callable[[int], None] = lambda _: None,
) -> AsyncGenerator[Commit, None]:
    """Yield the commits of :func:`follow_runs`, one by one."""
    async with aclosing(follow_runs(log, start, last, options, newest)) as runs:
        async for commits in runs:
            for commit in commits:
                yield commit


def follow_runs(
    log: TableLog,
    start: Offset,
    last: int | None = None,
    options: FollowOptions | None = None,
    newest: Callable[[int], None] = lambda _: None,
    waits: Callable[[TableState], None] = lambda _: None,
) -> AsyncGenerator[list[Commit], None]:
    """Yield the commits from an offset's version on, contiguous and of one table, as they appear:
    in runs of as many as are there, at most :data:`RUN_COMMITS_MAX`.

    Ends after version ``last``; without one, never. ``newest`` is called with the newest version of
    the table whenever it changes. ``waits`` is called with the state of the newest version when
    the next one does not exist yet. Raises :class:`DataLoss` for a gap or a version that is gone,
    :class:`TableReplaced` if the table is no longer the same, :class:`OffsetError` if it was
    another one from the start.
    """
    same = SameTable(log)
    return _Follower(same, options or FollowOptions(), newest, last, waits).runs(start)


def _spread(asked_at: float, pause: float, *, last: bool) -> float:
    """Return when to poll again after a pause; ``last``: the longest pause, which repeats.

    Hundreds of feeds that began together must not go on polling all at once, each waiting for the
    others' answers, so the shorter pauses differ. With the longest pause, some feeds poll together:
    one by one they take a third more processor time.
    """
    if not last:
        return asked_at + pause * random.uniform(0.5, 1.0)
    if pause < 4 * _TICK_S:
        return asked_at + pause
    return round((asked_at + pause) / _TICK_S) * _TICK_S


class _Next(Struct, frozen=True):
    """The version to read next, with the state, timestamp and commit before it, if known."""

    version: int
    state: TableState | None
    floor_ms: int | None
    witness: Commit | Witness | None


class _Follower:
    """Polls the log. :class:`SameTable` checks the table, and :class:`CommitsAhead` reads ahead."""

    def __init__(
        self,
        same: SameTable,
        options: FollowOptions,
        newest: Callable[[int], None],
        last: int | None,
        waits: Callable[[TableState], None],
    ) -> None:
        self.log = same.log
        self.options = options
        self.newest = -1
        self._tell = newest
        self._waits = waits
        self._check_at = 0.0  # by the event loop's clock
        self._last = last
        self._watching = AsyncExitStack()
        self._watch: Watch | None = None  # a range of versions that are there needs none
        self._same = same
        self._ahead = CommitsAhead(self.log, last, same.unchanged)

    async def runs(self, start: Offset) -> AsyncGenerator[list[Commit], None]:
        # Seen before the state is read: a table that replaces this one later is noticed.
        witness = await self._same.witness(start.version - 1)
        state = await self._same.state_at(start)
        at = _Next(start.version, state, start.timestamp_floor_ms, witness)
        async with self._watching, aclosing(self._ahead):
            while self._last is None or at.version <= self._last:
                commit, unchanged = await self._poll(at)
                if not unchanged:
                    await self._same.check_table(commit, at.state)
                if self.options.same_table:
                    known = start.table_id if at.state is None else at.state.table_id
                    self._same.check_id(commit, known)
                commits = [commit, *await self._more(commit)]
                commit = commits[-1]
                if commit.version > self.newest:
                    self.newest = commit.version
                    self._tell(commit.version)
                at = _Next(commit.version + 1, commit.after, commit.timestamp_ms, commit)
                if not self._ahead and commit.version >= self.newest:
                    self._ahead.start(commit)
                yield commits

    async def _more(self, commit: Commit) -> list[Commit]:
        """Return the commits after this one that are there already, if they are read quickly."""
        if self._ahead:
            return []
        store = self.log.store
        there = self.newest if self._last is None else min(self.newest, self._last)
        count = min(RUN_COMMITS_MAX - 1, there - commit.version)
        if count <= 0:
            return []
        here, budget = store.blocking_files(), store.ahead()
        if here is None and budget is not None:
            here = await self._brought(commit, count, budget)
        if here is None:
            return []
        found = await blocking(self.log.commits_here, commit, count, here)
        if not self.options.same_table:
            return found
        return list(takewhile(lambda one: one.after.table_id == commit.after.table_id, found))

    async def _brought(self, commit: Commit, count: int, budget: Budget) -> Brought | None:
        """Return the commits after this one, at most ``count``, as many as the budget has room for;
        None if it has none, or if the table was replaced meanwhile."""
        while count > 0 and not budget.take(count * _BROUGHT_BYTES_MAX):
            count //= 2
        if not count:
            return None
        try:
            versions = range(commit.version + 1, commit.version + 1 + count)
            reads = [(commit_name(version), _BROUGHT_BYTES_MAX) for version in versions]
            brought = await self.log.brought(reads)
            # It is unchanged after all of them were read: they are of the same table.
            return brought if await self._same.unchanged(commit) else None
        finally:
            budget.give(count * _BROUGHT_BYTES_MAX)

    async def _poll(self, at: _Next) -> tuple[Commit, bool]:
        """Return the next commit once it exists, and whether the one before it is unchanged."""
        pause, waited, rest = self.options.poll_min_s, False, None
        while True:
            mark, asked_at = self.log.store.rest_mark(LOG_DIR), anyio.current_time()
            try:
                if mark is None or mark != rest:
                    commit, unchanged = await self._look(at)
                    if at.version > self.newest:
                        await self._learn_newest(at.version, backlog=not waited)
                    return commit, unchanged
            except NotThen:
                continue
            except FileNotFoundError:
                rest = mark
                if at.state is not None:
                    self._waits(at.state)
                if anyio.current_time() >= self._check_at:
                    known = None
                    if at.state is not None and self.options.same_table:
                        known = at.state.table_id
                    await self._same.check_waiting(at.version, at.witness, known)
                    check_s = self.log.store.check_s
                    self._check_at = asked_at + check_s * random.uniform(0.5, 1.0)
                if at.version > self.newest + 1:
                    self.newest = at.version - 1  # the offset is at the log's end
                    self._tell(self.newest)
            if self._watch is None:  # from here on; what came just before is looked for again
                begun = self.log.store.watch(LOG_DIR)
                self._watch = await self._watching.enter_async_context(begun)
                rest = None
                continue
            then = _spread(asked_at, pause, last=pause == self.options.poll_max_s)
            await self._watch.wait(max(then - anyio.current_time(), self.options.poll_min_s))
            waited = True
            pause = min(pause * 2, self.options.poll_max_s)

    async def _look(self, at: _Next) -> tuple[Commit, bool]:
        """Return the commit, and whether the one before it is still the same file.

        Raises FileNotFoundError if it does not exist yet, :class:`NotThen` if that was long ago.
        """
        if self._ahead:
            return await self._ahead.take(self.options.poll_min_s)
        commit = await self.log.commit(at.version, at.state, at.floor_ms)
        if at.witness is None:
            return commit, at.state is None
        if self.log.is_settled(commit):
            return commit, True
        return commit, await self._same.unchanged(at.witness)

    async def _learn_newest(self, version: int, *, backlog: bool) -> None:
        """Find the newest version, listing the log if there may be a later one than this."""
        self.newest = version
        if backlog and (self._last is None or version < self._last):
            files = self.log.listed or await self.log.files(commit_name(version))
            self.newest = max([version, *versions_of(files)])
        self._tell(self.newest)
