"""Waiting for what has no event: one loop for all tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import anyio

T = TypeVar("T")

#: A test that would wait longer has failed. No assertion is about time.
PATIENCE_S = 150.0
# What is asked works for the answer too: the longer it takes, the less often it is asked.
_PAUSE_S = 0.01
_PAUSE_S_MAX = 0.1
_PAUSE_SHARE = 0.05


def eventually(
    probe: Callable[[], T],
    within_s: float = PATIENCE_S,
    why: str | Callable[[], object] = "",
    *,
    pause_s: float | None = None,
) -> T:
    """Return the first result of ``probe`` that is true. What it raises ends the waiting.

    ``why`` says what was waited for, when ``within_s`` seconds are over.
    """
    begun = time.monotonic()
    while not (found := probe()):
        _check(begun, within_s, why)
        time.sleep(pause_s or _pause_s(begun))
    return found


async def eventually_async(
    probe: Callable[[], T],
    within_s: float = PATIENCE_S,
    why: str | Callable[[], object] = "",
    *,
    pause_s: float | None = None,
) -> T:
    """As :func:`eventually`, while other tasks run."""
    begun = time.monotonic()
    while not (found := probe()):
        _check(begun, within_s, why)
        await anyio.sleep(pause_s or _pause_s(begun))
    return found


def _pause_s(begun: float) -> float:
    return min(max(_PAUSE_S, _PAUSE_SHARE * (time.monotonic() - begun)), _PAUSE_S_MAX)


def _check(begun: float, within_s: float, why: str | Callable[[], object]) -> None:
    if time.monotonic() >= begun + within_s:
        said = why() if callable(why) else why  # which may end what was waited for
        raise AssertionError(f"not within {within_s:g} s: {said}")
