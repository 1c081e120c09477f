"""The files of a span: opened ahead of their turn, and handed to the decoder in groups.

The rules:

- A group is what one decoder gets: 256 files, or as many as have 8 MiB, and the ends of versions
  between and after them. A version's end is in the group of its last file.
- Where a worker thread can read the store (a local folder), files are not opened here but by the
  thread that decodes them. Where each request takes a while (S3), the next files are opened while
  those before them are decoded: a few, and none for which the budget has no room.
- An error is raised in its place: a group that could not be completed is returned as far as it
  came, and the next call raises.

What must never happen: a file that was opened and is closed by nobody. Until a group is returned,
:meth:`SpanFiles.aclose` closes its files; from then on the decoder does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from enum import Enum, auto

import anyio
from msgspec import Struct, structs

from tailer.changes import ChangeFile
from tailer.decode.byte_range import divide_size
from tailer.feed.read_context import ReadContext
from tailer.feed.rows.counting import IndexFinder
from tailer.feed.rows.fetch import Fetched, fetch_file
from tailer.feed.rows.span import Span, SpanEntry, Version
from tailer.process.threads import one_by_one
from tailer.store import WHOLE_BYTES

#: The most files, and their most encoded bytes, that are decoded in one group. Decoded, they are
#: about as much as may wait for its turn (`group_lanes`), so that no lane stands still for long.
_GROUP_FILES = 256
GROUP_BYTES = 8 * 1024 * 1024
#: With more files of a span that are opened ahead than this, no further one is taken.
_AHEAD_FILES = 8
#: Bytes at a large file's end, where its footer is.
_END_BYTES = 64 * 1024


class _Started(Struct, frozen=True, eq=False):
    """A file that is being opened ahead of its turn, and how much of the budget it takes."""

    entry: SpanEntry
    size: int
    task: asyncio.Task[Fetched]


class DecodedBy(Enum):
    """Who decodes the groups of a span."""

    #: This process: files are opened ahead of their turn, where the decoding thread can't.
    THIS_PROCESS = auto()
    #: Others: no file is opened here, and large ones are divided among groups.
    OTHERS = auto()


class SpanFiles(AsyncIterator[list[SpanEntry]]):
    """Yields the entries of a span in groups. ``finder`` finds the file to begin with."""

    def __init__(
        self,
        context: ReadContext,
        span: Span,
        finder: IndexFinder,
        decoded_by: DecodedBy = DecodedBy.THIS_PROCESS,
    ) -> None:
        opens = decoded_by is DecodedBy.THIS_PROCESS
        self._context = context
        self._span = span
        self.finder = finder
        #: What is opened ahead; None if each thread opens its files itself, or others do.
        self._budget = context.budget if opens else None
        self._opens = opens and context.blocking_files is None
        self._divides = not opens
        self._bytes_max = GROUP_BYTES if opens or not context.remote else context.remote.group_bytes
        self._entries = self._iterate_entries()
        self._ended = False
        self._waiting: deque[SpanEntry] = deque()  # not yet in a group
        self._started: list[_Started] = []  # those of them that are being opened, in order
        self._group: list[SpanEntry] = []
        self._entries_error: Exception | None = None  # after those that wait
        self._error: Exception | None = None  # after the last group

    async def __anext__(self) -> list[SpanEntry]:
        """Return the next group."""
        if self._error is not None:
            raise self._error
        try:
            await self._fill_group()
        except Exception as e:
            if not self._group:
                raise
            self._error = e
        if not self._group:
            raise StopAsyncIteration
        group, self._group = self._group, []
        return group

    async def _fill_group(self) -> None:
        files = size = 0
        while (entry := await self._peek_entry()) is not None:
            file = entry.file_to_read
            if file is not None:
                if files >= _GROUP_FILES or size >= self._bytes_max:
                    return
                files, size = files + 1, size + entry.find_size()
            self._waiting.popleft()
            if file is not None and file.kept is None and self._opens:
                entry.opened = await self._open_entry(entry, file)
            self._group.append(entry)

    async def _iterate_entries(self) -> AsyncGenerator[SpanEntry, None]:
        """Yield the files to read, from the offset's on, and each version's end after its files."""
        for version in self._span.versions:
            files = version.files
            if files.count is not None and not self.finder.skip.remaining:
                for file in files.in_order:
                    for entry in self._make_entries(version, file):
                        yield entry
            else:
                async with (
                    aclosing(one_by_one(files.in_order)) as coming,
                    aclosing(self.finder.skip_to_index(coming)) as following,
                ):
                    async for file in following:
                        for entry in self._make_entries(version, file):
                            yield entry
            yield SpanEntry(version)

    def _make_entries(self, version: Version, file: ChangeFile) -> list[SpanEntry]:
        """Return the entry of a file, or those of its parts."""
        entry = SpanEntry(version, file, file in self._context.unread)
        size = entry.find_size()
        # Where a cdc file is divided, the two images of an update may not be together; and what is
        # skipped is counted in a whole file.
        whole = file.change_type is None or file.rows is not None or self.finder.skip.remaining
        if whole or not self._divides or size < 2 * self._bytes_max:
            return [entry]
        parts = divide_size(size, self._bytes_max)
        return [structs.replace(entry, byte_range=part) for part in parts]

    async def _peek_entry(self) -> SpanEntry | None:
        """Return the next entry, with those after it being opened as far as the budget goes."""
        while not self._ended and (not self._waiting or self._may_take_next(self._waiting[-1])):
            try:
                entry = await anext(self._entries, None)
            except Exception as e:  # noqa: BLE001 - raised after the entries before it
                entry, self._entries_error = None, e
            if entry is None:
                self._ended = True
            else:
                self._waiting.append(entry)
                self._start_opening(entry)
        if self._waiting:
            return self._waiting[0]
        if self._entries_error is not None:
            raise self._entries_error
        return None

    def _may_take_next(self, last: SpanEntry) -> bool:
        """Return whether to take the entry after the last one: only if the last one is a file that
        is being opened, or none."""
        if self._budget is None or len(self._started) > _AHEAD_FILES:
            return False
        begun = bool(self._started) and self._started[-1].entry is last
        return begun or last.file_to_read is None

    def _start_opening(self, entry: SpanEntry) -> None:
        """Begin to open a file, if the budget has room for it."""
        file, budget = entry.file_to_read, self._budget
        if budget is None or file is None or file.kept is not None or self.finder.skip.remaining:
            return
        whole = file.size is not None and file.size <= WHOLE_BYTES
        vectors = [dv for dv in (file.only, file.without) if dv is not None]
        size = (file.size or 0) if whole else _END_BYTES
        size += sum(dv.size_in_bytes for dv in vectors)
        if budget.try_take(size):
            task = asyncio.create_task(_fetch(self._context, file))
            self._started.append(_Started(entry, size, task))

    async def _open_entry(self, entry: SpanEntry, file: ChangeFile) -> Fetched:
        if not self._started or self._started[0].entry is not entry:
            return await _fetch(self._context, file)
        opened = await self._started[0].task
        self._forget_started(self._started[0])
        return opened

    def _forget_started(self, started: _Started) -> None:
        self._started.remove(started)
        if self._budget is not None:
            self._budget.give_back(started.size)

    async def aclose(self) -> None:
        """Close what was opened ahead and is in no group that was returned."""
        await self._entries.aclose()
        left = list(self._started)
        for started in left:
            started.task.cancel()
            self._forget_started(started)
        with anyio.CancelScope(shield=True):
            for started in left:
                with suppress(Exception, asyncio.CancelledError):
                    (await started.task).source.close()
        for entry in self._group:
            entry.close()


async def open_files(context: ReadContext, group: list[SpanEntry]) -> Exception | None:
    """Open the files of a group, where the thread that decodes them can't. After an error, which is
    returned, the group ends before that file: its rows come first."""
    if context.blocking_files is not None:
        return None
    waiting = [
        place
        for place, entry in enumerate(group)
        if (file := entry.file_to_read) is not None and file.kept is None and entry.opened is None
    ]
    for at in range(0, len(waiting), _AHEAD_FILES):
        places = waiting[at : at + _AHEAD_FILES]
        fetches = (_open_here(context, group[place]) for place in places)
        try:
            found = await asyncio.gather(*fetches, return_exceptions=True)
        except BaseException:
            for entry in group:
                entry.close()
            raise
        for place, error in zip(places, found, strict=True):
            if isinstance(error, Exception):
                for entry in group[place:]:
                    entry.close()
                del group[place:]
                return error
    return None


async def _open_here(context: ReadContext, entry: SpanEntry) -> None:
    entry.opened = await _fetch(context, entry.file)


async def _fetch(context: ReadContext, file: ChangeFile | None) -> Fetched:
    assert file is not None, "an entry that is read has a file"
    return await fetch_file(context.log.store, file, context.decode.on_read)
