"""The table's log: its listing, its snapshots, and its commits one by one.

:mod:`tailer.log.follow` follows it as it grows.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import aclosing, closing, suppress
from typing import TypeVar

import anyio
import anyio.to_thread
import pyarrow as pa

from tailer.delta.actions import Action, AddFile
from tailer.delta.checkpoint import FILES, adds_of
from tailer.delta.checksum import VersionChecksum, parse_checksum
from tailer.delta.commit import Commit, Lines, read_actions, read_header
from tailer.delta.last_checkpoint import LastCheckpoint, parse_last_checkpoint
from tailer.delta.segment import (
    LogFile,
    LogKind,
    LogSegment,
    commit_name,
    log_file,
    segments,
)
from tailer.delta.snapshot import Reconciliation, Snapshot, TableState, file_key
from tailer.delta.timestamps import commit_timestamp, enablement
from tailer.errors import CorruptLog, DataLoss, TableError, TransientError
from tailer.log.checkpoints import CheckpointReader, ListedFiles, chunks
from tailer.log.json_files import MEMORY_BYTES_MAX, JsonFiles
from tailer.store import LOG_DIR, ChangeSourced, FileStatus, ReadsHere, Store
from tailer.store.brought import Brought, NotBrought

__all__ = ["TableLog", "versions_of"]

T = TypeVar("T")
U = TypeVar("U")


class TableLog:
    """The ``_delta_log`` of one table.

    A half-written commit is waited for up to ``torn_commit_max_s`` seconds.
    """

    def __init__(self, store: Store, *, torn_commit_max_s: float = 10.0) -> None:
        self.store = store
        self.torn_commit_max_s = torn_commit_max_s
        self._json = JsonFiles(store, torn_commit_max_s)
        self._checkpoints = CheckpointReader(store, self.lines)

    def _at(self, error: TableError) -> TableError:
        return error.at(table=self.store.root)

    # Listing

    async def files(self, start_after: str = "") -> list[LogFile]:
        """Return the files of the log, by version; other files in the folder are left out."""
        found = []
        async with aclosing(self.store.list(LOG_DIR, start_after)) as listing:
            async for status in listing:
                file = log_file(status.name, status.size, status.mtime_ms)
                if file is not None:
                    found.append(file)
        return sorted(found, key=lambda f: (f.version, f.name))

    async def _recent_files(self) -> list[LogFile]:
        """Return the files from the last known checkpoint on; all of them if it is unknown."""
        hint = await self._last_checkpoint()
        if hint is not None:
            files = await self.files(f"{hint.version:020d}")
            if any(f.version == hint.version and f.kind is not LogKind.COMMIT for f in files):
                return files
        return await self.files()

    async def _last_checkpoint(self) -> LastCheckpoint | None:
        """Return the content of ``_last_checkpoint``, a hint; None if it can't be trusted."""
        try:
            path = f"{LOG_DIR}/_last_checkpoint"
            data, status = await self.store.read(path, 0, MEMORY_BYTES_MAX)
            return parse_last_checkpoint(data) if status.size <= len(data) else None
        except (FileNotFoundError, CorruptLog):
            return None

    async def latest_version(self) -> int:
        """Return the newest version. Raises :class:`TableError` if there is no table here."""
        versions = versions_of(await self._recent_files())
        if not versions:
            raise TableError(
                "no Delta table there: its _delta_log has no commit",
                table=self.store.root,
                hint="check the path, and that this user may read it",
            )
        return max(versions)

    async def earliest_version(self) -> int:
        """Return the first commit whose version before can still be built.

        Its removed rows can then be read.
        """
        files = await self.files()
        for version in sorted(f.version for f in files if f.kind is LogKind.COMMIT):
            if version == 0 or _buildable(files, version - 1):
                return version
        await self.latest_version()  # raises if there is no table at all
        raise DataLoss(
            "no version's changes can be read: no commit follows a version that can be built",
            table=self.store.root,
            hint="start with a snapshot",
        )

    async def readable_after(self, version: int) -> int:
        """Return the first later version whose changes can be read.

        Without one, return the next version that will appear.
        """
        files = await self.files()
        for later in sorted(f.version for f in files if f.kind is LogKind.COMMIT):
            if later > version and _buildable(files, later - 1):
                return later
        return max([version, *versions_of(files)]) + 1

    # Snapshots

    async def snapshot(self, version: int | None = None) -> Snapshot:
        """Return the snapshot of a version (None: the newest), without its files.

        Raises :class:`DataLoss` if the version can't be built any more, :class:`CorruptLog` if the
        log is damaged, :class:`UnsupportedTable` if it requires an unsupported feature.
        """
        files = await self._recent_files()
        if version is None:
            version = max(versions_of(files), default=-1)
            if version < 0:
                await self.latest_version()
        if not _buildable(files, version):
            files = await self.files()
            await self._check_exists(files, version)
        try:
            try:
                return await self._build(files, version)
            except CorruptLog:
                # The listing began at the damaged checkpoint; an older one may be whole.
                return await self._build(await self.files(), version)
        except TableError as e:
            raise self._at(e) from None
        except FileNotFoundError as e:
            raise self._vanished(e) from None

    def _vanished(self, e: FileNotFoundError) -> TransientError:
        """Return the error for a file of the log that was listed and is gone.

        It was cleaned up in between, or the listing is old. The next listing shows which.
        """
        return TransientError(f"{self.store.root}, {e.filename or e}: listed and can't be read")

    async def _build(self, files: list[LogFile], version: int) -> Snapshot:
        """Build the snapshot from the first segment among these files that is not damaged."""
        damage: TableError | None = None
        try:
            for segment in segments(files, version):
                try:
                    return await self._read_snapshot(segment)
                except CorruptLog as e:
                    if segment.checkpoint is None:
                        raise
                    damage = damage or e
        except DataLoss as e:
            raise damage or e from None
        raise AssertionError("segments() ends with an error")

    async def _check_exists(self, files: list[LogFile], version: int) -> None:
        newest = max(versions_of(files), default=-1)
        if version > newest:
            if await self.has_commit(version):  # the listing is older than the commit
                raise TransientError(
                    f"{self.store.root}: the log's listing ends before version {version}, which is "
                    "there"
                )
            await self.latest_version()  # raises if there is no table at all
            raise TableError(
                f"there is no version {version}: the newest is {newest}",
                table=self.store.root,
                hint="ask for a version that exists",
            )

    async def has_commit(self, version: int) -> bool:
        """Return whether the commit exists.

        It is looked up by itself, because a listing may be older.
        """
        return version >= 0 and await self._is_there(commit_name(version))

    async def _is_there(self, name: str) -> bool:
        try:
            await self.store.stat(f"{LOG_DIR}/{name}")
        except FileNotFoundError:
            return False
        return True

    async def _read_snapshot(self, segment: LogSegment) -> Snapshot:
        reconciliation = Reconciliation()
        for file in reversed(segment.deltas):
            if file.kind is LogKind.COMMIT and file.version == segment.version:
                # It may be the newest commit, with its writer still at work on it.
                lines, _ = await self._json.whole_lines(file.name, file.version)
            else:
                lines = await self.lines(file.name)
            steering = read_actions(file.name, lines(), files=False)
            await anyio.to_thread.run_sync(reconciliation.take, steering)
        for file in segment.checkpoint.files if segment.checkpoint else ():
            reconciliation.take(await self._checkpoints.steering(file.name))
        try:
            state = reconciliation.state()
        except TableError as e:
            raise e.at(version=segment.version) from None
        return Snapshot(
            segment.version, state, segment, reconciliation.transactions, reconciliation.domains
        )

    async def live_files(
        self, snapshot: Snapshot, fields: Sequence[str] = FILES
    ) -> AsyncGenerator[AddFile, None]:
        """Yield the snapshot's files: memory grows with the commits after the checkpoint only.

        ``fields`` are those that are read of a checkpoint's adds. Nothing is yielded before the
        checkpoint's list is read to its end. Raises the errors of :meth:`whole_way`.
        """
        live = Reconciliation().live
        found = self.live(
            snapshot, fields, adds_of, lambda n, lines: read_actions(n, lines()), live
        )
        async with aclosing(found) as batches:
            async for adds in batches:
                for add in adds:
                    yield add

    async def live(
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
        :meth:`Reconciliation.live` does. Raises the errors of :meth:`whole_way`.
        """
        segment, listed = await self.whole_way(snapshot, fields)
        with closing(listed):
            for file in reversed(segment.deltas):
                try:
                    actions = of_lines(file.name, await self.lines(file.name))
                    async with aclosing(chunks(live(actions))) as batches:
                        async for batch in batches:
                            yield batch
                except TableError as e:
                    raise self._at(e).at(version=file.version, path=file.name) from None
                except FileNotFoundError as e:
                    raise self._vanished(e) from None
            listing = listed.items(
                lambda batch: live(of_batch(batch), remember=False),
                lambda name, lines: live(of_lines(name, lines), remember=False),
            )
            async with aclosing(listing) as batches:
                async for batch in batches:
                    yield batch

    async def whole_way(
        self, snapshot: Snapshot, fields: Sequence[str]
    ) -> tuple[LogSegment, ListedFiles]:
        """Return a segment that gives all the snapshot's files, and its checkpoint's list of them.

        The list has these ``fields`` of each file, and the caller closes it. It is empty without a
        checkpoint.

        The segment is the snapshot's, unless its checkpoint is damaged, or has another number of
        files than its writers counted: then it is another checkpoint's, or the commits from the
        first one on. Raises :class:`CorruptLog` if no way is left, :class:`TransientError` if the
        checkpoint has been cleaned up since the snapshot was read.
        """
        refused: TableError | None = None
        async for segment in self._ways(snapshot):
            checkpoint = segment.checkpoint
            if checkpoint is None:
                return segment, ListedFiles()
            try:
                counts = await self._counts(checkpoint.version, snapshot.state.table_id)
                listed = await self._checkpoints.listed_files(checkpoint, fields, counts)
            except TableError as e:
                e.hint = e.hint or (
                    "there is no other whole way to this version: restore the file, or start at a "
                    "newer version"
                )
                refused = refused or self._at(e).at(version=checkpoint.version)
            else:
                return segment, listed
        assert refused is not None  # the snapshot's segment is a way
        top = snapshot.segment.checkpoint.files[0].name if snapshot.segment.checkpoint else ""
        if not await self._is_there(top):
            raise self._vanished(FileNotFoundError(top))
        raise refused

    async def _ways(self, snapshot: Snapshot) -> AsyncGenerator[LogSegment, None]:
        """Yield the segments that lead to the snapshot: its segment, then those of a new listing.

        In a store that derives changes from a server's answers, commits do not add up to a
        snapshot.
        """
        yield snapshot.segment
        if isinstance(self.store, ChangeSourced):
            return
        try:
            for segment in segments(await self.files(), snapshot.version):
                if segment.checkpoint != snapshot.segment.checkpoint:
                    yield segment
        except DataLoss:
            return

    async def _counts(self, version: int, table_id: str) -> dict[str, int]:
        """Return the expected numbers of files in the version's checkpoint.

        They are keyed by the names of the log files that give them; hints that can't be trusted are
        left out.
        """
        counts: dict[str, int] = {}
        hint = await self._last_checkpoint()
        if hint is not None and hint.version == version and hint.num_files is not None:
            counts["_last_checkpoint"] = hint.num_files
        checksum = await self.checksum(version)
        if checksum is not None and checksum.metadata.id == table_id:
            counts[f"{version:020d}.crc"] = checksum.num_files
        return counts

    async def checksum(self, version: int) -> VersionChecksum | None:
        """Return a version's checksum file (``.crc``), parsed; None without a trustworthy one."""
        try:
            path = f"{LOG_DIR}/{version:020d}.crc"
            data, status = await self.store.read(path, 0, MEMORY_BYTES_MAX)
            return parse_checksum(data) if status.size <= len(data) else None
        except (FileNotFoundError, CorruptLog):
            return None

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

    async def _json_actions(self, name: str) -> Iterator[Action]:
        lines, _ = await self._json.lines(name)
        return read_actions(name, lines())

    # Commits

    async def commit(self, version: int, before: TableState | None, floor_ms: int | None) -> Commit:
        """Read one version's commit.

        ``floor_ms`` is the timestamp of the version before (None if unknown). Raises
        FileNotFoundError if it does not exist (yet).
        """
        lines, status = await self._json.whole_lines(commit_name(version), version)
        how = (version, lines, status, before, floor_ms)
        return await anyio.to_thread.run_sync(self._commit, *how)

    def commits_here(self, after: Commit, count: int, here: ReadsHere) -> list[Commit]:
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
                after = self._commit(version, *whole, after.after, after.timestamp_ms)
                found.append(after)
        return found

    def _commit(
        self,
        version: int,
        lines: Lines,
        status: FileStatus,
        before: TableState | None,
        floor_ms: int | None,
    ) -> Commit:
        name = commit_name(version)
        try:
            header = read_header(name, lines())
            after = _state_after(before, header.protocol, header.metadata)
            timestamp = commit_timestamp(
                version,
                status.mtime_ms,
                floor_ms,
                header.commit_info,
                enablement(after.protocol, after.metadata),
            )
        except TableError as e:
            raise self._at(e).at(version=version, path=name) from None
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
        lines, _ = await self._json.whole_lines(name, version)
        try:
            await anyio.to_thread.run_sync(lambda: read_header(name, lines()))
        except TableError as e:
            raise self._at(e).at(version=version, path=name) from None
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
                lines, _ = await self._json.lines(name)
                header = read_header(name, lines())
            except (TableError, FileNotFoundError):
                raise loss from None
            if header.protocol is None and header.metadata is None:
                return at.state
            raise


def _is_same(commit: Commit, here: ReadsHere) -> bool:
    """Return whether a commit's file has not changed; files that were brought do not change."""
    if isinstance(here, Brought):
        return True
    return here.stat_here(f"{LOG_DIR}/{commit.name}").tag == commit.tag


def versions_of(files: Iterable[LogFile]) -> list[int]:
    """Return the versions that exist: a checkpoint proves its version as well as a commit does."""
    return [f.version for f in files if f.kind not in (LogKind.COMPACTED, LogKind.CHECKSUM)]


def _buildable(files: list[LogFile], version: int) -> bool:
    try:
        next(segments(files, version))
    except DataLoss:
        return False
    return version in versions_of(files)


def _state_after(before: TableState | None, protocol: object, metadata: object) -> TableState:
    if before is not None:
        return before.after(protocol, metadata)  # type: ignore[arg-type]  # as in the header
    reconciliation = Reconciliation()
    reconciliation.take([a for a in (protocol, metadata) if a is not None])  # type: ignore[misc]  # as in the header
    return reconciliation.state()
