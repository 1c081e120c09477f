"""Following a table's log as it grows.

A version is passed only after its commit was read, versions are contiguous and of one table, and
whatever speaks against that is an error by name: a gap, a table that was replaced or went back.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

import anyio

from tailer.changes import Offset
from tailer.delta.commit import Commit
from tailer.delta.segment import LogKind, commit_name
from tailer.delta.snapshot import TableState
from tailer.errors import DataLoss, OffsetError, TableReplaced, TransientError
from tailer.log import DeltaLog, versions_of
from tailer.store import LOG_DIR, Watch, rest_mark, traits_of

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


class _Follower:
    def __init__(
        self, log: DeltaLog, options: FollowOptions, newest: Callable[[int], None]
    ) -> None:
        self.log = log
        self.options = options
        self.newest = -1
        self._tell = newest
        self._check_at = 0.0  # by the event loop's clock

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
        async with self.log.store.watch(LOG_DIR) as watch:
            while last is None or version <= last:
                commit = await self._next(version, state, floor, witness, watch)
                if witness is not None and not await self._unchanged(witness):
                    await self._check_same_table(commit, state)
                if self.options.same_table:
                    self._check_id(commit, start.table_id if state is None else state.table_id)
                yield commit
                version, state, floor = version + 1, commit.after, commit.timestamp_ms
                witness = commit

    async def _next(
        self,
        version: int,
        state: TableState | None,
        floor: int | None,
        witness: Commit | None,
        watch: Watch,
    ) -> Commit:
        """The commit of ``version`` as soon as it is there."""
        pause, waited, rest = self.options.poll_min_s, False, None
        while True:
            mark = rest_mark(self.log.store, LOG_DIR)
            try:
                if mark is None or mark != rest:
                    commit = await self.log.commit(version, state, floor)
                    if version > self.newest:
                        await self._learn_newest(version, backlog=not waited)
                    return commit
            except FileNotFoundError:
                rest = mark
                if anyio.current_time() >= self._check_at:
                    await self._check_waiting(version, witness)
                    self._check_at = anyio.current_time() + traits_of(self.log.store).check_s
            await watch.wait(pause)
            waited = True
            pause = min(pause * 2, self.options.poll_max_s)

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
