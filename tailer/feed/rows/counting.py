"""How many changes a file has, and which file an offset's index lies in.

Statistics may be absent or wrong, and an index counted with a wrong ``numRecords`` would lose rows
or repeat them. So a file's changes are counted from its footer and its deletion vectors, without
reading its rows; a file whose footer contradicts the log is refused when it is read. The log's
count is used only for a file that no longer exists, because nothing else is left to count.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Container, Iterator

import anyio
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import structs

from tailer.changes import CHANGE_TYPE, ChangeFile, Offset
from tailer.decode.rows import EARLY_KINDS, Skip
from tailer.decode.unreadable_files import UNREADABLE, make_unreadable_error
from tailer.decode.vectors import RowSelection
from tailer.delta.parquet_columns import ParquetColumns
from tailer.errors import FileGone
from tailer.feed.rows.fetch import fetch_file
from tailer.process.threads import run_blocking
from tailer.store import Store

#: The number of files that are counted at the same time.
_FILES_MAX = 8
_ROWS_AT_ONCE = 65_536


async def count_changes(store: Store, file: ChangeFile) -> int:
    """Count a file's changes from its footer and its deletion vectors.

    Only a cdc file that is read in two passes is counted from its change types. Errors are those of
    :func:`fetch_file` and of decoding.
    """
    if file.rows is not None:
        return len(file.rows)
    # The deletion vector's cardinality is checked when its rows are read.
    gone = file.without.cardinality if file.without and file.only is None else 0
    fetched = await fetch_file(store, structs.replace(file, without=None) if gone else file)
    with fetched.source as source:
        return await run_blocking(_count_in_file, source, file, fetched.selection) - gone


async def count_known_changes(store: Store, file: ChangeFile) -> int:
    """Count as :func:`count_changes` does, and use the log's count for a file that is gone."""
    logged = file.logged_rows()
    try:
        return await count_changes(store, file)
    except FileGone as e:
        e.rows = logged
        if logged is None:
            raise
        return logged


def _count_in_file(source: pa.NativeFile, file: ChangeFile, selection: RowSelection) -> int:
    try:
        parquet = ParquetColumns(source, checksums=False)
        if file.kinds is None:
            return selection.count(0, parquet.num_rows)
        return sum(_count_kinds(parquet, file.kinds))
    except UNREADABLE as e:
        raise make_unreadable_error(file, e) from None


def _count_kinds(parquet: ParquetColumns, kinds: tuple[str, ...]) -> Iterator[int]:
    early = (name for name, kind in EARLY_KINDS.items() if kind in kinds)
    wanted = pa.array([*kinds, *early], pa.string())
    groups = range(parquet.num_row_groups)
    for batch in parquet.read_batches(_ROWS_AT_ONCE, groups, [CHANGE_TYPE], threads=True):
        yield pc.sum(pc.is_in(batch.column(0), value_set=wanted)).as_py() or 0


class IndexFinder:
    """Finds the file in which an offset's index lies, among a version's files in their order.

    ``unread`` are the files whose rows only count. ``index`` is that of the first change that is
    read.
    """

    def __init__(self, store: Store, first: Offset, unread: Container[ChangeFile] = ()) -> None:
        self.index = first.index
        self.skip = Skip(first.index)
        self._store = store
        self._unread = unread

    async def skip_to_index(
        self, files: AsyncIterator[ChangeFile]
    ) -> AsyncGenerator[ChangeFile, None]:
        """Yield the files from the one with the index on.

        ``skip`` is the number of changes of the first file that lie before the index. If some of it
        is left at the end, the version has fewer changes than the index.
        """
        begun = not self.skip.remaining
        while not begun:
            block: list[ChangeFile] = []
            while len(block) < _FILES_MAX and (file := await anext(files, None)) is not None:
                block.append(file)
            passed = await self._count_passed_files(block)
            begun = passed < len(block) or not self.skip.remaining
            for file in block[passed:]:
                yield file
            if not block:
                return
        async for file in files:
            yield file

    async def _count_passed_files(self, files: list[ChangeFile]) -> int:
        """Return how many of these files, the first ones, lie before the index."""
        counts = [asyncio.create_task(self._count_file(file)) for file in files]
        try:
            for number, file in enumerate(files):
                if not (self.skip.remaining and self._pass_file(file, await counts[number])):
                    return number
            return len(files)
        finally:
            for task in counts:
                task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.gather(*counts, return_exceptions=True)

    async def _count_file(self, file: ChangeFile) -> int:
        if file in self._unread:
            return file.logged_rows() or 0
        return await count_known_changes(self._store, file)

    def _pass_file(self, file: ChangeFile, count: int) -> bool:
        """Return whether all of a file's changes lie before the index."""
        before = self.skip.remaining
        if file in self._unread:  # its changes are counted as if they were delivered
            self.skip.remaining -= min(count, before)
            self.index += count - min(count, before)
            return True
        if count > before:
            return False
        self.skip.remaining -= count
        return True
