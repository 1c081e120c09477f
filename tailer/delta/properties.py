"""Table properties that hold a span of time, such as ``delta.logRetentionDuration``."""

from __future__ import annotations

import re

from tailer.delta.actions import Metadata
from tailer.errors import CorruptLog

_UNITS_MS = {
    "microsecond": 1e-3,
    "millisecond": 1,
    "second": 1_000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
    "week": 7 * 86_400_000,
}
_PART = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)\s*([a-z]+?)s?(?=\s|\d|$)")


def parse_interval_ms(text: str) -> int:
    """Parse an SQL interval such as ``interval 1 week`` or ``2 days 12 hours`` to milliseconds.

    Months and years have no fixed length, so Delta does not accept them either. Raises
    :class:`CorruptLog` for any other text.
    """
    rest = text.strip().lower().removeprefix("interval").strip()
    parts = _PART.findall(rest)
    if not parts or _PART.sub("", rest).strip() or any(unit not in _UNITS_MS for _, unit in parts):
        raise CorruptLog(f"{text!r} is not an interval of weeks, days, hours, minutes or seconds")
    return int(sum(float(count) * _UNITS_MS[unit] for count, unit in parts))


def tombstone_retention_ms(metadata: Metadata) -> int:
    """Return how long, in ms, removed files are kept before VACUUM may delete them."""
    key = "delta.deletedFileRetentionDuration"
    return parse_interval_ms(metadata.configuration.get(key, "interval 1 week"))
