"""Work that compares the rows of a version's files, in worker threads.

Three kinds of threads meet here. The work runs in a worker thread; its engine pulls rows from
threads of its own; and the store answers in the event loop. So a thread that opens a file asks the
event loop for it, and waits. What must never happen: such a wait in the event loop itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import anyio.to_thread
import pyarrow as pa
from anyio.from_thread import BlockingPortal

from tailer.changes import ChangeFile
from tailer.decode.tracking import OnRead
from tailer.decode.vectors import RowSelection
from tailer.errors import ungrouping
from tailer.feed.rows.fetch import fetch_file
from tailer.store import Store

if TYPE_CHECKING:
    from tailer.decode.rows import OpenFile

T = TypeVar("T")


async def compare_files(
    store: Store, work: Callable[[OpenFile], T], on_read: OnRead | None = None
) -> T:
    """Run ``work`` with a function that opens files; see :func:`fetch_file` for ``on_read``."""

    def open_file(file: ChangeFile) -> tuple[pa.NativeFile, RowSelection]:
        fetched = portal.call(fetch_file, store, file, on_read)
        return fetched.source, fetched.selection

    with ungrouping():
        async with BlockingPortal() as portal:
            result = await anyio.to_thread.run_sync(work, open_file)
    return result
