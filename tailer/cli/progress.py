"""What is shown of a long read on a terminal: how much was read, and how fast. Of a comparison,
which may take hours, it is said elsewhere too."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Self

from tailer.changes import ChangeBatch
from tailer.daemon.progress_log import format_snapshot
from tailer.delta.commit import Commit
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

    def begin_part(self, total: int | None) -> None:
        """Count from 0 again, to this total if it is known."""
        if self._bar is not None:
            self._bar.total = total
            self._bar.reset()

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


class SnapshotBar(FeedProgress):
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


class ComparisonProgress(FeedProgress):
    """How far a comparison is, while its block runs: drawn on a terminal, elsewhere a line on
    standard error every ``every_s`` seconds; 0: none."""

    def __init__(self, what: str, every_s: float = 60.0) -> None:
        super().__init__(what, time.time)
        self.drawn = BytesRead(what)
        self._every_s = 0.0 if sys.stderr.isatty() else every_s
        self._said_s = self.clock()
        self._rows = 0

    def __enter__(self) -> Self:
        self.drawn.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None
    ) -> None:
        self.drawn.close()

    def begin_comparison(self) -> None:
        self._rows = 0
        self._begin_part(None)

    def begin_snapshot(self, files: int, size: int) -> None:
        self._begin_part(size)
        super().begin_snapshot(files, size)

    def note_commit(self, commit: Commit) -> None:
        del commit
        if self.snapshots:  # the one before the changes is read
            self._begin_part(None)

    def _begin_part(self, size: int | None) -> None:
        self.snapshots.clear()
        self.drawn.begin_part(size)

    def count_read_bytes(self, count: int) -> None:
        self.drawn(count)

    def count_compared(self, rows: int) -> None:
        now = self.clock()
        self._rows += rows
        for snapshot in self.snapshots:
            snapshot.count_rows(rows, now)
        if self._every_s and now - self._said_s >= self._every_s:
            self._said_s = now
            found = self.describe_snapshot()
            read = "" if found is None else (
                f", {found['bytes_read']} of {found['bytes']} bytes; {format_snapshot(found)}"
            )  # fmt: skip
            print(f"{self.feed}: {self._rows} rows compared{read}", file=sys.stderr, flush=True)
