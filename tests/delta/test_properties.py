from __future__ import annotations

import pytest

from tailer.delta.actions import Metadata
from tailer.delta.properties import parse_interval_ms, tombstone_retention_ms
from tailer.errors import CorruptLog

DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("interval 1 week", 7 * DAY_MS),
        ("INTERVAL 30 DAYS", 30 * DAY_MS),
        ("2 days 12 hours", 2 * DAY_MS + DAY_MS // 2),
        ("interval 1 minute 1 second 5 milliseconds", 61_005),
        ("interval 0 seconds", 0),
        ("interval 2 weeks 1.5 seconds 2500 microseconds", 14 * DAY_MS + 1502),
    ],
)
def test_intervals_are_read_as_milliseconds(text: str, milliseconds: int) -> None:
    assert parse_interval_ms(text) == milliseconds


@pytest.mark.parametrize("text", ["", "interval", "1 month", "week", "1 day x", "-1 days"])
def test_what_is_no_fixed_interval_is_refused(text: str) -> None:
    with pytest.raises(CorruptLog, match="not an interval"):
        parse_interval_ms(text)


def test_retention_defaults_are_deltas_own() -> None:
    plain = Metadata("id", "{}", (), {})
    assert tombstone_retention_ms(plain) == 7 * DAY_MS
    short = Metadata("id", "{}", (), {"delta.deletedFileRetentionDuration": "interval 1 day"})
    assert tombstone_retention_ms(short) == DAY_MS
