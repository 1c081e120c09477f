"""What is shown of a long read, on a terminal alone: how much was read, and how fast."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Self

from tailer.changes import ChangeBatch
from tailer.delta.snapshot import Snapshot
from tailer.feed.progress import FeedProgress
from tailer.log.table import TableLog

#: Seconds before anything is drawn: most reads are over by then.
_DELAY_S = 0.5


class BytesRead:
    """Counts the bytes that are read, and draws them while its block runs, if standard error is a
    terminal: with ``total`` as a bar, without one as a number. It is called with each number of
    bytes, also by worker threads."""

    def __init__(self, what: str, total: int | None = None) -> None:
        self.what = what
        self.total = total
        self._bar: Any = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from tqdm import tqdm  # on demand: it takes a third of pyarrow's time

            self._bar = tqdm(
                desc=self.what, total=self.total, unit="B", unit_scale=True, unit_divisor=1024,
                leave=False, delay=_DELAY_S, dynamic_ncols=True,
            )  # fmt: skip
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    def __call__(self, count: int) -> None:
        """Count this many bytes more."""
        if self._bar is not None:
            self._bar.update(count)

    def close(self) -> None:
        """Remove what is drawn."""
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.close()


async def stored_bytes(log: TableLog, snapshot: Snapshot) -> int | None:
    """Return the size of a snapshot's files; None where nobody would see it."""
    if not sys.stderr.isatty():
        return None
    size = 0
    async for add in log.live_files(snapshot):
        size += add.size
    return size


class SnapshotProgress(FeedProgress):
    """A feed's progress that draws the bytes of its snapshot until the snapshot is delivered."""

    def __init__(self, feed: str, drawn: BytesRead) -> None:
        super().__init__(feed, time.time)
        self.drawn = drawn

    def count_read_bytes(self, count: int) -> None:
        super().count_read_bytes(count)
        self.drawn(count)

    def note_saved_batch(self, batch: ChangeBatch, *, whole: bool = True) -> None:
        super().note_saved_batch(batch, whole=whole)
        if not batch.next_offset.snapshot:
            self.drawn.close()
