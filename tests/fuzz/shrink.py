"""A failing history, made shorter, and told in at most twenty lines."""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzz.grammar import History, write

_LINES_MAX = 20


def shrunk(history: History, fails: Callable[[History], object]) -> History:
    """The shortest history on the way down that still fails."""
    for simpler in history.simpler():
        if fails(simpler):
            return shrunk(simpler, fails)
    return history


def report(history: History, disagreement: str) -> str:
    """What happened, and the line that makes a test of it (tests/fuzz/test_fuzz.py)."""
    lines = [
        disagreement[:2000],
        "to test it again, add this line to DISAGREED:",
        f'    "{history}",',
    ]
    story = write(history).story
    room = _LINES_MAX - len(lines)
    return "\n".join([*lines, *(story if len(story) <= room else [*story[: room - 1], "  ..."])])
