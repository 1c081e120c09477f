"""Pauses between attempts after an error that may pass by itself."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


class Backoff:
    """Growing, jittered pauses: from ``min_s`` seconds, doubled up to ``max_s``.

    ``jitter`` gives numbers in [0, 1). Each pause is shortened by up to a half, so that clients
    that failed at the same moment do not come back at the same moment.
    """

    __slots__ = ("_next_s", "jitter", "max_s", "min_s")

    def __init__(
        self, min_s: float, max_s: float, jitter: Callable[[], float] = random.random
    ) -> None:
        self.min_s = min_s
        self.max_s = max_s
        self.jitter = jitter
        self._next_s = min_s

    def next_s(self, retry_after_s: float | None = None) -> float:
        """Return the seconds to wait now; a delay that the other side requested takes
        precedence."""
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, self.max_s)
        return retry_after_s or pause_s * (0.5 + self.jitter() / 2)

    def reset(self) -> None:
        """Start from the shortest pause again: an attempt made progress."""
        self._next_s = self.min_s


def call_with_retries(
    attempt: Callable[[], _T],
    heals: type[Exception] | tuple[type[Exception], ...],
    patience_s: float,
    backoff: Backoff,
) -> _T:
    """Return what ``attempt`` returns, repeated after errors of the types ``heals``. Blocking.

    After ``patience_s`` seconds the last error is raised.
    """
    give_up = time.monotonic() + patience_s
    while True:
        try:
            return attempt()
        except heals:
            if time.monotonic() > give_up:
                raise
            time.sleep(backoff.next_s())
