"""Following a table's log as it grows.

A version is passed only after its commit was read, versions are contiguous and of one table, and
whatever speaks against that is an error by name: a gap, a table that was replaced or went back. A
log that has no version at all is not believed: its file system may not be mounted.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

import anyio

from tailer.changes import Offset
from tailer.delta.commit import Commit
from tailer.delta.segment import LogKind, commit_name
from tailer.delta.snapshot import TableState
from tailer.errors import DataLoss, OffsetError, TableError, TableReplaced, TransientError
from tailer.log.json_files import MEMORY_BYTES_MAX
from tailer.log.table import TableLog, versions_of
from tailer.store import LOG_DIR, ReadsAhead, Watch, rest_mark, traits_of
from tailer.store.budget import Budget

__all__ = ["FollowOptions", "check_there", "follow"]

#: So many commits are had before their turn at most.
_COMMITS_AHEAD_MAX = 3
#: Feeds whose pauses are long ask together with those of the same quarter of a second.
_TICK_S = 0.25


@dataclass(frozen=True, slots=True)
class FollowOptions:
    """How to wait for the next commit, in seconds, and what may follow it.

    Polling starts at ``poll_min_s`` after a commit and doubles up to ``poll_max_s``; the pauses
    until then are up to a half shorter, by chance. With
    ``same_table``, a commit that replaces the table by one with another id ends the following; a
    bounded read of a log's versions has no reason to stop there.
    """

    poll_min_s: float = 0.5
    poll_max_s: float = 5.0
    same_table: bool = True


def follow(
    log: TableLog,
    start: Offset,
    last: int | None = None,
    options: FollowOptions | None = None,
    newest: Callable[[int], None] = lambda _: None,
) -> AsyncGenerator[Commit, None]:
    """The commits from an offset's version on, contiguous and of one table, as they come.

    Ends after version ``last``; never, without one. ``newest`` is told the newest version of the
    table whenever another one becomes known. Raises :class:`DataLoss` for a gap or a
    version that is gone, :class:`TableReplaced` if the table is no longer the same,
    :class:`OffsetError` if it was another one from the start.
    """
    return _Follower(log, options or FollowOptions(), newest).commits(start, last)


async def check_there(log: TableLog, version: int) -> None:
    """Raise :class:`TransientError` if a table that was there has no version any more.

    It was moved away, or its file system is not mounted: then whatever else is missing proves
    nothing. One that was deleted is waited for as well, for nobody can tell.
    """
    if not versions_of(await log.files()):
        raise TransientError(
            f"{log.store.root}, version {version}: the table is gone, its {LOG_DIR} has no commit; "
            "the feed waits until it is back: mount or restore it, or stop the feed"
        )


def _spread(asked_at: float, pause: float, *, last: bool) -> float:
    """When to ask again after so long a pause; ``last``: the longest, which comes again and again.

    Hundreds of feeds that began together must not go on asking all at once, each waiting for the
    others' answers, so on the way there the pauses differ. Some at a time should ask together: one
    by one they cost a third more of the processor.
    """
    if not last:
        return asked_at + pause * random.uniform(0.5, 1.0)
    if pause < 4 * _TICK_S:
        return asked_at + pause
    return round((asked_at + pause) / _TICK_S) * _TICK_S


class _NotThen(Exception):
    """A version was not there when it was asked for ahead, and that is some time ago."""


class _Coming:
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


class _Follower:
    def __init__(
        self, log: TableLog, options: FollowOptions, newest: Callable[[int], None]
    ) -> None:
        self.log = log
        self.options = options
        self.newest = -1
        self._tell = newest
        self._check_at = 0.0  # by the event loop's clock
        self._budget = log.store.ahead() if isinstance(log.store, ReadsAhead) else None
        self._coming: deque[_Coming] = deque()
        self._last: int | None = None

    async def commits(self, start: Offset, last: int | None = None) -> AsyncGenerator[Commit, None]:
        self._last = last
        try:
            state = await self.log.state_before(start.version)
        except TableError:
            if start.table_id is not None:  # it has been there
                await check_there(self.log, start.version)
            raise
        if state is not None and start.table_id not in (None, state.table_id):
            raise OffsetError(
                f"the offset is of table {start.table_id}, and the table there is {state.table_id}",
                table=self.log.store.root,
                hint="if it was replaced on purpose, reset the offset with `tailer offsets reset`",
            )
        version, floor = start.version, start.timestamp_floor_ms
        witness: Commit | None = None
        async with self.log.store.watch(LOG_DIR) as watch, aclosing(self):
            while last is None or version <= last:
                commit, unchanged = await self._next(version, state, floor, witness, watch)
                if not unchanged:
                    await self._check_same_table(commit, state)
                if self.options.same_table:
                    self._check_id(commit, start.table_id if state is None else state.table_id)
                version, state, floor = version + 1, commit.after, commit.timestamp_ms
                witness = commit
                if not self._coming:
                    self._start_ahead(witness)
                yield commit

    async def _next(
        self,
        version: int,
        state: TableState | None,
        floor: int | None,
        witness: Commit | None,
        watch: Watch,
    ) -> tuple[Commit, bool]:
        """The commit of ``version`` as soon as it is there, and whether the one before it is still
        the same."""
        pause, waited, rest = self.options.poll_min_s, False, None
        while True:
            mark, asked_at = rest_mark(self.log.store, LOG_DIR), anyio.current_time()
            try:
                if mark is None or mark != rest:
                    commit, unchanged = await self._look(version, state, floor, witness)
                    if version > self.newest:
                        await self._learn_newest(version, backlog=not waited)
                    return commit, unchanged
            except _NotThen:
                continue
            except FileNotFoundError:
                rest = mark
                if anyio.current_time() >= self._check_at:
                    await self._check_waiting(version, witness)
                    check_s = traits_of(self.log.store).check_s
                    self._check_at = asked_at + check_s * random.uniform(0.5, 1.0)
            then = _spread(asked_at, pause, last=pause == self.options.poll_max_s)
            await watch.wait(max(then - anyio.current_time(), self.options.poll_min_s))
            waited = True
            pause = min(pause * 2, self.options.poll_max_s)

    async def _look(
        self,
        version: int,
        state: TableState | None,
        floor: int | None,
        witness: Commit | None,
    ) -> tuple[Commit, bool]:
        """The commit, and whether the one before it is still the same file. Raises
        FileNotFoundError where there is none yet, :class:`_NotThen` if that was long ago."""
        if self._coming:
            coming = self._coming.popleft()
            try:
                return await coming.get()
            except FileNotFoundError:
                if anyio.current_time() - coming.since >= self.options.poll_min_s:
                    raise _NotThen from None
                raise
            finally:
                await coming.let_go()
        commit = await self.log.commit(version, state, floor)
        return commit, witness is None or await self._unchanged(witness)

    def _start_ahead(self, before: Commit) -> None:
        """Ask for the commit after this one while those before are worked on, where that takes its
        time; and when it is there, for the one after it."""
        version = before.version + 1
        if self._budget is None or len(self._coming) >= _COMMITS_AHEAD_MAX:
            return
        if (self._last is None or version <= self._last) and self._budget.take(MEMORY_BYTES_MAX):
            commit = partial(self.log.commit, version, before.after, before.timestamp_ms)
            unchanged = partial(self._unchanged, before)
            self._coming.append(_Coming(commit, unchanged, self._start_ahead, self._budget))

    async def aclose(self) -> None:
        """Ask for nothing more."""
        while self._coming:
            await self._coming.pop().let_go()

    async def _learn_newest(self, version: int, *, backlog: bool) -> None:
        """Look how far the log goes, where there may be more than this version already."""
        self.newest = version
        if backlog:
            self.newest = max([version, *versions_of(await self.log.files(commit_name(version)))])
        self._tell(self.newest)

    async def _unchanged(self, witness: Commit) -> bool:
        """Whether the commit read last is still the very same file."""
        try:
            return (await self.log.store.stat(f"{LOG_DIR}/{witness.name}")).tag == witness.tag
        except FileNotFoundError:
            return False

    async def _check_waiting(self, version: int, witness: Commit | None) -> None:
        """Make sure, while ``version`` is not there, that it is only not written yet.

        A listing alone proves no loss: some stores' are older than what is there.
        """
        files = await self.log.files(f"{version:020d}")
        newer = [v for v in versions_of(files) if v > version]
        if newer:
            try:
                await self.log.store.stat(f"{LOG_DIR}/{commit_name(version)}")
            except FileNotFoundError:
                if any(f.version == version and f.kind is LogKind.COMMIT for f in files):
                    raise TransientError(
                        f"{self.log.store.root}: version {version} is listed and can't be read"
                    ) from None
                raise DataLoss(
                    f"the commit is missing, though version {min(newer)} exists",
                    table=self.log.store.root,
                    version=version,
                    path=commit_name(version),
                    hint="the log was cleaned up or a file was lost; start at a newer version, "
                    "or with a snapshot",
                ) from None
        elif witness is None or not await self._unchanged(witness):
            await check_there(self.log, version)
            newest = max(versions_of(await self.log.files()), default=-1)
            if newest < version - 1 and not await self.log.has_commit(version - 1):
                raise TableReplaced(
                    f"the table went back to version {newest}",
                    table=self.log.store.root,
                    version=version,
                    hint="an older copy was restored; reset the offset with `tailer offsets reset`",
                )

    async def _check_same_table(self, commit: Commit, state: TableState | None) -> None:
        """Make sure that this is still the table we followed, once the commit before is another.

        A new table under the old path may well have more versions than the old one, and its
        commits need not say whose they are; only its snapshot does.
        """
        try:
            now = (await self.log.snapshot(commit.version)).state
        except DataLoss as e:
            raise TableReplaced(
                "the commit before this one has changed or is gone, and this version's snapshot "
                "can't be built to see whose it is",
                table=self.log.store.root,
                version=commit.version,
                hint="reset the offset with `tailer offsets reset`, or start with a snapshot",
            ) from e
        if state is not None and now.table_id != state.table_id:
            raise self._replaced(commit.version, state.table_id, now.table_id)

    def _check_id(self, commit: Commit, table_id: str | None) -> None:
        if table_id is not None and commit.after.table_id != table_id:
            raise self._replaced(commit.version, table_id, commit.after.table_id)

    def _replaced(self, version: int, was: str, now: str) -> TableReplaced:
        return TableReplaced(
            f"the table was replaced by another one: its id was {was} and is {now}",
            table=self.log.store.root,
            version=version,
            hint="reset the offset with `tailer offsets reset` to follow the new table",
        )
