"""Requests that are made at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import TypeVar

from tailer.errors import first_error

T = TypeVar("T")


async def side_by_side(requests: Iterable[Coroutine[None, None, T]]) -> list[T]:
    """Return the results in their order. The first error ends all."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(request) for request in requests]
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None
    return [task.result() for task in tasks]
