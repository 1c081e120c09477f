"""A few attempts within a write, before the feed tries again from its offset."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from tailer.errors import TransientError
from tailer.network.backoff import Backoff

T = TypeVar("T")
#: How often a request is sent before the feed tries again from its offset.
ATTEMPTS = 5


async def retry_attempts(attempt: Callable[[], Awaitable[T]], backoff: Backoff) -> T:
    """Return what ``attempt`` returns, after at most :data:`ATTEMPTS` calls.

    A delay that the other side requests is waited for, if it is not longer than the longest pause;
    otherwise the feed waits.
    """
    for _ in range(ATTEMPTS - 1):
        try:
            return await attempt()
        except TransientError as e:
            if (e.retry_after_s or 0) > backoff.max_s:
                raise
            await anyio.sleep(backoff.next_s(e.retry_after_s))
    return await attempt()
