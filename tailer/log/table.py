"""The table's log: its listing, its snapshots, and its commits one by one.

:mod:`tailer.log.follow` follows it as it grows.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import aclosing, suppress
from functools import cached_property, partial
from itertools import takewhile
from typing import TYPE_CHECKING, TypeVar

from tailer.delta.actions import Action, AddFile
from tailer.delta.add_fields import FILES
from tailer.delta.commit import Commit, Lines, read_actions, read_header
from tailer.delta.segment import LogFile, LogKind, LogSegment, commit_name, segments
from tailer.delta.snapshot import Reconciliation, Snapshot, TableState, file_key
from tailer.delta.timestamps import commit_timestamp, enablement
from tailer.errors import CorruptLog, DataLoss, TableError, TransientError
from tailer.log.json_files import JsonFiles
from tailer.log.listing import LogListing, buildable, versions_of
from tailer.log.snapshot_files import SnapshotFiles
from tailer.log.ways import Damaged, read_by_any_way
from tailer.store import LOG_DIR, BlockingFiles, FileStatus, Store
from tailer.store.brought import Brought, NotBrought, bring
from tailer.threads import blocking, in_thread

if TYPE_CHECKING:
    import pyarrow as pa

    from tailer.log.checkpoints import CheckpointReader

__all__ = ["TableLog"]

#: The files of a log that are read in one step.
_TAKEN_AT_ONCE = 512
#: A larger file of a log on a server is read by itself.
_BROUGHT_BYTES_MAX = 256 * 1024

T = TypeVar("T")
U = TypeVar("U")


class TableLog(LogListing):
    """The ``_delta_log`` of one table.

    A half-written commit is waited for up to ``torn_commit_max_s`` seconds.
    """

    def __init__(self, store: Store, *, torn_commit_max_s: float = 10.0) -> None:
        super().__init__(store)
        self.torn_commit_max_s = torn_commit_max_s
        self._json = JsonFiles(store, torn_commit_max_s)
        self._files = SnapshotFiles(self, self.lines, lambda: self._checkpoints)

    @cached_property
    def _checkpoints(self) -> CheckpointReader:
        # On demand, because many logs have no checkpoint, and pyarrow takes long to load.
        from tailer.log.checkpoints import CheckpointReader

        return CheckpointReader(self.store, self.lines)

    # Snapshots

    async def snapshot(self, version: int | None = None) -> Snapshot:
        """Return the snapshot of a version (None: the newest), without its files.

        Raises :class:`DataLoss` if the version can't be built any more, :class:`CorruptLog` if the
        log is damaged, :class:`UnsupportedTable` if it requires an unsupported feature.
        """
        files = await self.recent_files()
        if version is None:
            version = max(versions_of(files), default=-1)
            if version < 0:
                await self.latest_version()
        if not buildable(files, version):
            files = await self.files()
            await self.check_exists(files, version)
        try:
            segment = next(segments(files, version))
            return await read_by_any_way(segment, self.files, self._read_snapshot)
        except TableError as e:
            raise self.at(e) from None
        except FileNotFoundError as e:
            raise self.vanished(e) from None

    async def _read_snapshot(self, segment: LogSegment) -> Snapshot:
        reconciliation = Reconciliation()
        await self._take_deltas(reconciliation, segment)
        checkpoint = segment.checkpoint.files if segment.checkpoint else ()
        try:
            for file in checkpoint:
                reconciliation.take(await self._checkpoints.steering(file.name))
            state = reconciliation.state()
        except CorruptLog as e:
            compactions = [f for f in segment.deltas if f.kind is LogKind.COMPACTED]
            raise Damaged(checkpoint or compactions, e.at(version=segment.version)) from None
        except TableError as e:
            raise e.at(version=segment.version) from None
        return Snapshot(
            segment.version, state, segment, reconciliation.transactions, reconciliation.domains
        )

    async def _take_deltas(self, reconciliation: Reconciliation, segment: LogSegment) -> None:
        deltas = segment.deltas[::-1]
        at = 0
        while at < len(deltas):
            here, some = await self._readable_here(deltas[at : at + _TAKEN_AT_ONCE])
            if here is not None and (
                taken := await blocking(self._take_here, here, some, reconciliation)
            ):
                at += taken
                continue
            file = deltas[at]
            try:
                steering = await self._steering(file, newest=file.version == segment.version)
                await blocking(reconciliation.take, steering)
            except CorruptLog as e:
                raise Damaged([file], e) from None
            except FileNotFoundError as e:
                if file.kind is LogKind.COMMIT:
                    raise
                raise Damaged([file], self.vanished(e)) from None
            at += 1

    async def _readable_here(
        self, files: Sequence[LogFile]
    ) -> tuple[BlockingFiles | None, Sequence[LogFile]]:
        """Return from where files can be read in the calling thread, and how many of the first
        ones; a slow store is asked for all of them at once."""
        store = self.store
        here, budget = store.blocking_files(), store.ahead()
        if here is not None:
            return (here if files else None), files
        if budget is None:
            return None, []
        some = list(takewhile(lambda file: file.size <= _BROUGHT_BYTES_MAX, files))
        size = sum(file.size for file in some)
        while len(some) > 1 and not budget.take(size):
            some = some[: len(some) // 2]
            size = sum(file.size for file in some)
        if len(some) < 2:
            return None, []
        try:
            return await self.brought([(file.name, file.size) for file in some]), some
        finally:
            budget.give(size)

    async def brought(self, reads: Sequence[tuple[str, int]]) -> Brought:
        """Read files of the log at once, each with the most bytes to read of it."""
        kept = self._json.kept([name for name, _ in reads])
        reads = [(f"{LOG_DIR}/{name}", size) for name, size in reads]
        return kept or await bring(self.store, reads)

    def _take_here(
        self, here: BlockingFiles, files: Sequence[LogFile], reconciliation: Reconciliation
    ) -> int:
        """Reconcile small files in the calling thread; return how many, from the first on. The
        next one is for :meth:`_steering`, which knows its damage."""
        for number, file in enumerate(files):
            try:
                whole = self._json.whole_here(here, file.name)
                if whole is None:
                    return number
                reconciliation.take(read_actions(file.name, whole[0](), files=False))
            except (TableError, TransientError, FileNotFoundError, NotBrought):
                return number
        return len(files)

    async def _steering(self, file: LogFile, *, newest: bool) -> Iterator[Action]:
        """Return the actions of a commit or a compaction, except those of data files."""
        if newest and file.kind is LogKind.COMMIT:
            # Its writer may still be at work on it.
            lines, _ = await self._json.whole_lines(file.name, file.version)
        else:
            lines = await self.lines(file.name)
        return read_actions(file.name, lines(), files=False)

    async def live_files(
        self, snapshot: Snapshot, fields: Sequence[str] = FILES
    ) -> AsyncGenerator[AddFile, None]:
        """Yield the snapshot's files: memory grows with the commits after the checkpoint only.

        ``fields`` are those that are read of a checkpoint's adds. Nothing is yielded before the
        checkpoint's list and all compactions are read to their end. Raises :class:`CorruptLog` if
        the log is damaged and no way round is left, :class:`TransientError` if the checkpoint has
        been cleaned up since the snapshot was read.
        """
        live = Reconciliation().live
        found = self.live(
            snapshot, fields, _adds_of, lambda n, lines: read_actions(n, lines()), live
        )
        async with aclosing(found) as batches:
            async for adds in batches:
                for add in adds:
                    yield add

    def live(
        self,
        snapshot: Snapshot,
        fields: Sequence[str],
        of_batch: Callable[[pa.RecordBatch], Iterator[T]],
        of_lines: Callable[[str, Lines], Iterator[T]],
        live: Callable[..., Iterator[U]],
    ) -> AsyncGenerator[list[U], None]:
        """Yield the snapshot's adds, in lists: the newest commits' first, then the checkpoint's.

        ``of_batch`` and ``of_lines`` make actions from the log's content; ``fields`` are read of a
        checkpoint's adds. ``live`` leaves out those that are not in the table, as
        :meth:`Reconciliation.live` does. Raises the errors of
        :meth:`live_files`.
        """
        return self._files.live(snapshot, fields, of_batch, of_lines, live)

    async def timestamp(self, version: int, snapshot: Snapshot, floor_ms: int | None) -> int:
        """Return the timestamp of a version with a known snapshot, in epoch ms.

        If its commit is cleaned up, it is the checkpoint's modification time. ``floor_ms``, if
        given, takes precedence: it was published before.
        """
        if floor_ms is not None:
            return floor_ms
        try:
            return (await self.commit(version, snapshot.state, None)).timestamp_ms
        except (FileNotFoundError, DataLoss):  # a shared table's server may not give it
            checkpoint = snapshot.segment.checkpoint
            if checkpoint is None:
                return 0
            return (await self.store.stat(f"{LOG_DIR}/{checkpoint.files[0].name}")).mtime_ms

    async def find_files(
        self, version: int, keys: AbstractSet[tuple[str, str]]
    ) -> dict[tuple[str, str], AddFile]:
        """Return those of the snapshot's files that have one of these keys.

        Keys are those of :func:`tailer.delta.snapshot.file_key`.
        """
        if not keys:
            return {}
        snapshot = await self.snapshot(version)
        async with aclosing(self.live_files(snapshot)) as files:
            return {key: add async for add in files if (key := file_key(add)) in keys}

    async def lines(self, name: str) -> Lines:
        """Return the lines of a commit, compaction or JSON checkpoint; they can be read repeatedly.

        For callers that pass actions on unchanged. Raises FileNotFoundError.
        """
        return (await self._json.lines(name))[0]

    # Commits

    async def commit(
        self,
        version: int,
        before: TableState | None,
        floor_ms: int | None,
        *,
        digests: bool = True,
    ) -> Commit:
        """Read one version's commit.

        ``floor_ms`` is the timestamp of the version before (None if unknown). Without ``digests``,
        the header has none, and the commit's changes can't be planned. Raises FileNotFoundError if
        it does not exist (yet).
        """
        lines, status = await self._json.whole_lines(commit_name(version), version)
        parse = partial(self._commit, version, lines, status, before, floor_ms, digests=digests)
        return await in_thread(parse, status.size)

    def commits_here(self, after: Commit, count: int, here: BlockingFiles) -> list[Commit]:
        """Read the commits after one, in the calling thread: as many as are there and can be read
        at once, at most ``count``; perhaps none. :meth:`commit` finds out about the next one.

        A commit counts only if the one before it is still the same file afterwards.
        """
        found: list[Commit] = []
        with suppress(TableError, TransientError, FileNotFoundError, NotBrought):
            while len(found) < count:
                version = after.version + 1
                whole = self._json.whole_here(here, commit_name(version))
                if whole is None or not _is_same(after, here):
                    break
                lines, status = whole
                after = self._commit(version, lines, status, after.after, after.timestamp_ms)
                found.append(after)
        return found

    def is_settled(self, commit: Commit) -> bool:  # noqa: ARG002 - of a log that is read anew
        """Return whether a commit is known to be of the table whose state before it was read."""
        return False

    def _commit(
        self,
        version: int,
        lines: Lines,
        status: FileStatus,
        before: TableState | None,
        floor_ms: int | None,
        *,
        digests: bool = True,
    ) -> Commit:
        name = commit_name(version)
        try:
            header = read_header(name, lines(), digests=digests)
            after = _state_after(before, header.protocol, header.metadata)
            timestamp = commit_timestamp(
                version,
                status.mtime_ms,
                floor_ms,
                header.commit_info,
                enablement(after.protocol, after.metadata),
            )
        except TableError as e:
            raise self.at(e).at(version=version, path=name) from None
        return Commit(
            version, name, timestamp, status.mtime_ms, status.size, header, lines, before, after,
            status.tag,
        )  # fmt: skip

    async def actions(self, version: int) -> Iterator[Action]:
        """Return all actions of one version's commit, for callers that need no state of the table.

        Raises FileNotFoundError if it does not exist, :class:`CorruptLog` if the protocol forbids
        it.
        """
        name = commit_name(version)
        lines, status = await self._json.whole_lines(name, version)
        try:
            await in_thread(lambda: read_header(name, lines(), digests=False), status.size)
        except TableError as e:
            raise self.at(e).at(version=version, path=name) from None
        return read_actions(name, lines())

    async def state_before(self, version: int) -> TableState | None:
        """Return the state at ``version - 1``; None for version 0.

        If that snapshot can't be built any more but the one of ``version`` can, and its commit
        changes neither protocol nor metadata, the two states are the same.
        """
        if version == 0:
            return None
        try:
            return (await self.snapshot(version - 1)).state
        except DataLoss as loss:
            try:
                at = await self.snapshot(version)
                name = commit_name(version)
                lines, status = await self._json.lines(name)
                read = partial(read_header, name, lines(), digests=False)
                header = await in_thread(read, status.size)
            except (TableError, FileNotFoundError):
                raise loss from None
            if header.protocol is None and header.metadata is None:
                return at.state
            raise


def _is_same(commit: Commit, here: BlockingFiles) -> bool:
    """Return whether a commit's file has not changed; files that were brought do not change."""
    if isinstance(here, Brought):
        return True
    return here.stat_here(f"{LOG_DIR}/{commit.name}").tag == commit.tag


def _adds_of(batch: pa.RecordBatch) -> Iterator[AddFile]:
    from tailer.delta.checkpoint import adds_of  # on demand, like the reader of checkpoints

    return adds_of(batch)


def _state_after(before: TableState | None, protocol: object, metadata: object) -> TableState:
    if before is not None:
        return before.after(protocol, metadata)  # type: ignore[arg-type]  # as in the header
    reconciliation = Reconciliation()
    reconciliation.take([a for a in (protocol, metadata) if a is not None])  # type: ignore[misc]  # as in the header
    return reconciliation.state()
