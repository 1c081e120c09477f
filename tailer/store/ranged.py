"""A file on a server, readable by pyarrow from worker threads.

Opening the file fetches its end, where Parquet keeps the footer. After that, each read fetches more
than was requested, so that one request covers neighbouring column chunks. A read that continues
where an earlier fetch ended fetches twice as much, and the bytes behind it are fetched while it is
decoded. The bytes kept are bounded; when windows are dropped before they were read, as with very
many columns, they become smaller.

Every range carries the ETag that the file had when it was opened. A file that changed meanwhile is
an error, never a mix.
"""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from tailer.store.budget import Budget

__all__ = ["Ahead", "Fetch", "RangedReader"]

#: Fetches the bytes of [start, end); runs on the event loop.
Fetch = Callable[[int, int], Coroutine[Any, Any, bytes]]

_WINDOW_MIN_BYTES = 256 * 1024
_WINDOW_FIRST_BYTES = 1024 * 1024
_WINDOW_MAX_BYTES = 8 * 1024 * 1024


@dataclass(slots=True)
class _Window:
    """Bytes of the file from ``start`` on; ``read`` is the end of the part that was read."""

    start: int
    data: bytes
    read: int

    @property
    def end(self) -> int:
        return self.start + len(self.data)


@dataclass(slots=True)
class Ahead:
    """What is fetched before it is requested.

    ``first`` are bytes of the file's beginning that are already fetched. ``budget`` limits the
    bytes fetched ahead; None: none.
    """

    budget: Budget | None = None
    first: bytes = b""


class RangedReader(io.RawIOBase):
    """A file of ``size`` bytes for one thread at a time, any but the event loop's.

    ``tail`` are its last bytes, which are kept; ``bytes_max`` bounds the other bytes, kept or being
    fetched.
    """

    def __init__(
        self,
        fetch: Fetch,
        loop: asyncio.AbstractEventLoop,
        size: int,
        tail: bytes,
        bytes_max: int,
        ahead: Ahead | None = None,
    ) -> None:
        super().__init__()
        self._fetch = fetch
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._size = size
        self._tail = _Window(size - len(tail), tail, size)
        self._windows: list[_Window] = []  # the most recently used at the end
        ahead = ahead or Ahead()
        if ahead.first:
            self._windows.append(_Window(0, ahead.first, 0))
        self._budget = ahead.budget
        self._coming: dict[int, tuple[int, Future[bytes]]] = {}  # by start: the end, and the bytes
        self._bytes_max = bytes_max
        self._window_max = min(_WINDOW_MAX_BYTES, bytes_max)
        self._at = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set where the next read begins."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Return the next ``size`` bytes, fewer only at the file's end."""
        rest = max(0, self._size - self._at)
        wanted = rest if size is None or size < 0 else min(size, rest)
        data = self._range(self._at, self._at + wanted) if wanted else b""
        self._at += len(data)
        return data

    def readall(self) -> bytes:
        """Return the bytes from here to the end."""
        return self.read(-1)

    def close(self) -> None:
        """Drop all kept bytes and cancel the fetches."""
        self._windows.clear()
        for start in list(self._coming):
            self._forget(start).cancel()
        super().close()

    def _range(self, start: int, end: int) -> bytes:
        parts, at = [], start
        while at < end:
            window = self._known(at) or self._get(at, end)
            upto = min(end, window.end)
            window.read = max(window.read, upto)
            parts.append(window.data[at - window.start : upto - window.start])
            at = upto
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _known(self, at: int) -> _Window | None:
        if at >= self._tail.start:
            return self._tail
        for window in reversed(self._windows):
            if window.start <= at < window.end:
                if window is not self._windows[-1]:
                    self._windows.remove(window)
                    self._windows.append(window)
                return window
        return None

    def _get(self, at: int, end: int) -> _Window:
        """Fetch the wanted bytes from ``at`` on, and some of those behind them."""
        before = next((w for w in self._windows if w.end == at), None)
        coming = next((s for s, (upto, _) in self._coming.items() if s <= at < upto), None)
        if coming is not None:
            window = _Window(coming, self._forget(coming).result(), coming)
        else:
            ahead = _WINDOW_FIRST_BYTES if before is None else 2 * len(before.data)
            upto = min(max(end, at + min(ahead, self._window_max)), self._following(at))
            self._make_room(upto - at)
            window = _Window(at, self._blocking(self._fetch(at, upto)), at)
        self._windows.append(window)
        if before is not None:
            self._start_ahead(window)
        return window

    def _following(self, at: int) -> int:
        """Return the first offset behind ``at`` that is already kept or being fetched."""
        starts = (*self._coming, *(w.start for w in (*self._windows, self._tail)))
        return min((start for start in starts if start > at), default=self._size)

    def _start_ahead(self, window: _Window) -> None:
        """Fetch the bytes behind a window that followed another: the reader is sequential."""
        start = window.end
        size = min(2 * len(window.data), self._window_max, self._following(start - 1) - start)
        room = self._bytes_max - self._kept()
        if self._budget is None or size <= 0 or size > room or not self._budget.take(size):
            return
        work = self._fetch(start, start + size)
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._coming[start] = start + size, future

    def _forget(self, start: int) -> Future[bytes]:
        """Take a fetch off the list of those in progress, and free its budget."""
        upto, future = self._coming.pop(start)
        if self._budget is not None:
            self._budget.give(upto - start)
        return future

    def _kept(self) -> int:
        """Return the number of bytes kept or being fetched."""
        coming = sum(upto - start for start, (upto, _) in self._coming.items())
        return coming + sum(len(window.data) for window in self._windows)

    def _make_room(self, size: int) -> None:
        kept = self._kept()
        while self._windows and kept + size > self._bytes_max:
            dropped = self._windows.pop(0)
            kept -= len(dropped.data)
            if dropped.read < dropped.end:
                self._window_max = max(_WINDOW_MIN_BYTES, self._window_max // 2)

    def _blocking(self, work: Coroutine[Any, Any, bytes]) -> bytes:
        """Run ``work`` on the event loop while this thread waits."""
        if threading.get_ident() == self._loop_thread:
            work.close()
            raise RuntimeError("a remote file is read in worker threads, not in the event loop")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
