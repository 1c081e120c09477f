"""Per-file statistics, cut down to what is ever asked for ("Per-file Statistics").

They are hints: those that can't be read are taken as absent, and of the rest only what can't
mislead is kept. A commit can hold a hundred thousand of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

__all__ = ["Bounds", "file_statistics"]

_LONG_MAX = 2**63 - 1
_BOUNDS_MAX = 4


@dataclass(frozen=True, slots=True)
class Bounds:
    """What statistics prove of an integer column: lowest and highest value, and whether there is
    certainly no null. ``column`` is the physical name."""

    column: str
    low: int
    high: int
    no_nulls: bool


def file_statistics(action: Mapping[str, Any]) -> tuple[int | None, tuple[Bounds, ...]]:
    """``numRecords`` and the bounds of a few integer columns, be the statistics of an add or remove
    a JSON string or the checkpoint's struct."""
    stats: Any = action.get("stats_parsed")
    if not isinstance(stats, dict):
        text = action.get("stats")
        if not isinstance(text, str) or "numRecords" not in text:
            return None, ()
        try:
            stats = json.loads(text)
        except (ValueError, RecursionError):
            return None, ()
    if not isinstance(stats, dict):
        return None, ()
    records = stats.get("numRecords")
    return records if _is_long(records) and records >= 0 else None, _bounds(stats)


def _bounds(stats: Mapping[str, Any]) -> tuple[Bounds, ...]:
    lows, highs = stats.get("minValues"), stats.get("maxValues")
    # Some writers' checkpoints have the other spelling.
    nulls = stats.get("nullCount") or stats.get("nullCounts")
    if not isinstance(lows, dict) or not isinstance(highs, dict):
        return ()
    nulls = nulls if isinstance(nulls, dict) else {}
    found: list[Bounds] = []
    for name, low in lows.items():
        high = highs.get(name)
        if _is_long(low) and _is_long(high):
            count = nulls.get(name)
            found.append(Bounds(name, low, high, _is_long(count) and count == 0))
            if len(found) == _BOUNDS_MAX:
                break
    return tuple(found)


def _is_long(value: Any) -> TypeGuard[int]:
    return type(value) is int and -_LONG_MAX - 1 <= value <= _LONG_MAX
