"""Batches in pieces, encoded by a thread of their own, some pieces before their turn.

The next batch's first pieces are encoded while the one before it is still on its way to the broker
and its transaction is committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from tailer.changes import ChangeBatch

__all__ = ["Ahead", "Pieces", "slices"]

T = TypeVar("T")

#: So many pieces of a batch are encoded before they are asked for.
_PIECES_AHEAD = 6


def slices(batch: ChangeBatch, rows_max: int, bytes_max: int) -> Iterator[ChangeBatch]:
    """A batch as consecutive batches of at most so many rows and about so many bytes.

    One whose updates are paired stays whole: the halves of a pair may lie far apart in its
    version, and no offset could stand between them.
    """
    count = batch.num_rows
    fitting = max(1, count * bytes_max // max(batch.rows.nbytes, 1))
    step = min(rows_max, fitting)
    if count <= step or batch.indices is not None or batch.before is not None:
        yield batch
        return
    for at in range(0, count, step):
        yield batch.slice(at, min(at + step, count))


class Pieces(Generic[T]):
    """What becomes of a batch's pieces, in order."""

    def __init__(
        self,
        pieces: Iterator[ChangeBatch],
        encode: Callable[[ChangeBatch], T],
        threads: ThreadPoolExecutor,
    ) -> None:
        self._pieces = pieces
        self._encode = encode
        self._threads = threads
        self._ready: deque[Future[T]] = deque()
        self._fill()

    def _fill(self) -> None:
        while len(self._ready) < _PIECES_AHEAD:
            piece = next(self._pieces, None)
            if piece is None:
                return
            self._ready.append(self._threads.submit(self._encode, piece))

    def __iter__(self) -> Iterator[T]:
        while self._ready:
            found = self._ready.popleft().result()
            self._fill()
            yield found


class Ahead(Generic[T]):
    """What was begun for batches that have yet to be written: two at most, for a feed reads one
    batch while it writes another."""

    _KEPT = 2

    def __init__(self) -> None:
        self._begun: dict[int, tuple[ChangeBatch, T]] = {}

    def begin(self, batch: ChangeBatch, begun: T) -> None:
        """Keep what was begun for a batch."""
        while len(self._begun) >= self._KEPT:  # of batches that never came
            self._begun.pop(next(iter(self._begun)), None)
        self._begun[id(batch)] = batch, begun

    def take(self, batch: ChangeBatch) -> T | None:
        """What was begun for this very batch, if anything was; it is given once."""
        found = self._begun.pop(id(batch), None)
        return None if found is None else found[1]
