"""From a work order to its bytes: the open data file and its deletion vectors."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

import anyio
import pyarrow as pa
from pyroaring import BitMap64

from tailer.changes import ChangeFile
from tailer.decode.tracking import OnRead
from tailer.decode.vectors import (
    ALL_ROWS,
    RowSelection,
    parse_dv_file,
    parse_inline_dv,
    stored_length,
)
from tailer.delta.actions import DeletionVectorDescriptor
from tailer.delta.paths import dv_location
from tailer.errors import CorruptLog, FileGone, TableError
from tailer.store import WHOLE_BYTES, BlockingFiles, Store
from tailer.store.budget import Budget

__all__ = ["FetchAhead", "Fetched", "fetch", "fetch_here"]

T = TypeVar("T")

#: The most files of one version that are fetched at the same time.
_FILES_MAX = 8
#: Bytes at a large file's end, where its footer is.
_END_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Fetched:
    """A work order with the data to decode it; the code that decodes it closes ``source``."""

    file: ChangeFile
    source: pa.NativeFile
    selection: RowSelection


@dataclass(frozen=True, slots=True)
class _Started:
    """A file that is being fetched, and how much of the budget it takes."""

    file: ChangeFile  # while it is referenced here, no other object can have its id
    size: int
    task: asyncio.Task[Fetched]


class FetchAhead:
    """Fetches files ahead of time, while the files before them are decoded and written.

    A file is examined (:meth:`in_order`), started if the budget has room for it, and taken in its
    turn (:meth:`take`), which returns its part of the budget. A file that was not started is
    fetched when it is taken. An error is raised when its file is taken.

    Without a budget, no file is started.
    """

    def __init__(self, store: Store, budget: Budget | None, on_read: OnRead | None) -> None:
        self._store = store
        self._on_read = on_read
        self._budget = budget
        self._started: dict[int, _Started] = {}  # by the file's id

    async def in_order(
        self, entries: AsyncIterator[T], may_start: Callable[[ChangeFile], bool]
    ) -> AsyncGenerator[T, None]:
        """Yield the same entries, files and others. Before one is yielded, the files after it are
        examined, and started where they ``may_start``, up to the first one that is not started."""
        if self._budget is None:
            async for entry in entries:
                yield entry
            return
        ahead: deque[T] = deque()
        failed: Exception | None = None
        ended = False
        while True:
            while not ended and (not ahead or self._has_room(ahead[-1])):
                try:
                    entry = await anext(entries)
                except StopAsyncIteration:
                    ended = True
                except Exception as e:  # noqa: BLE001 - those before it come first
                    ended, failed = True, e
                else:
                    ahead.append(entry)
                    if isinstance(entry, ChangeFile) and may_start(entry):
                        self._start(entry)
            if not ahead:
                break
            yield ahead.popleft()
        if failed is not None:
            raise failed

    def _has_room(self, last: object) -> bool:
        """Return whether to examine the entry after the last one: only if the last one is a file
        that was started, or none."""
        started = id(last) in self._started or not isinstance(last, ChangeFile)
        return started and len(self._started) <= _FILES_MAX

    def _start(self, file: ChangeFile) -> None:
        whole = file.size is not None and file.size <= WHOLE_BYTES
        vectors = [dv for dv in (file.only, file.without) if dv is not None]
        size = (file.size or 0) if whole else _END_BYTES
        size += sum(dv.size_in_bytes for dv in vectors)
        if self._budget is not None and self._budget.take(size):
            task = asyncio.create_task(fetch(self._store, file, self._on_read))
            self._started[id(file)] = _Started(file, size, task)

    async def take(self, file: ChangeFile) -> Fetched:
        """Return a file in its turn; the caller closes it. Errors are those of :func:`fetch`."""
        started = self._started.get(id(file))
        if started is None:
            return await fetch(self._store, file, self._on_read)
        found = await started.task
        self._forget(started)
        return found

    def _forget(self, started: _Started) -> None:
        del self._started[id(started.file)]
        if self._budget is not None:
            self._budget.give(started.size)

    async def aclose(self) -> None:
        """Cancel and close all files that were not taken."""
        left = list(self._started.values())
        for started in left:
            started.task.cancel()
            self._forget(started)
        with anyio.CancelScope(shield=True):
            for started in left:
                with suppress(Exception, asyncio.CancelledError):
                    (await started.task).source.close()


async def fetch(store: Store, file: ChangeFile, on_read: OnRead | None = None) -> Fetched:
    """Open a work order's data file and read its deletion vectors.

    ``on_read`` is called with the size of the deletion vectors in bytes; decoding reports the data
    file's. Raises :class:`FileGone` for a missing file, :class:`CorruptLog` for a deletion vector
    that fails its checks; both name version and file.
    """
    vectors = [dv_location(dv) for dv in (file.only, file.without) if dv is not None]
    for where in (file.location, *vectors):
        if where is not None:
            await store.expect(where, file.version, snapshot=file.origin == "snapshot")
    selection = ALL_ROWS
    if file.rows is not None:
        selection = RowSelection.of(file.rows, None)
    elif file.only is not None or file.without is not None:
        selection = RowSelection.of(
            await _row_bitmap(store, file, file.only, on_read),
            await _row_bitmap(store, file, file.without, on_read),
        )
    try:
        source = await store.open(file.location, file.size)
    except FileNotFoundError:
        kind = "cdc" if file.change_type is None else "data"
        raise _gone(store, file, file.path, kind) from None
    return Fetched(file, _of_the_log(store, file, source), selection)


def fetch_here(store: BlockingFiles, file: ChangeFile, on_read: OnRead | None = None) -> Fetched:
    """Do what :func:`fetch` does, in the calling thread."""
    selection = ALL_ROWS
    if file.rows is not None:
        selection = RowSelection.of(file.rows, None)
    elif file.only is not None or file.without is not None:
        only, without = (
            None if dv is None else _bitmap_here(store, file, dv, on_read)
            for dv in (file.only, file.without)
        )
        selection = RowSelection.of(only, without)
    try:
        source = store.open_here(file.location)
    except FileNotFoundError:
        kind = "cdc" if file.change_type is None else "data"
        raise _gone(store, file, file.path, kind) from None
    return Fetched(file, _of_the_log(store, file, source), selection)


def _of_the_log(
    store: Store | BlockingFiles, file: ChangeFile, source: pa.NativeFile
) -> pa.NativeFile:
    """Return an open file. Raises :class:`CorruptLog` if its size is not the one in the log.

    The store knows the size from its first answer, so that this takes no request.
    """
    found = source.size()
    if file.size is None or found == file.size:
        return source
    source.close()
    raise CorruptLog(
        f"the data file has {found} bytes, and the log says {file.size}: it was cut, or another "
        "one took its place",
        table=store.root,
        version=file.version,
        path=file.path,
        hint="restore it from a backup, or skip this version",
    )


async def _row_bitmap(
    store: Store,
    file: ChangeFile,
    dv: DeletionVectorDescriptor | None,
    on_read: OnRead | None,
) -> BitMap64 | None:
    if dv is None:
        return None
    with _vector_named(store, file, dv):
        where = dv_location(dv)
        if where is None:
            return parse_inline_dv(dv)
        stored, _ = await store.read(where, *stored_length(dv))
        return _parsed(stored, dv, on_read)


def _bitmap_here(
    store: BlockingFiles, file: ChangeFile, dv: DeletionVectorDescriptor, on_read: OnRead | None
) -> BitMap64:
    with _vector_named(store, file, dv):
        where = dv_location(dv)
        if where is None:
            return parse_inline_dv(dv)
        stored, _ = store.read_here(where, *stored_length(dv))
        return _parsed(stored, dv, on_read)


def _parsed(stored: bytes, dv: DeletionVectorDescriptor, on_read: OnRead | None) -> BitMap64:
    if on_read is not None:
        on_read(len(stored))
    return parse_dv_file(stored, dv)


@contextmanager
def _vector_named(
    store: Store | BlockingFiles, file: ChangeFile, dv: DeletionVectorDescriptor
) -> Iterator[None]:
    """Name the deletion vector's file, or the data file of an inline one, in the block's errors."""
    where = None
    try:
        where = dv_location(dv)
        yield
    except FileNotFoundError:
        raise _gone(store, file, str(where), "deletion vector") from None
    except TableError as e:
        raise e.at(table=store.root, version=file.version, path=where or file.path) from None


def _gone(store: Store | BlockingFiles, file: ChangeFile, path: str, kind: str) -> FileGone:
    error = FileGone(
        f"the {kind} file is gone",
        table=store.root,
        version=file.version,
        path=path,
        hint="VACUUM or a lifecycle rule removed it before it was read; start after this version, "
        "or with a snapshot",
    )
    error.file = file.path
    return error
