"""Requests that are made at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import TypeVar

from tailer.errors import ungrouping

T = TypeVar("T")


async def side_by_side(requests: Iterable[Coroutine[None, None, T]]) -> list[T]:
    """Return the results in their order. The first error ends all."""
    with ungrouping():
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(request) for request in requests]
    return [task.result() for task in tasks]
