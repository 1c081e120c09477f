"""The stream between the two tasks of a feed: one item is used while the next one is read."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import TypeAlias, TypeVar

import anyio

from tailer.errors import ungrouping

T = TypeVar("T")

#: Reads to the end, and sends each item to the function that it is given.
ReadAll: TypeAlias = Callable[[Callable[[T], Awaitable[None]]], Awaitable[None]]


async def pipe_items(
    read: ReadAll[T],
    publish: Callable[[T], Awaitable[None]],
    idle: tuple[float, Callable[[], T]] | None = None,
) -> None:
    """Publish batches while the next one is being read. A batch that is being written is finished
    even when this is cancelled; the first error of either side is raised unchanged.

    ``idle``: after this many seconds without a batch, what to publish instead.
    """
    patience = idle[0] if idle else math.inf
    send, receive = anyio.create_memory_object_stream[T](max_buffer_size=0)

    async def reader() -> None:
        async with send:
            await read(send.send)

    async def write() -> None:
        while True:
            item: T | None = None
            with anyio.move_on_after(patience):
                try:
                    item = await receive.receive()
                except anyio.EndOfStream:
                    return
            if item is None and idle:
                item = idle[1]()
            if item is not None:
                with anyio.CancelScope(shield=True):
                    await publish(item)

    # This task closes the receiving end, or a failing publisher would show up as a broken stream.
    with ungrouping():
        async with send, receive, anyio.create_task_group() as tasks:
            tasks.start_soon(reader)
            tasks.start_soon(write)


async def read_ahead(read: ReadAll[T]) -> AsyncGenerator[T, None]:
    """Yield what is read. The next item is read while one is used, as in :func:`pipe_items`."""
    send, receive = anyio.create_memory_object_stream[T](max_buffer_size=0)

    async def reader() -> None:
        with send:
            await read(send.send)

    reading = asyncio.create_task(reader())
    try:
        async for item in receive:
            yield item
        await reading
    finally:
        reading.cancel()
        with receive, anyio.CancelScope(shield=True), suppress(Exception, asyncio.CancelledError):
            await reading
