"""The rows of a whole table: the initial snapshot, and another one while changes continue.

Files come in the order of their paths. That order does not depend on how the log is read, so an
offset inside a snapshot stays valid when a new checkpoint appears or old commits are cleaned up.
The rest of a snapshot that a query of Spark has begun comes in the order of Spark's.
Files are sorted out of core: runs of files are sorted and spilled, then merged, so memory stays
bounded for a table with any number of files.

The rules of a snapshot that is read while the stream continues:

1. It takes turns with the stream, between two versions, and never within one.
2. A file is read as of the version that the stream has reached. One that a later version removes is
   dropped; one that a later version adds in its place is read instead, after the others.
3. A version that only adds files adds none here: their rows are new, and the stream delivers them.
4. The stream's offset stays what it is: after a crash, the snapshot begins again.

For example, a table has the files a, b and c when the stream is about to read version 6::

    turn       a as of version 5; then version 6 is there
    stream     version 6: b was rewritten as d
    turn       c as of version 6, d as of version 6, the end

What must never happen: a row of the snapshot overwrites a newer one that the stream has delivered
before it; a row that stays in the table is left out because its file was rewritten meanwhile; the
place of a row in the initial snapshot depends on how the log was read.
"""

from __future__ import annotations

import heapq
import tempfile
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from itertools import islice
from typing import IO

import msgspec
from msgspec import structs

from tailer.changes import ChangeBatch, ChangeFile, Notice, Offset
from tailer.delta.actions import AddCDCFile, AddFile, RemoveFile
from tailer.delta.add_fields import FILES, WITH_STATISTICS, WITH_TIMES
from tailer.delta.commit import Commit
from tailer.delta.digests import file_digest
from tailer.delta.snapshot import Snapshot, find_file_key
from tailer.errors import FileGone, TableError, spilling
from tailer.feed.orders import ResnapshotRequest
from tailer.feed.progress import Observer
from tailer.feed.read_context import Emit, ReadContext
from tailer.feed.rows.span import Span, Version, VersionFiles
from tailer.feed.rows.span_reader import read_span
from tailer.log.same_table import check_listed, find_commit_tag, snapshot_for
from tailer.plan.rules import FileOrder, by_path, choose_snapshot_order, plan_snapshot
from tailer.process.json_decoders import json_decoder
from tailer.process.threads import run_blocking
from tailer.shape.pruning import Pruning

#: The number of files that are sorted in memory; they take about 20 MB.
RUN_FILES = 20_000


async def sort_files(
    adds: AsyncGenerator[AddFile, None],
    spill_folder: str | None = None,
    run_files: int = RUN_FILES,
    *,
    statistics: bool = False,
    key: FileOrder = by_path,
    observer: Observer | None = None,
) -> Iterator[AddFile]:
    """Yield the files in their order; at most ``run_files`` are held in memory. ``observer`` learns
    how many there are, and of each when it is taken.

    Without ``statistics``, of these only the numbers of rows are left.
    """
    runs: list[IO[bytes]] = []
    held: list[AddFile] = []
    files = size = 0
    async with aclosing(adds) as found:
        async for add in found:
            files += 1
            size += add.size
            held.append(add if statistics else _keep_record_count(add))
            if len(held) == run_files:
                runs.append(await run_blocking(_spill_run, held, spill_folder, key))
                held = []
    held.sort(key=key)
    merged = heapq.merge(*(_read_run(run) for run in runs), held, key=key) if runs else iter(held)
    if observer is None:
        return merged
    observer.begin_snapshot(files, size)
    return _count_taken(merged, observer)


def _count_taken(adds: Iterator[AddFile], observer: Observer) -> Iterator[AddFile]:
    for add in adds:
        observer.count_snapshot_file(add.size)
        yield add


def _keep_record_count(add: AddFile) -> AddFile:
    """Return an add without its statistics but for its record count: a snapshot compares no
    files."""
    if add.stats is None:
        return add
    records = add.num_records
    return structs.replace(add, stats=None, stats_parsed={"numRecords": records})


def _spill_run(adds: list[AddFile], folder: str | None, key: FileOrder) -> IO[bytes]:
    """Write a sorted run to a temporary file, which is removed when its last reader closes it."""
    with spilling(folder):
        run = tempfile.TemporaryFile(prefix="tailer-snapshot-", dir=folder)  # noqa: SIM115  # closed by its last reader
        run.writelines(msgspec.json.encode(add) + b"\n" for add in sorted(adds, key=key))
        run.seek(0)
    return run


