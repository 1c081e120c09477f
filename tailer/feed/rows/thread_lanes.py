"""Groups of files decoded by threads of their own, where there is no event loop.

What :mod:`tailer.feed.rows.group_lanes` does in an event loop, for a read of local files that needs
none: while the calling thread uses the chunks of one group, in the groups' order, the groups behind
it are decoded. Chunks wait for their turn within the same bounds.

What must never happen: a thread that decodes on when nobody wants its chunks, and while the
interpreter is taken apart. Whoever leaves by an error waits for the threads' steps to end. A
signal's interruption waits a moment: a file system that does not answer must not keep the process.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import closing
from threading import Condition, Lock, Thread
from typing import Generic, TypeVar

from tailer.feed.rows.group_lanes import WAITING_BYTES, Use

__all__ = ["in_threads"]

Group = TypeVar("Group")
Chunk = TypeVar("Chunk")

#: Groups that are begun: the one in use, and those behind it. With two processors, a third one
#: takes memory and saves no time.
_BEGUN = min(4, max(2, os.cpu_count() or 2))
#: How long an interruption waits for a thread's step, which takes a tenth of it, in seconds.
_INTERRUPTED_S = 1.0


class _Room:
    """What waits, in all lanes."""

    def __init__(self) -> None:
        self.lock = Lock()  # entered itself: a signal may interrupt a condition's own entry
        self.changed = Condition(self.lock)
        self.size = 0
        self.is_closed = False


class _Lane(Generic[Chunk]):
    """The chunks of one group, decoded by a thread."""

    def __init__(
        self, room: _Room, chunks: Generator[Chunk], weigh: Callable[[Chunk], int]
    ) -> None:
        self._room = room
        self._chunks = chunks
        self._weigh = weigh
        self._waiting: deque[Chunk] = deque()
        self._is_ended = False
        self._error: BaseException | None = None
        self.thread = Thread(target=self._decode, daemon=True)  # see the module
        self.thread.start()

    def _decode(self) -> None:
        error: BaseException | None = None
        try:
            with closing(self._chunks) as chunks:
                for chunk in chunks:
                    if not self._put(chunk):
                        break
        except BaseException as e:  # noqa: BLE001 - raised in its turn
            error = e
        with self._room.lock:
            self._is_ended, self._error = True, error
            self._room.changed.notify_all()

    def _put(self, chunk: Chunk) -> bool:
        """Add a chunk; return whether the next one is wanted, when there is room for it."""
        room = self._room
        with room.lock:
            self._waiting.append(chunk)
            room.size += self._weigh(chunk)
            room.changed.notify_all()
            while self._waiting and room.size > WAITING_BYTES and not room.is_closed:
                room.changed.wait()
            return not room.is_closed

    def take(self) -> Chunk | None:
        """Return the next chunk, when it is there; None at the end. Raises the error after them."""
        room = self._room
        with room.lock:
            while not self._waiting:
                if self._error is not None:
                    raise self._error
                if self._is_ended:
                    return None
                room.changed.wait()
            chunk = self._waiting.popleft()
            room.size -= self._weigh(chunk)
            room.changed.notify_all()
            return chunk


async def in_threads(
    groups: AsyncIterator[Group],
    decode: Callable[[Group], Generator[Chunk]],
    use: Use[Chunk],
    weigh: Callable[[Chunk], int],
) -> None:
    """Decode all groups, several at the same time, and use their chunks in the order of the groups.

    ``weigh`` gives a chunk's size in bytes. ``groups`` is not closed here. The first error is
    raised unchanged, after the chunks before it were used.
    """
    room = _Room()
    lanes: deque[_Lane[Chunk]] = deque()
    has_more, error = True, None
    try:
        while True:
            while has_more and len(lanes) < _BEGUN:
                try:
                    lanes.append(_Lane(room, decode(await anext(groups)), weigh))
                except StopAsyncIteration:
                    has_more = False
                except Exception as e:  # noqa: BLE001 - raised after the groups before it
                    has_more, error = False, e
            if not lanes:
                break
            while (chunk := lanes[0].take()) is not None:
                await use(chunk)
            lanes.popleft()
    except BaseException as e:
        with room.lock:
            room.is_closed = True
            room.changed.notify_all()
        for lane in lanes:
            lane.thread.join(None if isinstance(e, Exception) else _INTERRUPTED_S)
        raise
    if error is not None:
        raise error
