"""Per-file statistics, reduced to what is used ("Per-file Statistics").

They are hints: those that can't be read count as absent, and of the rest only what can't mislead is
kept. A commit can hold a hundred thousand of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, TypeGuard

import msgspec
from msgspec import Struct

Statistics: TypeAlias = Mapping[str, Any]

_LONG_MAX = 2**63 - 1
_BOUNDS_MAX = 4


class Bounds(Struct, frozen=True):
    """Bounds of an integer column, proved by statistics.

    They are its lowest and highest value, and whether it certainly has no null. ``column`` is the
    physical name.
    """

    column: str
    low: int
    high: int
    no_nulls: bool


def parse_statistics(text: Any, parsed: Any = None) -> Statistics:
    """Parse the statistics of an add or remove; return an empty mapping if they can't be read.

    They are its JSON string or the checkpoint's struct.
    """
    if isinstance(parsed, dict):
        return parsed
    if not isinstance(text, str):
        return {}
    try:
        found = msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def find_record_count(stats: Statistics) -> int | None:
    """Return ``numRecords``; None if it is missing or impossible."""
    records = stats.get("numRecords")
    return records if _is_long(records) and records >= 0 else None


def find_bounds(stats: Statistics) -> tuple[Bounds, ...]:
    """Return the bounds of the first few integer columns that have both."""
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