def _read_run(run: IO[bytes]) -> Iterator[AddFile]:
    decoder = json_decoder(AddFile)
    with run:
        yield from map(decoder.decode, run)


async def plan_snapshot_files(
    context: ReadContext, snapshot: Snapshot, timestamp_ms: int, first: Offset,
    observer: Observer | None = None,
) -> Iterator[ChangeFile]:  # fmt: skip
    """Return the selected files of a snapshot that is read from an offset on, in their order.
    ``observer`` is for one who reads each as it is taken: see :func:`sort_files`."""
    # Statistics are used only for delivered files that are gone: nothing else counts them.
    prunes, delivered = context.pruning is not None, first.delivered_files
    fields = WITH_TIMES if delivered else WITH_STATISTICS if first.index or prunes else FILES
    live = context.log.live_files(snapshot, fields)
    spill_folder, key = context.options.diff.spill_folder, choose_snapshot_order(first)
    adds = await sort_files(live, spill_folder, statistics=prunes, key=key, observer=observer)
    version, state = snapshot.version, snapshot.state
    rest = islice(adds, delivered, None)
    return context.select_files(plan_snapshot(add, version, timestamp_ms, state) for add in rest)


async def read_snapshot(context: ReadContext, start: Offset, emit: Emit, *, notices: bool) -> None:
    """Read the rows of the snapshot that the offset names, from its index on.

    With ``notices``, a notice of its begin comes before them and a notice of its end after them.
    Only the latter leads to the next version: after a crash between the two, it comes again.
    """
    tag = await find_commit_tag(context.log, start.version)
    snapshot = await snapshot_for(context.log, start, start.version)
    floor_ms = start.timestamp_floor_ms
    timestamp = await context.log.find_timestamp(snapshot.version, snapshot, floor_ms)
    first = structs.replace(start, table_id=snapshot.state.table_id)
    first = first.resumable_with(context.counted_by)
    details = {"reason": "start", "version": start.version}
    if notices and not first.index:
        await emit(Notice("snapshot_begin", start.version, timestamp, first, first, details))
    files = await plan_snapshot_files(context, snapshot, timestamp, first, context.observer)
    await check_listed(context.log, first, start.version, tag)
    context.check_selection(snapshot.state, start.version)
    commit_id = await context.log.find_commit_id(start.version)
    version = Version(start.version, timestamp, snapshot.state, VersionFiles(files), commit_id)

    async def emit_after_notice(batch: ChangeBatch) -> None:
        end = batch.next_offset
        if notices and not end.snapshot:
            last = structs.replace(_find_offset_after(batch), counted_by=context.counted_by)
            await emit(structs.replace(batch, next_offset=last))
            await emit(Notice("snapshot_end", start.version, timestamp, last, end, details))
        else:
            await emit(batch)

    await read_span(
        context, Span.from_version(version, first), emit_after_notice, spans=context.options.spans
    )


def _find_offset_after(batch: ChangeBatch) -> Offset:
    """Return the offset after the last row, still in its snapshot.

    A lost file between two files of a batch is counted, so the last part alone says it.
    """
    if not batch.num_rows:
        return batch.offset
    last = batch.parts()[-1]
    return structs.replace(last.offset, index=last.offset.index + batch.num_rows - last.first)


