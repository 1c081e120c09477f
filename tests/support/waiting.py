"""Waiting for what has no event: one loop for all tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import anyio

__all__ = ["PATIENCE_S", "eventually", "eventually_async"]

T = TypeVar("T")

#: A test that would wait longer has failed. No assertion is about time.
PATIENCE_S = 150.0
_PAUSE_S = 0.01


def eventually(
    probe: Callable[[], T],
    within_s: float = PATIENCE_S,
    why: str | Callable[[], object] = "",
    *,
    pause_s: float = _PAUSE_S,
) -> T:
    """Return the first result of ``probe`` that is true. What it raises ends the waiting.

    ``why`` says what was waited for, when ``within_s`` seconds are over.
    """
    give_up = time.monotonic() + within_s
    while not (found := probe()):
        _check(give_up, within_s, why)
        time.sleep(pause_s)
    return found


async def eventually_async(
    probe: Callable[[], T],
    within_s: float = PATIENCE_S,
    why: str | Callable[[], object] = "",
    *,
    pause_s: float = _PAUSE_S,
) -> T:
    """As :func:`eventually`, while other tasks run."""
    give_up = time.monotonic() + within_s
    while not (found := probe()):
        _check(give_up, within_s, why)
        await anyio.sleep(pause_s)
    return found


def _check(give_up: float, within_s: float, why: str | Callable[[], object]) -> None:
    if time.monotonic() >= give_up:
        said = why() if callable(why) else why  # which may end what was waited for
        raise AssertionError(f"not within {within_s:g} s: {said}")
