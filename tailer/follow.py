"""Following a table's log as it grows.

A version is passed only after its commit was read, versions are contiguous and of one table, and
whatever speaks against that is an error by name: a gap, a table that was replaced or went back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass

import anyio

from tailer.changes import Offset
from tailer.delta.commit import Commit
from tailer.delta.segment import LogKind, commit_name
from tailer.delta.snapshot import TableState
from tailer.errors import DataLoss, OffsetError, TableReplaced, TransientError
from tailer.log import COMMIT_MEMORY_BYTES_MAX, DeltaLog, versions_of
from tailer.store import LOG_DIR, ReadsAhead, Watch, rest_mark, traits_of
from tailer.store.ahead import Budget

__all__ = ["FollowOptions", "follow"]


@dataclass(frozen=True, slots=True)
class FollowOptions:
    """How to wait for the next commit, in seconds, and what may follow it.

    Polling starts at ``poll_min_s`` after a commit and doubles up to ``poll_max_s``. With
    ``same_table``, a commit that replaces the table by one with another id ends the following; a
    bounded read of a log's versions has no reason to stop there.
    """

    poll_min_s: float = 0.5
    poll_max_s: float = 5.0
    same_table: bool = True


def follow(
    log: DeltaLog,
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


class _NotThen(Exception):
    """A version was not there when it was asked for ahead, and that is some time ago."""


class _Coming:
    """The next commit on its way, asked for ``since``, by the event loop's clock.

    Nobody knows its size until it is there: it has the most of the budget that one keeps in memory.
    """

    def __init__(self, work: Coroutine[None, None, tuple[Commit, bool]], budget: Budget) -> None:
        self.since = anyio.current_time()
        self.task = asyncio.create_task(work)
        self._budget, self._taken = budget, COMMIT_MEMORY_BYTES_MAX
        self.task.add_done_callback(self._shrink)

    def _shrink(self, task: asyncio.Task[tuple[Commit, bool]]) -> None:
        found = not task.cancelled() and task.exception() is None
        self._give(self._taken - (min(task.result()[0].size, self._taken) if found else 0))

    def _give(self, size: int) -> None:
        self._taken -= size
        self._budget.give(size)

    async def let_go(self) -> None:
        """End it, if it has not ended; nothing of it is counted any more."""
        self.task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([self.task])
        self._give(self._taken)


class _Follower:
    def __init__(
        self, log: DeltaLog, options: FollowOptions, newest: Callable[[int], None]
    ) -> None:
        self.log = log
        self.options = options
        self.newest = -1
        self._tell = newest
        self._check_at = 0.0  # by the event loop's clock
        self._budget = log.store.ahead() if isinstance(log.store, ReadsAhead) else None
        self._coming: _Coming | None = None

    async def commits(self, start: Offset, last: int | None = None) -> AsyncGenerator[Commit, None]:
        state = await self.log.state_before(start.version)
        if state is not None and start.table_id not in (None, state.table_id):
            raise OffsetError(
                f"the offset is of table {start.table_id}, and the table there is {state.table_id}",
                table=self.log.store.root,
                hint="reset the offset if the table was replaced on purpose",
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
                if last is None or version <= last:
                    self._start_ahead(version, state, floor, witness)
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
            mark = rest_mark(self.log.store, LOG_DIR)
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
                    self._check_at = anyio.current_time() + traits_of(self.log.store).check_s
            await watch.wait(pause)
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
        coming, self._coming = self._coming, None
        if coming is not None:
            try:
                return await coming.task
            except FileNotFoundError:
                if anyio.current_time() - coming.since >= self.options.poll_min_s:
                    raise _NotThen from None
                raise
            finally:
                await coming.let_go()
        return await self._read(version, state, floor, witness)

    async def _read(
        self,
        version: int,
        state: TableState | None,
        floor: int | None,
        witness: Commit | None,
    ) -> tuple[Commit, bool]:
        commit = await self.log.commit(version, state, floor)
        return commit, witness is None or await self._unchanged(witness)

    def _start_ahead(self, version: int, state: TableState, floor: int, witness: Commit) -> None:
        """Ask for the next commit while this one is worked on, where that takes its time."""
        if self._budget is not None and self._budget.take(COMMIT_MEMORY_BYTES_MAX):
            work = self._read(version, state, floor, witness)
            self._coming = _Coming(work, self._budget)

    async def aclose(self) -> None:
        """Ask for nothing more."""
        coming, self._coming = self._coming, None
        if coming is not None:
            await coming.let_go()

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
            newest = max(versions_of(await self.log.files()), default=None)
            if (newest is None or newest < version - 1) and not await self.log.has_commit(
                version - 1
            ):
                raise TableReplaced(
                    "the table is gone"
                    if newest is None
                    else f"the table went back to version {newest}",
                    table=self.log.store.root,
                    version=version,
                    hint="it was deleted, or an older copy was restored; reset the offset",
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
                hint="reset the offset, or start with a snapshot",
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
            hint="reset the offset to follow the new table",
        )
