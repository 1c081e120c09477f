"""The files of a snapshot, streamed: those of its newest commits, then its checkpoint's."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, aclosing
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tailer.delta.commit import Lines, check_repeats, read_header
from tailer.delta.segment import LogFile, LogKind, LogSegment
from tailer.delta.snapshot import Snapshot
from tailer.errors import CorruptLog, TableError
from tailer.log.damaged_files import Damaged, read_by_any_way
from tailer.log.listing import LogListing
from tailer.process.threads import INLINE_BYTES_MAX, list_in_threads, run_blocking

if TYPE_CHECKING:
    import pyarrow as pa

    from tailer.log.checkpoints import CheckpointReader, ListedFiles

T = TypeVar("T")
U = TypeVar("U")


class _WholeSegment(NamedTuple):
    segment: LogSegment
    listed: ListedFiles | None


class SnapshotFiles:
    """Streams the files of snapshots.

    ``lines`` gives the lines of a JSON file of the log, ``checkpoints`` the reader of checkpoints.
    """

    def __init__(
        self,
        log: LogListing,
        lines: Callable[[str], Awaitable[Lines]],
        checkpoints: Callable[[], CheckpointReader],
    ) -> None:
        self._log = log
        self._lines = lines
        self._checkpoints = checkpoints

    async def stream_live_files(
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
        :meth:`tailer.delta.snapshot.Reconciliation.find_live_files` does. Raises the errors of
        :meth:`tailer.log.table.TableLog.live_files`.
        """
        segment, found = await self._find_whole_segment(snapshot, fields)
        with ExitStack() as stack:
            if found is not None:
                stack.callback(found.close)
            for file in reversed(segment.deltas):
                try:
                    lines = await self._lines(file.name)
                    actions = live(_read_checked(file, lines, of_lines))
                    if file.size <= INLINE_BYTES_MAX:
                        yield list(actions)
                        continue
                    async with aclosing(list_in_threads(actions)) as batches:
                        async for batch in batches:
                            yield batch
                except TableError as e:
                    raise self._log.locate_error(e).at(
                        version=file.version, path=file.name
                    ) from None
                except FileNotFoundError as e:
                    raise self._log.make_vanished_error(e) from None
            if found is None:
                return
            listing = found.build_items(
                lambda batch: live(of_batch(batch), remember=found.repeated),
                lambda name, lines: live(of_lines(name, lines), remember=found.repeated),
            )
            async with aclosing(listing) as batches:
                async for batch in batches:
                    yield batch

    async def _find_whole_segment(self, snapshot: Snapshot, fields: Sequence[str]) -> _WholeSegment:
        """Return a segment that gives all the snapshot's files, and its checkpoint's list of them.

        The list has these ``fields`` of each file, and the caller closes it. The segment is the
        snapshot's, unless one of its compactions is damaged, or its checkpoint is, or has another
        number of files than its writers counted. Raises :class:`CorruptLog` if no way is left,
        :class:`TransientError` if the checkpoint has been cleaned up since the snapshot was read.
        """

        async def read_segment(segment: LogSegment) -> _WholeSegment:
            for file in segment.deltas:
                if file.kind is LogKind.COMPACTED:
                    await self._check_compaction(file)
            table_id = snapshot.state.table_id
            return _WholeSegment(segment, await self._list_checkpoint(segment, fields, table_id))

        async def files() -> list[LogFile]:
            # In a store that derives changes from a server's answers, commits do not add up to a
            # snapshot.
            return [] if self._log.store.server_log else await self._log.list_files()

        try:
            return await read_by_any_way(snapshot.segment, files, read_segment)
        except TableError:
            checkpoint = snapshot.segment.checkpoint
            if checkpoint and await self._log.find_tag(checkpoint.files[0].name) is None:
                raise self._log.make_vanished_error(
                    FileNotFoundError(checkpoint.files[0].name)
                ) from None
            raise

    async def _check_compaction(self, file: LogFile) -> None:
        """Read a compaction to its end: if it is damaged, commits are read in its place."""
        try:
            await run_blocking(check_repeats, file.name, await self._lines(file.name))
        except CorruptLog as e:
            raise Damaged([file], self._log.locate_error(e).at(version=file.version)) from None
        except FileNotFoundError as e:
            raise Damaged([file], self._log.make_vanished_error(e)) from None

    async def _list_checkpoint(
        self, segment: LogSegment, fields: Sequence[str], table_id: str
    ) -> ListedFiles | None:
        """Return the list of files of the segment's checkpoint; None if it has no checkpoint."""
        checkpoint = segment.checkpoint
        if checkpoint is None:
            return None
        try:
            counts = await self._find_expected_counts(checkpoint.version, table_id)
            return await self._checkpoints().read_file_list(checkpoint, fields, counts)
        except TableError as e:
            e.hint = e.hint or (
                "there is no other complete way to this version: restore the file, or start at a "
                "newer version"
            )
            raise Damaged(
                checkpoint.files, self._log.locate_error(e).at(version=checkpoint.version)
            ) from None

    async def _find_expected_counts(self, version: int, table_id: str) -> dict[str, int]:
        """Return the expected numbers of files in the version's checkpoint.

        They are keyed by the names of the log files that give them; hints that can't be trusted are
        left out.
        """
        counts: dict[str, int] = {}
        hint = await self._log.last_checkpoint()
        if hint is not None and hint.version == version and hint.num_files is not None:
            counts["_last_checkpoint"] = hint.num_files
        checksum = await self._log.read_checksum(version)
        if checksum is not None and checksum.metadata.id == table_id:
            counts[f"{version:020d}.crc"] = checksum.num_files
        return counts


def _read_checked(
    file: LogFile, lines: Lines, of_lines: Callable[[str, Lines], Iterator[T]]
) -> Iterator[T]:
    """Yield the actions of a commit that the protocol allows, or of a compaction, which was checked
    before anything was read."""
    if file.kind is LogKind.COMMIT:
        read_header(file.name, lines, digests=False)
    yield from of_lines(file.name, lines)