class Resnapshot:
    """The table's rows once more, between the versions of a stream that continues meanwhile.

    It begins with the files of one version. Files that later versions remove are dropped, and
    files that they rewrite are added, so that each row is delivered as of the version that the
    stream has reached, never as of an older one. The stream's own offset does not move.
    """

    def __init__(self, context: ReadContext, request: ResnapshotRequest) -> None:
        self.context = context
        self.request = request
        where = request.where
        self._pruning = None if where is None else Pruning(where, context.columns)
        self.rows = 0
        self._first = -1
        self._files: Iterator[AddFile] | None = None
        self._gone: set[tuple[str, str]] = set()
        self._added: list[AddFile] = []

    async def take_turn(self, stream: Offset, emit: Emit) -> None:
        """Take one turn: read as many files as fit before the stream's next version is there."""
        version, log = stream.version - 1, self.context.log
        tag = None if self._files else await find_commit_tag(log, version)
        snapshot = await snapshot_for(log, stream, version)
        timestamp = await log.find_timestamp(version, snapshot, stream.timestamp_floor_ms)
        if self._files is None:
            self._first = version
            live = log.live_files(snapshot)
            spill_folder = self.context.options.diff.spill_folder
            files = await sort_files(
                live, spill_folder, statistics=self._pruning is not None,
                observer=self.context.observer,
            )  # fmt: skip
            at = structs.replace(stream, table_id=snapshot.state.table_id)
            await check_listed(log, at, version, tag)
            self._files = files
            await emit(self._build_notice("snapshot_begin", stream, version, timestamp))
        self.context.check_selection(snapshot.state, version)
        while (add := self._take_next_file()) is not None:
            file = plan_snapshot(add, version, timestamp, snapshot.state)
            try:
                if self._is_selected(file):
                    alone = VersionFiles.from_list([file])
                    rows = Version(version, timestamp, snapshot.state, alone)
                    await self._read_version(rows, stream, emit)
            except FileGone as e:
                if not await log.has_commit(stream.version):
                    raise TableError(e.what, version=version, path=e.path, hint=e.hint) from None
                self._added.append(add)  # a later version removes it; the stream will deliver that
                return
            if await log.has_commit(stream.version):
                return
        await emit(self._build_notice("snapshot_end", stream, version, timestamp))
        self._files = None

    @property
    def done(self) -> bool:
        """Return whether all of the snapshot's rows were read."""
        return self._files is None and self._first >= 0

    def note_commit(self, commit: Commit) -> None:
        """Note that the stream has delivered a commit."""
        if self._files is None:
            return  # the snapshot begins after it
        if not commit.header.removes:
            return  # its rows are new, and were delivered as changes
        ineffective = self.context.live.ineffective_in(commit.version)
        for action in commit.file_actions():
            if isinstance(action, AddCDCFile) or (
                ineffective and file_digest(action) in ineffective
            ):
                continue
            if isinstance(action, RemoveFile):
                self._gone.add(find_file_key(action))
            else:
                self._added.append(action)
                self._gone.discard(find_file_key(action))

    def _take_next_file(self) -> AddFile | None:
        for add in self._files or ():
            if find_file_key(add) not in self._gone:
                return add
        while self._added:
            add = self._added.pop()
            if find_file_key(add) not in self._gone:
                return add
        return None

    def _is_selected(self, file: ChangeFile) -> bool:
        asked = self._pruning is None or self._pruning.find_results(file, statistics=True).true
        return asked and self.context.is_selected(file)

    async def _read_version(self, version: Version, stream: Offset, emit: Emit) -> None:
        first = Offset(version.number, snapshot=True, table_id=version.state.table_id)

        async def emit_counted(batch: ChangeBatch) -> None:
            if self.request.where is not None:
                batch = self.context.shaper.filter_batch(batch, self.request.where)
            if batch.num_rows:
                offset = structs.replace(first, index=self.rows)
                self.rows += batch.num_rows
                await emit(structs.replace(batch, offset=offset, next_offset=stream))

        await read_span(self.context, Span.from_version(version, first), emit_counted, spans=False)

    def _build_notice(self, kind: str, stream: Offset, version: int, timestamp_ms: int) -> Notice:
        details = {"reason": "resnapshot", "version": self._first, "where": self.request.text}
        if kind == "snapshot_end":
            details["rows"] = self.rows
        return Notice(kind, version, timestamp_ms, stream, stream, details)  # type: ignore[arg-type]  # one of the two


class Resnapshots:
    """The snapshots that were requested while the stream continues, one after the other."""

    def __init__(self, context: ReadContext) -> None:
        self._waiting = [Resnapshot(context, asked) for asked in context.orders.resnapshots]

    @property
    def waiting(self) -> bool:
        """Return whether there is a snapshot that is not completely read."""
        return bool(self._waiting)

    def note_commit(self, commit: Commit) -> None:
        """Note that the stream has delivered a commit."""
        for snapshot in self._waiting:
            snapshot.note_commit(commit)

    async def take_turn(self, stream: Offset, emit: Emit) -> None:
        """Take a turn of the first snapshot that is not completely read.

        The next one begins as soon as it ends: the stream may have no other version for long.
        """
        while self._waiting and stream.version > 0 and not stream.index:
            await self._waiting[0].take_turn(stream, emit)
            if not self._waiting[0].done:
                return
            self._waiting.pop(0)
