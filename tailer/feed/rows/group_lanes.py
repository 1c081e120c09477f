"""Groups of files decoded at the same time, and their chunks in order.

While the rows of one group are decoded, converted and used, those of the next ones are decoded
too: with two lanes, of one more. So both cores of a small machine are busy, also while a thread
waits for the event loop. A further group is begun when the first one is used up. Chunks wait for
their turn as long as they are small; beyond a bound the next one of a group is begun when the one
before it was taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, TypeAlias, TypeVar

import anyio

from tailer.errors import ungrouping

Group = TypeVar("Group")
Chunk = TypeVar("Chunk")

#: Takes a chunk, and returns when the next one may come.
Use: TypeAlias = Callable[[Chunk], Awaitable[None]]

#: Groups that are decoded at the same time.
LANES = 2
#: The limit for decoded bytes that wait in all lanes; a lane may always hold one chunk.
WAITING_BYTES = 48 * 1024 * 1024


class _WaitingBytes:
    """What waits, in all lanes."""

    def __init__(self) -> None:
        self.size = 0
        self._changed = anyio.Event()

    def change_size(self, size: int = 0) -> None:
        """Add the bytes of a chunk, or take them off; wake those who wait for a change."""
        self.size += size
        self._changed.set()

    async def wait_for_change(self) -> None:
        """Wait for one."""
        if self._changed.is_set():
            self._changed = anyio.Event()
        await self._changed.wait()


class _GroupLane(Generic[Chunk]):
    """The chunks of one group that wait for their turn."""

    def __init__(self, waiting: _WaitingBytes, weigh: Callable[[Chunk], int]) -> None:
        self._sizes = waiting
        self._weigh = weigh
        self._waiting: deque[Chunk] = deque()
        self._ended = False
        self._error: Exception | None = None

    async def put_chunk(self, chunk: Chunk) -> None:
        """Add a chunk. Returns when the next one may be made."""
        self._waiting.append(chunk)
        self._sizes.change_size(self._weigh(chunk))
        while self._waiting and self._sizes.size > WAITING_BYTES:
            await self._sizes.wait_for_change()

    def mark_end(self, error: Exception | None = None) -> None:
        """No chunk follows, but perhaps an error."""
        self._ended, self._error = True, error
        self._sizes.change_size()

    async def take_chunk(self) -> Chunk | None:
        """Return the next chunk, when it is there; None at the end. Raises the error after them."""
        while not self._waiting:
            if self._error is not None:
                raise self._error
            if self._ended:
                return None
            await self._sizes.wait_for_change()
        chunk = self._waiting.popleft()
        self._sizes.change_size(-self._weigh(chunk))
        return chunk


async def decode_in_lanes(
    groups: AsyncIterator[Group],
    decode: Callable[[Group, Use[Chunk]], Awaitable[None]],
    use: Use[Chunk],
    weigh: Callable[[Chunk], int],
    at_once: int = LANES,
) -> None:
    """Decode all groups, ``at_once`` at the same time, and use their chunks in the order of the
    groups.

    ``weigh`` gives a chunk's size in bytes. ``groups`` is not closed here. The first error is
    raised unchanged, after the chunks before it were used.
    """
    # Besides those that wait here, one lane is used, and one is begun and not yet sent.
    send, receive = anyio.create_memory_object_stream[_GroupLane[Chunk]](at_once - 2)
    waiting = _WaitingBytes()

    async def one(group: Group, lane: _GroupLane[Chunk]) -> None:
        try:
            await decode(group, lane.put_chunk)
        except Exception as e:  # noqa: BLE001 - raised in its turn
            lane.mark_end(e)
        else:
            lane.mark_end()

    async def begin() -> None:
        async with send:
            lane = _GroupLane(waiting, weigh)
            try:
                async for group in groups:
                    tasks.start_soon(one, group, lane)
                    await send.send(lane)  # there is room when those before it were used
                    lane = _GroupLane(waiting, weigh)
            except Exception as e:  # noqa: BLE001 - raised after the groups before it
                lane.mark_end(e)
                await send.send(lane)

    with ungrouping():
        async with receive, anyio.create_task_group() as tasks:
            tasks.start_soon(begin)
            async for lane in receive:
                while (chunk := await lane.take_chunk()) is not None:
                    await use(chunk)
