"""A file on a server, readable by pyarrow from worker threads.

Opening the file fetches its end, where Parquet keeps the footer. A decoder then says which ranges
it will read (:meth:`RangedFile.will_read`). They are fetched in pieces of a few MiB, in the order
in which they are needed, several at once and ahead of the reads. What is kept and what is on its
way are each bounded by half of ``bytes_max``.

Every range carries the ETag that the file had when it was opened. A file that changed meanwhile is
an error, never a mix.
"""

from __future__ import annotations

import asyncio
import io
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pyarrow as pa

from tailer.store.budget import Budget
from tailer.store.pieces import PIECE_BYTES_MAX, Piece, Range, plan_pieces

#: Fetches the bytes of [start, end), in parts; runs on the event loop.
Fetch = Callable[[int, int], Coroutine[Any, Any, Sequence[bytes]]]

#: Most requests of one file at once.
_REQUESTS_MAX = 8
#: Bytes that are fetched for an unannounced read; doubled if the next read continues there.
_WINDOW_BYTES = 1024 * 1024


class _Buffer:
    """A piece that was fetched, in parts. ``read`` is where its unread bytes begin."""

    __slots__ = ("_ends", "_parts", "piece", "read")

    def __init__(self, piece: Piece, parts: Sequence[bytes]) -> None:
        self.piece = piece
        self.read = piece.start
        self._parts = parts
        self._ends = list(accumulate(map(len, parts), initial=piece.start))[1:]

    def view_range(self, start: int, end: int) -> Iterator[memoryview]:
        """Yield the bytes of [start, end)."""
        self.read = max(self.read, end)
        for number in range(bisect_right(self._ends, start), len(self._parts)):
            part = self._parts[number]
            first = self._ends[number] - len(part)
            if first >= end:
                return
            yield memoryview(part)[max(0, start - first) : end - first]


