"""The table's log: its listing, its snapshots, and its commits one by one.

:mod:`tailer.log.follow` follows it as it grows.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import aclosing, suppress
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from tailer.delta.actions import Action, AddFile
from tailer.delta.add_fields import FILES
from tailer.delta.commit import (
    ID_BYTES,
    Commit,
    Lines,
    make_commit_id,
    read_actions,
    read_header,
)
from tailer.delta.features import check_by_path
from tailer.delta.segment import LogFile, LogKind, LogSegment, find_segments, format_commit_name
from tailer.delta.snapshot import Reconciliation, Snapshot, TableState, find_file_key
from tailer.delta.timestamps import find_commit_timestamp, find_enablement
from tailer.errors import CorruptLog, DataLoss, TableError, TransientError
from tailer.log.ahead_reader import AheadReader
from tailer.log.damaged_files import Damaged, read_by_any_way
from tailer.log.json_files import CommitText, JsonFiles
from tailer.log.listing import LogListing, can_build, list_versions
from tailer.log.readers import BulkReader, LogReader, PlainReader
from tailer.log.snapshot_files import SnapshotFiles
from tailer.process.threads import parse_in_thread, run_blocking
from tailer.store import LOG_DIR, BlockingFiles, Store
from tailer.store.fetched_files import NotFetched

if TYPE_CHECKING:
    import pyarrow as pa

    from tailer.log.checkpoints import CheckpointReader

#: The files of a log that are read in one step.
_TAKEN_AT_ONCE = 512

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
        self.snapshot_files = SnapshotFiles(self, self.read_lines, lambda: self._checkpoints)

    def open_reader(self) -> LogReader:
        """Return a reader of the log's files, as its store wants to be asked. The caller closes
        it."""
        budget = self.store.ahead()
        if budget is None:
            return PlainReader(self._json)
        return AheadReader(BulkReader(self._json, budget), self.find_tag, budget)

    @cached_property
    def _checkpoints(self) -> CheckpointReader:
        # On demand, because many logs have no checkpoint, and pyarrow takes long to load.
        from tailer.log.checkpoints import CheckpointReader

        return CheckpointReader(self.store, self.read_lines)

    # Snapshots

    async def load_snapshot(self, version: int | None = None) -> Snapshot:
        """Return the snapshot of a version (None: the newest), without its files.

        Raises :class:`DataLoss` if the version can't be built any more, :class:`CorruptLog` if the
        log is damaged, :class:`UnsupportedTable` if it requires an unsupported feature.
        """
        files = await self.recent_files()
        if version is None:
            version = max(list_versions(files), default=-1)
            if version < 0:
                await self.latest_version()
        if not can_build(files, version):
            files = await self.list_files()
            await self.check_exists(files, version)
        try:
            segment = next(find_segments(files, version))
            return await read_by_any_way(segment, self.list_files, self._read_snapshot)
        except TableError as e:
            raise self.locate_error(e) from None
        except FileNotFoundError as e:
            raise self.make_vanished_error(e) from None

    async def _read_snapshot(self, segment: LogSegment) -> Snapshot:
        reconciliation = Reconciliation()
        await self._take_deltas(reconciliation, segment)
        checkpoint = segment.checkpoint.files if segment.checkpoint else ()
        try:
            steering = [await self._checkpoints.read_steering(file.name) for file in checkpoint]
            reconciliation.take(chain.from_iterable(steering))
            state = reconciliation.build_state()
            self._check_by_path(state)
        except CorruptLog as e:
            compactions = [f for f in segment.deltas if f.kind is LogKind.COMPACTED]
            raise Damaged(checkpoint or compactions, e.at(version=segment.version)) from None
        except TableError as e:
            raise e.at(version=segment.version) from None
        return Snapshot(
            segment.version, state, segment, reconciliation.transactions, reconciliation.domains
        )

    async def _take_deltas(self, reconciliation: Reconciliation, segment: LogSegment) -> None:
        deltas, reader, at = segment.deltas[::-1], self.open_reader(), 0
        while at < len(deltas):
            chunk = deltas[at : at + _TAKEN_AT_ONCE]
            files = await reader.find_blocking_files([(file.name, file.size) for file in chunk])
            if files is not None and (
                taken := await run_blocking(self._take_small, files, chunk, reconciliation)
            ):
                at += taken
                continue
            file = deltas[at]
            try:
                steering = await self._read_steering(file, newest=file.version == segment.version)
                await run_blocking(reconciliation.take, steering)
            except CorruptLog as e:
                raise Damaged([file], e) from None
            except FileNotFoundError as e:
                if file.kind is LogKind.COMMIT:
                    raise
                raise Damaged([file], self.make_vanished_error(e)) from None
            at += 1

    def _take_small(
        self, files: BlockingFiles, deltas: Sequence[LogFile], reconciliation: Reconciliation
    ) -> int:
        """Reconcile small files in the calling thread; return how many, from the first on. The
        next one is for :meth:`_read_steering`, which knows its damage."""
        for number, file in enumerate(deltas):
            try:
                text = self._json.read_whole_blocking(files, file.name)
                is_listed = text is not None and text.status.tag == file.tag
                if text is None or not (is_listed or self.store.atomic):
                    break
                reconciliation.take(read_actions(file.name, text.lines(), files=False))
            except (TableError, TransientError, FileNotFoundError, NotFetched):
                return number
        else:
            return len(deltas)
        if text is not None and self.listed:  # what was kept of it is of another moment
            raise TransientError(f"{self.store.root}, {file.name}: changed since it was listed")
        return number

    async def _read_steering(self, file: LogFile, *, newest: bool) -> Iterator[Action]:
        """Return the actions of a commit or a compaction, except those of data files."""
        if newest and file.kind is LogKind.COMMIT:
            # Its writer may still be at work on it.
            lines = (await self._json.read_whole_commit(file.version)).lines
        else:
            lines = await self.read_lines(file.name)
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
        live = Reconciliation().find_live_files
        live_batches = self.snapshot_files.stream_live_files(
            snapshot, fields, _build_adds, lambda n, lines: read_actions(n, lines()), live
        )
        async with aclosing(live_batches) as batches:
            async for adds in batches:
                for add in adds:
                    yield add

    async def find_timestamp(self, version: int, snapshot: Snapshot, floor_ms: int | None) -> int:
        """Return the timestamp of a version with a known snapshot, in epoch ms.

        If its commit is cleaned up, it is the checkpoint's modification time. ``floor_ms``, if
        given, takes precedence: it was published before.
        """
        if floor_ms is not None:
            return floor_ms
        try:
            return (await self.read_commit(version, snapshot.state, None)).timestamp_ms
        except (FileNotFoundError, DataLoss):  # a shared table's server may not give it
            checkpoint = snapshot.segment.checkpoint
            if checkpoint is None:
                return 0
            return (await self.store.stat(f"{LOG_DIR}/{checkpoint.files[0].name}")).mtime_ms

    async def find_files(
        self, version: int, keys: AbstractSet[tuple[str, str]]
    ) -> dict[tuple[str, str], AddFile]:
        """Return those of the snapshot's files that have one of these keys.

        Keys are those of :func:`tailer.delta.snapshot.find_file_key`.
        """
        if not keys:
            return {}
        snapshot = await self.load_snapshot(version)
        async with aclosing(self.live_files(snapshot)) as files:
            return {key: add async for add in files if (key := find_file_key(add)) in keys}

    async def read_lines(self, name: str) -> Lines:
        """Return the lines of a commit, compaction or JSON checkpoint; they can be read repeatedly.

        For callers that pass actions on unchanged. Raises FileNotFoundError.
        """
        return (await self._json.read_file(name)).lines

    # Commits

    async def read_commit(
        self,
        version: int,
        before: TableState | None,
        floor_ms: int | None,
        *,
        digests: bool = True,
    ) -> Commit:
        """Read one version's commit. Raises FileNotFoundError if it does not exist (yet); the rest
        is as in :meth:`parse_commit`."""
        text = await self._json.read_whole_commit(version)
        return await self.parse_commit(version, text, before, floor_ms, digests=digests)

    async def parse_commit(
        self,
        version: int,
        text: CommitText,
        before: TableState | None,
        floor_ms: int | None,
        *,
        digests: bool = True,
    ) -> Commit:
        """Parse one version's commit, whose ``text`` a reader has read.

        ``floor_ms`` is the timestamp of the version before (None if unknown). Without ``digests``,
        the header has none, and the commit's changes can't be planned.
        """
        parse = partial(self._parse_commit, version, text, before, floor_ms, digests=digests)
        return await parse_in_thread(parse, text.status.size)

    def read_commits_blocking(
        self, after: Commit, count: int, files: BlockingFiles
    ) -> list[Commit]:
        """Read the commits after one, in the calling thread: as many as are there and can be read
        at once, at most ``count``; perhaps none.

        A commit counts only if its predecessor, looked up after the commit was read, is still the
        same file; and if it is itself the same file at a later look, as that of the next commit's
        predecessor is, or the store's files appear whole.
        """
        commits: list[Commit] = []
        settled = 0  # of them, how many were looked up since they were read
        with suppress(TableError, TransientError, FileNotFoundError, NotFetched):
            while len(commits) < count:
                name = format_commit_name(after.version + 1)
                text = self._json.read_whole_blocking(files, name, may_be_kept=True)
                if text is None or not _is_as_read(files, after):
                    break
                settled = len(commits)
                after = self._parse_commit(after.version + 1, text, after.after, after.timestamp_ms)
                commits.append(after)
        with suppress(TableError, TransientError, FileNotFoundError):
            if len(commits) > settled and (self.store.atomic or _is_as_read(files, after)):
                settled = len(commits)
        return commits[:settled]

    def _parse_commit(
        self,
        version: int,
        text: CommitText,
        before: TableState | None,
        floor_ms: int | None,
        *,
        digests: bool = True,
    ) -> Commit:
        name, status = format_commit_name(version), text.status
        try:
            header = read_header(name, text.lines, digests=digests)
            after = _derive_state(before, header.protocol, header.metadata)
            if digests and (before is None or header.protocol is not None):
                self._check_by_path(after)
            timestamp = find_commit_timestamp(
                version,
                status.mtime_ms,
                floor_ms,
                header.commit_info,
                find_enablement(after.protocol, after.metadata),
            )
        except TableError as e:
            raise self.locate_error(e).at(version=version, path=name) from None
        return Commit(
            version, name, timestamp, status.mtime_ms, status.size, header, text.lines, before,
            after,
            status.tag,
        )  # fmt: skip

    def _check_by_path(self, state: TableState) -> None:
        """Raise :class:`UnsupportedTable` for a catalog's table that was opened by its path."""
        if not self.store.by_catalog:
            check_by_path(state.protocol)

    async def find_commit_id(self, version: int) -> str | None:
        """Return the id of a version's commit (:meth:`tailer.delta.commit.Commit.read_id`); None
        if it is not there any more, or in a server's answers, which may differ each time."""
        if self.store.server_log:
            return None
        try:
            path = f"{LOG_DIR}/{format_commit_name(version)}"
            start, status = await self.store.read(path, 0, ID_BYTES)
        except FileNotFoundError:
            return None
        return make_commit_id(start, status.size)

    async def read_commit_actions(self, version: int) -> Iterator[Action]:
        """Return all actions of one version's commit, for callers that need no state of the table.

        Raises FileNotFoundError if it does not exist, :class:`CorruptLog` if the protocol forbids
        it.
        """
        name = format_commit_name(version)
        text = await self._json.read_whole_commit(version)
        check = partial(read_header, name, text.lines, digests=False)
        try:
            await parse_in_thread(check, text.status.size)
        except TableError as e:
            raise self.locate_error(e).at(version=version, path=name) from None
        return read_actions(name, text.lines())

    async def state_before(self, version: int) -> TableState | None:
        """Return the state at ``version - 1``; None for version 0.

        If that snapshot can't be built any more but the one of ``version`` can, and its commit
        changes neither protocol nor metadata, the two states are the same.
        """
        if version == 0:
            return None
        try:
            return (await self.load_snapshot(version - 1)).state
        except DataLoss as loss:
            try:
                at = await self.load_snapshot(version)
                name = format_commit_name(version)
                file = await self._json.read_file(name)
                read = partial(read_header, name, file.lines, digests=False)
                header = await parse_in_thread(read, file.status.size)
            except (TableError, FileNotFoundError):
                raise loss from None
            if header.protocol is None and header.metadata is None:
                return at.state
            raise


def _is_as_read(files: BlockingFiles, commit: Commit) -> bool:
    """Return whether a commit is still the file that was read."""
    return files.stat_here(f"{LOG_DIR}/{commit.name}").tag == commit.tag


def _build_adds(batch: pa.RecordBatch) -> Iterator[AddFile]:
    from tailer.delta.checkpoint import build_adds  # on demand, like the reader of checkpoints

    return build_adds(batch)


def _derive_state(before: TableState | None, protocol: object, metadata: object) -> TableState:
    if before is not None:
        return before.after(protocol, metadata)  # type: ignore[arg-type]  # as in the header
    reconciliation = Reconciliation()
    reconciliation.take([a for a in (protocol, metadata) if a is not None])  # type: ignore[misc]  # as in the header
    return reconciliation.build_state()
