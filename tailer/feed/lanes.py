"""Two groups of files decoded at the same time, and their chunks in order.

While the rows of one group are decoded, converted and used, those of the next group are decoded
too, until its first chunk is there. So both cores of a small machine are busy, and memory holds one
chunk more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias, TypeVar

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from tailer.errors import first_error

__all__ = ["in_lanes"]

Group = TypeVar("Group")
Chunk = TypeVar("Chunk")

#: Takes a chunk, and returns when the next one may come.
Use: TypeAlias = Callable[[Chunk], Awaitable[None]]

_Stream: TypeAlias = "MemoryObjectSendStream[Chunk] | MemoryObjectReceiveStream[Chunk]"


async def in_lanes(
    groups: AsyncIterator[Group],
    decode: Callable[[Group, Use[Chunk]], Awaitable[None]],
    use: Use[Chunk],
) -> None:
    """Decode all groups, two at the same time, and use their chunks in the order of the groups.

    ``groups`` is not closed here. The first error is raised unchanged, after the chunks before it
    were used.
    """
    send, receive = anyio.create_memory_object_stream[MemoryObjectReceiveStream[Chunk]](0)
    opened: deque[_Stream[Chunk]] = deque(maxlen=4)  # of two groups; those before them are closed

    async def one(group: Group, chunks: MemoryObjectSendStream[Chunk]) -> None:
        async with chunks:
            await decode(group, chunks.send)

    async def begin() -> None:
        async with send:
            async for group in groups:
                into, chunks = anyio.create_memory_object_stream[Chunk](0)
                opened.extend((into, chunks))
                tasks.start_soon(one, group, into)
                await send.send(chunks)  # taken when all chunks before it were used

    try:
        async with receive, anyio.create_task_group() as tasks:
            tasks.start_soon(begin)
            async for chunks in receive:
                async with chunks:
                    async for chunk in chunks:
                        await use(chunk)
    except BaseExceptionGroup as group:
        raise first_error(group) from None
    finally:  # a task that is cancelled before its first step closes nothing
        for stream in opened:
            stream.close()