class RangedReader(io.RawIOBase):
    """A file of ``size`` bytes for one thread at a time, any but the event loop's.

    ``tail`` are its last bytes, which are kept; ``bytes_max`` bounds the other bytes, kept or being
    fetched. ``budget`` limits the bytes fetched ahead; None: nothing is.
    """

    def __init__(
        self,
        fetch: Fetch,
        size: int,
        tail: bytes,
        bytes_max: int,
        budget: Budget | None = None,
    ) -> None:
        super().__init__()
        self._fetch = fetch
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._size = size
        self._tail = _Buffer(Piece(size - len(tail), size), (tail,))
        self._kept: list[_Buffer] = []  # the most recently used at the end
        self._budget = budget
        self._planned: deque[Piece] = deque()
        # In the order in which they are needed.
        self._coming: dict[Piece, Future[Sequence[bytes]]] = {}
        self._bytes_max = bytes_max // 2
        self._group = 0
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

    def read(self, size: int | None = -1) -> bytes | memoryview:
        """Return the next ``size`` bytes, fewer only at the file's end."""
        rest = max(0, self._size - self._at)
        wanted = rest if size is None or size < 0 else min(size, rest)
        data = self._read_range(self._at, self._at + wanted) if wanted else b""
        self._at += len(data)
        return data

    def readall(self) -> bytes | memoryview:  # type: ignore[override]  # as `read`
        """Return the bytes from here to the end."""
        return self.read(-1)

    def will_read(self, groups: Sequence[Sequence[Range]]) -> None:
        """Fetch the ranges of these row groups from now on, ahead of the reads."""
        self._cancel_ahead()
        end = self._tail.piece.start
        clipped = [[(min(start, end), min(upto, end)) for start, upto in group] for group in groups]
        self._planned = deque(plan_pieces(clipped, self._bytes_max))
        for buffer in self._kept:
            buffer.piece = replace(buffer.piece, group=0)
        self._group = 0
        self._fetch_ahead()

    def close(self) -> None:
        """Drop all kept bytes and cancel the fetches."""
        self._kept.clear()
        self._cancel_ahead()
        super().close()

    def _read_range(self, start: int, end: int) -> bytes | memoryview:
        parts: list[memoryview] = []
        at = start
        while at < end:
            buffer = self._find_buffer(at) or self._fetch_buffer(at, end)
            upto = min(end, buffer.piece.end)
            parts.extend(buffer.view_range(at, upto))
            at = upto
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _find_buffer(self, at: int) -> _Buffer | None:
        if at >= self._tail.piece.start:
            return self._tail
        for buffer in reversed(self._kept):
            if buffer.piece.start <= at < buffer.piece.end:
                if buffer is not self._kept[-1]:
                    self._kept.remove(buffer)
                    self._kept.append(buffer)
                return buffer
        return None

    def _fetch_buffer(self, at: int, end: int) -> _Buffer:
        """Wait for the piece that has the byte ``at``, while those after it are fetched."""
        if threading.get_ident() == self._loop_thread:
            raise RuntimeError("a remote file is read in worker threads, not in the event loop")
        piece = _find_piece(self._coming, at)
        if piece is None:
            piece = _find_piece(self._planned, at)
            if piece is None:
                piece = self._choose_window(at, end)
            else:
                self._planned.remove(piece)
            future = self._start_fetch(piece)
        else:
            future = self._take_coming(piece)
        self._skip_to_group(piece.group)
        self._make_room(piece.size)
        self._fetch_ahead()
        buffer = _Buffer(piece, future.result())
        self._kept.append(buffer)
        return buffer

    def _choose_window(self, at: int, end: int) -> Piece:
        """Return what to fetch for a read that was not announced, or that is repeated."""
        before = next((k.piece.size for k in self._kept if k.piece.end == at), 0)
        upto = max(end, at + min(max(2 * before, _WINDOW_BYTES), PIECE_BYTES_MAX, self._bytes_max))
        pieces = (*self._coming, *self._planned, *(k.piece for k in self._kept), self._tail.piece)
        return Piece(at, min([upto, *(p.start for p in pieces if p.start > at)]), self._group)

    def _start_fetch(self, piece: Piece) -> Future[Sequence[bytes]]:
        return asyncio.run_coroutine_threadsafe(self._fetch(piece.start, piece.end), self._loop)

    def _fetch_ahead(self) -> None:
        """Start the next pieces, as far as there is room for them."""
        while self._planned and self._budget is not None and self._count_requests() < _REQUESTS_MAX:
            piece = self._planned[0]
            if not any(k.piece.start <= piece.start < k.piece.end for k in self._kept):
                coming = sum(p.size for p in self._coming)
                if coming + piece.size > self._bytes_max or not self._budget.try_take(piece.size):
                    return
                self._coming[piece] = self._start_fetch(piece)
            self._planned.popleft()

    def _count_requests(self) -> int:
        """Return how many requests wait for their answers; pieces that have come may be small."""
        return sum(not future.done() for future in self._coming.values())

    def _take_coming(self, piece: Piece) -> Future[Sequence[bytes]]:
        """Take a piece off those on their way, and free its budget."""
        if self._budget is not None:
            self._budget.give_back(piece.size)
        return self._coming.pop(piece)

    def _cancel_ahead(self) -> None:
        self._planned.clear()
        for piece in list(self._coming):
            self._take_coming(piece).cancel()

    def _skip_to_group(self, group: int) -> None:
        """Drop what is on its way for the row groups before this one."""
        self._group = group
        for piece in [p for p in self._coming if p.group < group]:
            self._take_coming(piece).cancel()
        while self._planned and self._planned[0].group < group:
            self._planned.popleft()

    def _make_room(self, size: int) -> None:
        """Drop kept pieces: of former row groups first, then those that were read to their end."""
        total = sum(k.piece.size for k in self._kept)
        while self._kept and total + size > self._bytes_max:
            dropped = min(
                self._kept, key=lambda k: (k.piece.group >= self._group, k.read < k.piece.end)
            )
            self._kept.remove(dropped)
            total -= dropped.piece.size


def _find_piece(pieces: Iterable[Piece], at: int) -> Piece | None:
    return next((piece for piece in pieces if piece.start <= at < piece.end), None)


class RangedFile(pa.PythonFile):  # type: ignore[misc]  # it has no types
    """A :class:`RangedReader` as a file of pyarrow's, which takes announcements of reads."""

    def __init__(self, reader: RangedReader, mode: str) -> None:  # noqa: ARG002 - pyarrow takes it
        self._reader = reader

    def will_read(self, groups: Sequence[Sequence[Range]]) -> None:
        self._reader.will_read(groups)
