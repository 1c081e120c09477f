"""Old dates: conversion from the hybrid Julian calendar of some writers to the protocol's calendar.

Before version 3.0 (3.1 for INT96), and later in its legacy mode, Spark wrote dates before
1582-10-15 in the Julian calendar. Such a file says so in its own metadata. The same year, month
and day is another number of days in the proleptic Gregorian calendar that Delta's types use.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from tailer.errors import CorruptRow

_DAY_US = 86_400_000_000
#: 1582-10-15, where the two calendars meet, in days since 1970.
_CUTOVER_DAY = -141_427
#: 1900-01-01. Before it, the offsets of time zones were the local mean times of cities, and
#: Java's two libraries do not agree on them.
_ZONES_AGREE_DAY = -25_567


def _julian_day(year: int, month: int, day: int) -> int:
    """Return the days since 1970-01-01 of a date of the Julian calendar."""
    a = (14 - month) // 12
    y, m = year + 4800 - a, month + 12 * a - 3
    return day + (153 * m + 2) // 5 + 365 * y + y // 4 - 32_083 - 2_440_588


def _find_shifts() -> list[tuple[int, int]]:
    """Return (first day, days to add), oldest first: one more step wherever only the Julian
    calendar has a 29th of February."""
    centuries = [y for y in range(100, 1600, 100) if y % 400]
    starts = [_julian_day(1, 1, 1), *(_julian_day(y, 3, 1) for y in centuries)]
    return [(start, 2 - i) for i, start in enumerate(starts)]


_SHIFTS = _find_shifts()


class Calendar:
    """How to read the dates and timestamps of one file.

    ``legacy_dates`` applies to DATE and to timestamps in INT64, ``legacy_int96`` to those in INT96;
    ``zone`` is the time zone of the writer.
    """

    def __init__(self, *, legacy_dates: bool, legacy_int96: bool, zone: str) -> None:
        self.legacy_dates = legacy_dates
        self.legacy_int96 = legacy_int96
        self.zone = zone

    def rebase_array(self, array: pa.Array, *, int96: bool) -> pa.Array:
        """Convert a date or timestamp array to the proleptic Gregorian calendar; times in
        microseconds.

        Raises :class:`CorruptRow` for a timestamp before 1900 from a writer that was not in UTC.
        """
        legacy = self.legacy_int96 if int96 else self.legacy_dates
        dates = pa.types.is_date32(array.type)
        if not legacy or not (dates or pa.types.is_timestamp(array.type)):
            return array
        if not dates:
            array = array.cast(pa.timestamp("us", array.type.tz))
        numbers = array.cast(pa.int32() if dates else pa.int64()).cast(pa.int64())
        unit = 1 if dates else _DAY_US
        lowest = pc.min(numbers).as_py()
        if lowest is None or lowest >= _ZONES_AGREE_DAY * unit:
            return array
        if not dates and self.zone not in ("UTC", "Etc/UTC", "GMT", "Z"):
            raise CorruptRow(
                f"the file has timestamps before 1900 in the legacy calendar of zone {self.zone}, "
                "which can't be read exactly",
                hint="rewrite the file with spark.sql.parquet.datetimeRebaseModeInWrite=CORRECTED",
            )
        moved = pc.add(numbers, pc.multiply(_find_days_to_add(numbers, unit), unit))
        return moved.cast(pa.int32() if dates else pa.int64()).cast(array.type)


def _find_days_to_add(numbers: pa.Int64Array, unit: int) -> pa.Int64Array:
    days = pa.repeat(pa.scalar(0, pa.int64()), len(numbers))
    for (first, shift), (end, _) in pairwise([*_SHIFTS, (_CUTOVER_DAY, 0)]):
        below = pc.less(numbers, pa.scalar(end * unit, pa.int64()))
        if first == _SHIFTS[0][0]:
            within = below
        else:
            within = pc.and_(below, pc.greater_equal(numbers, pa.scalar(first * unit, pa.int64())))
        days = pc.if_else(within, pa.scalar(shift, pa.int64()), days)
    return days


def find_calendar(metadata: Mapping[bytes, bytes] | None) -> Calendar | None:
    """Return a file's calendar from its key-value metadata; None if nothing needs conversion."""
    found = metadata or {}
    version = found.get(b"org.apache.spark.version")
    if version is None:
        return None
    legacy_dates = _is_before(version, 3, 0) or b"org.apache.spark.legacyDateTime" in found
    legacy_int96 = _is_before(version, 3, 1) or b"org.apache.spark.legacyINT96" in found
    if not (legacy_dates or legacy_int96):
        return None
    zone = found.get(b"org.apache.spark.timeZone", b"unknown").decode(errors="replace")
    return Calendar(legacy_dates=legacy_dates, legacy_int96=legacy_int96, zone=zone)


def _is_before(version: bytes, major: int, minor: int) -> bool:
    parts = version.split(b".")
    try:
        return (int(parts[0]), int(parts[1])) < (major, minor)
    except (ValueError, IndexError):
        return False
