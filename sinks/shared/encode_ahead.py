"""Batches in pieces, encoded by a separate thread, some pieces ahead of time.

The next batch's first pieces are encoded while the one before it is still being sent to the broker
and its transaction is committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Generic, TypeVar

from tailer.changes import ChangeBatch

T = TypeVar("T")

#: The number of pieces of a batch that are encoded before they are requested.
_PIECES_AHEAD = 6


def slice_batch(batch: ChangeBatch, rows_max: int, bytes_max: int) -> Iterator[ChangeBatch]:
    """Yield a batch as consecutive batches of at most ``rows_max`` rows and about ``bytes_max``
    bytes. One that has rows of several versions or files ends where the last of them ends, if they
    fit: each version and file that does not is cut as if it were alone.

    A batch with paired updates stays whole: the halves of a pair may lie far apart in their
    version, and there is no offset between them.
    """
    count = batch.num_rows
    fitting = max(1, count * bytes_max // max(batch.rows.nbytes, 1))
    step = min(rows_max, fitting)
    if count <= step or batch.indices is not None or batch.before is not None:
        yield batch
    elif batch.span:
        for group in _group_versions(batch, step):
            yield from slice_batch(group, rows_max, bytes_max)
    else:
        for at in range(0, count, step):
            yield batch.slice(at, min(at + step, count))


def _group_versions(batch: ChangeBatch, rows_max: int) -> Iterator[ChangeBatch]:
    """Yield the versions of a span, or the files if it is of one version: as many together as have
    ``rows_max`` rows, or a single one."""
    by_version = {part.offset.version: part.first for part in reversed(batch.span)}
    firsts = sorted(by_version.values())
    if len(firsts) == 1:
        firsts = [part.first for part in batch.span]
    at = 0
    for first, end in pairwise([*firsts, batch.num_rows]):
        if first > at and end - at > rows_max:
            yield batch.slice(at, first)
            at = first
    yield batch.slice(at, batch.num_rows)


class Pieces(Generic[T]):
    """The results of a batch's pieces, in order."""

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
        self._submit_pieces()

    def _submit_pieces(self) -> None:
        while len(self._ready) < _PIECES_AHEAD:
            piece = next(self._pieces, None)
            if piece is None:
                return
            self._ready.append(self._threads.submit(self._encode, piece))

    def __iter__(self) -> Iterator[T]:
        while self._ready:
            found = self._ready.popleft().result()
            self._submit_pieces()
            yield found
