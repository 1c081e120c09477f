"""Two groups of files decoded at the same time, and their chunks in order.

While the rows of one group are decoded, converted and used, those of the next group are decoded
too. So both cores of a small machine are busy. Chunks wait for their turn as long as they are
small; beyond a bound the next one of a group is begun when the one before it was taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, TypeAlias, TypeVar

import anyio

from tailer.errors import first_error

__all__ = ["Use", "in_lanes"]

Group = TypeVar("Group")
Chunk = TypeVar("Chunk")

#: Takes a chunk, and returns when the next one may come.
Use: TypeAlias = Callable[[Chunk], Awaitable[None]]

#: A group's chunks that wait have no more bytes, or there is but one.
_WAITING_BYTES = 24 * 1024 * 1024


class _Lane(Generic[Chunk]):
    """The chunks of one group that wait for their turn."""

    def __init__(self, weigh: Callable[[Chunk], int]) -> None:
        self._weigh = weigh
        self._waiting: deque[Chunk] = deque()
        self._size = 0
        self._ended = False
        self._error: Exception | None = None
        self._changed = anyio.Event()

    async def put(self, chunk: Chunk) -> None:
        """Add a chunk. Returns when the next one may be made."""
        self._waiting.append(chunk)
        self._size += self._weigh(chunk)
        self._changed.set()
        while self._size > _WAITING_BYTES:
            await self._change()

    def end(self, error: Exception | None = None) -> None:
        """No chunk follows, but perhaps an error."""
        self._ended, self._error = True, error
        self._changed.set()

    async def take(self) -> Chunk | None:
        """Return the next chunk, when it is there; None at the end. Raises the error after them."""
        while not self._waiting:
            if self._error is not None:
                raise self._error
            if self._ended:
                return None
            await self._change()
        chunk = self._waiting.popleft()
        self._size -= self._weigh(chunk)
        self._changed.set()
        return chunk

    async def _change(self) -> None:
        if self._changed.is_set():
            self._changed = anyio.Event()
        await self._changed.wait()


async def in_lanes(
    groups: AsyncIterator[Group],
    decode: Callable[[Group, Use[Chunk]], Awaitable[None]],
    use: Use[Chunk],
    weigh: Callable[[Chunk], int],
) -> None:
    """Decode all groups, two at the same time, and use their chunks in the order of the groups.

    ``weigh`` gives a chunk's size in bytes. ``groups`` is not closed here. The first error is
    raised unchanged, after the chunks before it were used.
    """
    send, receive = anyio.create_memory_object_stream[_Lane[Chunk]](0)

    async def one(group: Group, lane: _Lane[Chunk]) -> None:
        try:
            await decode(group, lane.put)
        except Exception as e:  # noqa: BLE001 - raised in its turn
            lane.end(e)
        else:
            lane.end()

    async def begin() -> None:
        async with send:
            lane = _Lane(weigh)
            try:
                async for group in groups:
                    tasks.start_soon(one, group, lane)
                    await send.send(lane)  # taken when all chunks before it were used
                    lane = _Lane(weigh)
            except Exception as e:  # noqa: BLE001 - raised after the groups before it
                lane.end(e)
                await send.send(lane)

    try:
        async with receive, anyio.create_task_group() as tasks:
            tasks.start_soon(begin)
            async for lane in receive:
                while (chunk := await lane.take()) is not None:
                    await use(chunk)
    except BaseExceptionGroup as group:
        raise first_error(group) from None
