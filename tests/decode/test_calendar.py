from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from tailer.decode.calendar import Calendar, find_calendar
from tailer.errors import CorruptRow

SPARK = b"org.apache.spark.version"
LEGACY = b"org.apache.spark.legacyDateTime"
LEGACY_INT96 = b"org.apache.spark.legacyINT96"
ZONE = b"org.apache.spark.timeZone"


def julian(year: int, month: int, day: int) -> int:
    """Days since 1970 of a Julian date, counted year by year."""
    lengths = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
    days = sum(366 if y % 4 == 0 else 365 for y in range(1, year))
    days += sum(lengths[: month - 1]) + (month > 2 and year % 4 == 0) + day - 1
    return days - 719_164  # 0001-01-01 of the Julian calendar


def utc() -> Calendar:
    return Calendar(legacy_dates=True, legacy_int96=True, zone="UTC")


@pytest.mark.parametrize(
    "date",
    [
        (1, 1, 1), (4, 2, 29), (99, 12, 31), (100, 2, 28), (100, 3, 1), (999, 7, 4), (1000, 3, 5),
        (1400, 2, 28), (1400, 3, 1), (1500, 2, 28), (1500, 3, 1), (1582, 10, 4),
    ],
)  # fmt: skip
def test_a_julian_date_keeps_its_year_month_and_day(date: tuple[int, int, int]) -> None:
    days = pa.array([julian(*date)], pa.int32()).cast(pa.date32())
    assert utc().rebase_array(days, int96=False).to_pylist() == [dt.date(*date)]


def test_dates_from_the_cutover_on_and_nulls_stay() -> None:
    days = pa.array([-141_427, 0, None, julian(1000, 1, 1)], pa.int32()).cast(pa.date32())
    assert utc().rebase_array(days, int96=False).to_pylist() == [
        dt.date(1582, 10, 15), dt.date(1970, 1, 1), None, dt.date(1000, 1, 1),
    ]  # fmt: skip


@pytest.mark.parametrize("unit", ["us", "ms"])
def test_a_timestamp_keeps_its_time_of_day(unit: str) -> None:
    per_day = 86_400 * (1_000_000 if unit == "us" else 1_000)
    noon = pa.array([julian(1000, 3, 5) * per_day + per_day // 2], pa.int64())
    moved = utc().rebase_array(noon.cast(pa.timestamp(unit, "UTC")), int96=False)
    assert moved.to_pylist() == [dt.datetime(1000, 3, 5, 12, tzinfo=dt.UTC)]


def test_old_timestamps_of_another_zone_are_refused_and_newer_ones_read() -> None:
    calendar = Calendar(legacy_dates=True, legacy_int96=False, zone="America/Los_Angeles")
    old = pa.array([-(10**17)], pa.int64()).cast(pa.timestamp("us", "UTC"))
    new = pa.array([10**15], pa.int64()).cast(pa.timestamp("us", "UTC"))
    with pytest.raises(CorruptRow, match="America/Los_Angeles"):
        calendar.rebase_array(old, int96=False)
    assert calendar.rebase_array(new, int96=False).equals(new)
    assert calendar.rebase_array(old, int96=True).equals(old)


@pytest.mark.parametrize(
    ("metadata", "legacy"),
    [
        (None, None),
        ({}, None),
        ({SPARK: b"4.2.0"}, None),
        ({LEGACY: b""}, None),  # only Spark's own files are believed
        ({SPARK: b"x"}, None),
        ({SPARK: b"2.4.8"}, (True, True)),
        ({SPARK: b"3.0.1"}, (False, True)),
        ({SPARK: b"3.5.0", LEGACY: b"", ZONE: b"UTC"}, (True, False)),
        ({SPARK: b"3.5.0", LEGACY_INT96: b""}, (False, True)),
    ],
)
def test_a_files_metadata_tells_its_calendar(
    metadata: dict[bytes, bytes] | None, legacy: tuple[bool, bool] | None
) -> None:
    """``legacy``: for dates, for INT96."""
    calendar = find_calendar(metadata)
    assert ((calendar.legacy_dates, calendar.legacy_int96) if calendar else None) == legacy
