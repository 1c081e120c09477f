"""The stream between the two tasks of a feed: one item is written while the next one is read."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

import anyio

from tailer.errors import first_error

__all__ = ["pipe"]

T = TypeVar("T")


async def pipe(
    batches: AsyncGenerator[T, None],
    publish: Callable[[T], Awaitable[None]],
    seen: Callable[[T], None] = lambda _: None,
    idle: tuple[float, Callable[[], T]] | None = None,
) -> None:
    """Publish batches while the next one is being read. A batch that is being written is finished
    even when this is cancelled; the first error of either side is raised unchanged.

    ``idle``: after this many seconds without a batch, what to publish instead.
    """
    patience = idle[0] if idle else math.inf
    send, receive = anyio.create_memory_object_stream[T](max_buffer_size=0)

    async def read() -> None:
        async with send, aclosing(batches):
            async for batch in batches:
                seen(batch)
                await send.send(batch)

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
    try:
        async with send, receive, anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            tasks.start_soon(write)
    except BaseExceptionGroup as group:
        raise first_error(group) from None
