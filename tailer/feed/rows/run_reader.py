"""A run of versions as change batches: fetch, decode, and the offsets between them.

A run is one version, or several consecutive ones. Its files are opened ahead where a store is slow
to answer, and decoded in worker threads: many small ones in one step, and handed on as one batch if
the sink takes runs; large ones two at a time.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import replace
from operator import attrgetter

import anyio
import pyarrow as pa

from tailer.changes import ChangeBatch, ChangeFile, Offset, Part, Rows, joined
from tailer.decode.rows import Skip
from tailer.errors import OffsetError, TableError
from tailer.feed.reading import EmitBatch, Reading
from tailer.feed.rows.chunks import Chunk, Entry, Lost, Together, Version, chunks
from tailer.feed.rows.counting import Place, logged_rows
from tailer.feed.rows.decoding import Decoding, file_named
from tailer.feed.rows.fetch import FetchAhead, Fetched
from tailer.feed.rows.lanes import Use, in_lanes
from tailer.threads import one_by_one, stepwise

__all__ = ["RunReader"]

#: The most files, and their most encoded bytes, that are decoded in one group.
_GROUP_FILES = 256
_GROUP_BYTES = 16 * 1024 * 1024
#: A file of so few rows and encoded bytes takes no longer than a hop into a thread.
_QUICK_ROWS = 100
_QUICK_BYTES = 16 * 1024
#: Files of so few encoded bytes are mostly the interpreter's work: two threads that decode them
#: wait for each other's turn, and take longer than one.
_TINY_BYTES = 8 * 1024


class RunReader:
    """Reads the rows of consecutive versions: commits' changes, or a snapshot's rows.

    ``joins``: rows of several files and versions come as one batch; else each batch is of one file,
    and a version without changes gives one empty batch.
    """

    def __init__(self, reading: Reading, *, joins: bool) -> None:
        self.reading = reading
        self.joins = joins
        self._decoding = Decoding(reading, joins=joins)

    async def read(self, versions: Sequence[Version], first: Offset, emit: EmitBatch) -> None:
        """Read the batches from an offset in the first version on.

        The last batch leads to the version after the last one.
        """
        reading = self.reading
        place = reading.place(first)
        assembly = _Assembly(reading, place, first, joins=self.joins)
        fetching = FetchAhead(reading.log.store, reading.budget, reading.decode.on_read)
        tiny = anyio.Lock()

        def may_start(file: ChangeFile) -> bool:
            return not place.skip.remaining and file.kept is None

        async with (
            aclosing(fetching),
            aclosing(self._entries(versions, place)) as found,
            aclosing(fetching.in_order(found, may_start)) as entries,
            aclosing(self._groups(entries, fetching)) as groups,
        ):

            async def decode(group: list[Entry], use: Use[Chunk]) -> None:
                async with tiny if _is_tiny(group) else nullcontext():
                    await self._decode(group, place.skip, use)

            async def use(chunk: Chunk) -> None:
                for batch in assembly.batches(chunk):
                    await emit(batch)
                reading.observer.fetched(chunk.files, chunk.read_bytes)
                if chunk.error is not None:
                    raise self._placed(chunk.error)

            if place.skip.remaining or _size(versions) <= _GROUP_BYTES:
                async for group in groups:
                    await decode(group, use)
            else:
                await in_lanes(groups, decode, use, attrgetter("size"))

    def _placed(self, error: Exception) -> Exception:
        return (
            error.at(table=self.reading.log.store.root) if isinstance(error, TableError) else error
        )

    async def _entries(
        self, versions: Sequence[Version], place: Place
    ) -> AsyncGenerator[Entry, None]:
        """Yield the files to read, and each version after its files."""
        lost = self.reading.lost
        for version in versions:
            if isinstance(version.files, list) and not place.skip.remaining:
                for file in version.files:
                    yield Lost(file) if file in lost else file
                yield version
                continue
            async with (
                aclosing(one_by_one(version.files)) as files,
                aclosing(place.onwards(files)) as following,
            ):
                async for file in following:
                    yield Lost(file) if file in lost else file
            yield version

    async def _groups(
        self, entries: AsyncGenerator[Entry, None], fetching: FetchAhead
    ) -> AsyncGenerator[list[Entry], None]:
        """Yield the entries in groups, with their files fetched unless they can be opened in the
        thread that decodes them."""
        group: list[Entry] = []
        files = size = 0
        try:
            async for entry in entries:
                if isinstance(entry, ChangeFile):
                    if files >= _GROUP_FILES or size >= _GROUP_BYTES:
                        yield group
                        group, files, size = [], 0, 0
                    files, size = files + 1, size + (entry.size or 0)
                group.append(await self._opened(entry, fetching))
        except Exception as e:  # noqa: BLE001 - raised after the rows before it
            group.append(e)
        if group:
            yield group

    async def _opened(self, entry: Entry, fetching: FetchAhead) -> Entry:
        here = self.reading.here is not None
        if here or not isinstance(entry, ChangeFile) or entry.kept is not None:
            return entry
        with file_named(entry):
            return await fetching.take(entry)

    async def _decode(self, group: list[Entry], skip: Skip, use: Use[Chunk]) -> None:
        bounds = self.reading.decode
        items = self._decoding.items(group, skip)
        try:
            steps = chunks(items, bounds.batch_rows_max, bounds.batch_bytes_max)
            async with aclosing(stepwise(steps, quick=_is_quick(group))) as decoded:
                async for chunk in decoded:
                    await use(chunk)
                    if chunk.last:  # another step in a thread would only find this out
                        break
        finally:
            for entry in group:
                if isinstance(entry, Fetched):
                    entry.source.close()


def _size(versions: Sequence[Version]) -> float:
    """Return the encoded bytes of all files; infinite if they are not known."""
    if not all(isinstance(version.files, list) for version in versions):
        return math.inf
    return sum(file.size or 0 for version in versions for file in version.files)


def _is_tiny(group: Sequence[Entry]) -> bool:
    """Return whether another group like this one is better decoded after it than beside it."""
    files = [entry.file if isinstance(entry, Fetched) else entry for entry in group]
    sizes = [file.size for file in files if isinstance(file, ChangeFile)]
    return sum(_TINY_BYTES if size is None else size for size in sizes) < _TINY_BYTES * len(sizes)


def _is_quick(group: Sequence[Entry]) -> bool:
    """Return whether to decode a group takes no longer than a hop into a thread."""
    files = [entry for entry in group if not isinstance(entry, Version)]
    if len(files) != 1 or not isinstance(files[0], ChangeFile):
        return not files
    file = files[0]
    rows = logged_rows(file)
    small = file.size is not None and file.size <= _QUICK_BYTES
    return small and rows is not None and rows <= _QUICK_ROWS and file.without is None


class _Assembly:
    """Makes batches of decoded rows, with the offsets between them."""

    def __init__(self, reading: Reading, place: Place, first: Offset, *, joins: bool) -> None:
        self._reading = reading
        self._place = place
        self._first = first
        self._joins = joins
        self._at: Offset | None = None
        self._made: list[ChangeBatch] = []

    def batches(self, chunk: Chunk) -> list[ChangeBatch]:
        """Return the batches of a chunk, in order."""
        self._made = []
        for item in chunk.items:
            if self._at is None:
                self._at = replace(self._first, index=self._place.index)
            if isinstance(item, Version):
                self._end(item, self._at)
            elif isinstance(item, Lost):
                rows = logged_rows(item.file) or 0
                self._at = replace(self._at, index=self._at.index + rows)
            elif isinstance(item, Together):
                self._made.append(self._together(item, self._at))
                self._at = self._made[-1].next_offset
            else:
                self._made.append(self._batch(*item, self._at))
                self._at = self._made[-1].next_offset
        return self._joined() if self._joins else self._made

    def _batch(self, file: ChangeFile, rows: Rows, at: Offset) -> ChangeBatch:
        selector, counted_by = self._reading.selector, self._reading.counted_by
        following = replace(at, index=at.index + rows.batch.num_rows, counted_by=counted_by)
        state, file = selector.state(file.state), selector.file(file)
        if file.kept is not None:  # what is written need not be kept too
            file = replace(file, kept=())
        return ChangeBatch(
            rows.batch,
            rows.positions,
            state,
            file,
            file.timestamp_ms,
            at,
            following,
            rows.row_ids,
            counted_by=counted_by,
        )

    def _together(self, item: Together, at: Offset) -> ChangeBatch:
        selector, counted_by = self._reading.selector, self._reading.counted_by
        parts: list[Part] = []
        first = 0
        for entry in item.entries:
            if isinstance(entry, Version):
                at = at.next_version(entry.timestamp_ms)
                continue
            file, rows = entry
            if rows:
                parts.append(Part(first, selector.file(file), at))
                at = replace(at, index=at.index + rows, counted_by=counted_by)
            first += rows
        last = parts[-1].file
        return ChangeBatch(
            item.rows.batch,
            item.rows.positions,
            selector.state(last.state),
            last if len(parts) == 1 else None,
            last.timestamp_ms,
            parts[0].offset,
            at,
            counted_by=counted_by,
            run=tuple(parts) if len(parts) > 1 else (),
        )

    def _end(self, version: Version, at: Offset) -> None:
        """Let the last batch lead to the next version; without one, add an empty one that does."""
        skip, first = self._place.skip, self._first
        if skip.remaining:
            raise OffsetError(
                f"the offset names change {first.index} of a version that has "
                f"{first.index - skip.remaining}",
                version=first.version,
                hint="it was saved under another change source, or set wrongly; set it again",
            )
        self._at = at.next_version(version.timestamp_ms)
        last = self._made[-1] if self._made else None
        if last is None or not (self._joins or last.version == version.number):
            last = self._empty(version, at)
            self._made.append(last)
        self._made[-1] = replace(last, next_offset=self._at)

    def _empty(self, version: Version, at: Offset) -> ChangeBatch:
        reading = self._reading
        rows = reading.no_rows(version.state)
        state, nowhere = reading.selector.state(version.state), pa.array([], pa.int64())
        counted_by = reading.counted_by
        return ChangeBatch(
            rows, nowhere, state, None, version.timestamp_ms, at, at, counted_by=counted_by
        )

    def _joined(self) -> list[ChangeBatch]:
        """Return the batches as few: one for each schema."""
        runs: list[list[ChangeBatch]] = []
        for batch in self._made:
            if runs and not runs[-1][-1].num_rows:  # what comes leads further
                runs[-1] = [batch]
            elif runs and _alike(runs[-1][-1], batch):
                runs[-1].append(batch)
            else:
                runs.append([batch])
        return [joined(run) for run in runs]


def _alike(one: ChangeBatch, other: ChangeBatch) -> bool:
    """Return whether the rows of two batches may be in one."""
    return one.state is other.state and (one.row_ids is None) == (other.row_ids is None)
