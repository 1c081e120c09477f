"""Partition values: what Spark writes of a value is read as that value."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailer.delta.partitions import parse_partition_value
from tailer.delta.paths import parse_location
from tailer.delta.schema import PrimitiveType
from tailer.errors import CorruptLog

zones = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata"])
moments = st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(9999, 12, 30))  # noqa: DTZ001


TYPES = ["byte", "long", "double", "boolean", "date", "timestamp", "timestamp_ntz",
         "decimal(5,2)", "binary", "string"]  # fmt: skip


def value(text: str, name: str, zone: str = "UTC") -> Any:
    return parse_partition_value(text, PrimitiveType(name), zone).as_py()


@pytest.mark.parametrize(
    ("name", "bits"), [("byte", 8), ("short", 16), ("integer", 32), ("long", 64)]
)
@given(data=st.data())
def test_whole_numbers_within_their_bounds_survive_and_others_are_refused(
    name: str, bits: int, data: st.DataObject
) -> None:
    number = data.draw(st.integers(-(2**bits), 2**bits))
    if -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        assert value(str(number), name) == number
    else:
        with pytest.raises(CorruptLog):
            value(str(number), name)


@given(st.floats())
def test_doubles_survive(number: float) -> None:
    text = {math.inf: "Infinity", -math.inf: "-Infinity"}.get(number, repr(number))
    found = value(text, "double")
    assert found == number or (math.isnan(found) and math.isnan(number))


@given(st.decimals("-99999999.99", "99999999.99", places=2))
def test_decimals_survive(number: Decimal) -> None:
    assert value(str(number), "decimal(10,2)") == number


@given(st.text(min_size=1))
def test_strings_and_binaries_survive(text: str) -> None:
    assert value(text, "string") == text
    assert value(text, "binary") == text.encode()


@given(st.booleans(), st.dates())
def test_booleans_and_dates_survive(flag: bool, day: dt.date) -> None:  # noqa: FBT001
    assert value(str(flag).lower(), "boolean") is flag
    assert value(day.isoformat(), "date") == day


@given(moments, zones)
def test_timestamps_survive_in_the_writers_zone_and_in_utc(moment: dt.datetime, zone: str) -> None:
    instant = moment.replace(tzinfo=dt.UTC)
    assert value(instant.strftime("%Y-%m-%dT%H:%M:%S.%fZ"), "timestamp", zone) == instant
    wall = instant.astimezone(ZoneInfo(zone))
    if wall.fold or wall.year > 9998:
        return
    assert value(wall.strftime("%Y-%m-%d %H:%M:%S.%f"), "timestamp", zone) == instant


@given(moments, zones)
def test_timestamps_without_zone_survive_wherever_they_were_written(
    moment: dt.datetime, zone: str
) -> None:
    assert value(str(moment), "timestamp_ntz", zone) == moment


@given(st.text(), st.sampled_from(TYPES))
def test_any_text_is_a_value_or_an_error_of_the_log(text: str, name: str) -> None:
    try:
        found = value(text, name)
    except CorruptLog:
        return
    assert (found is None) == (text == "")


@given(st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), min_size=1))
def test_any_file_name_survives_its_encoding(name: str) -> None:
    if ".." in name.split("/"):
        with pytest.raises(CorruptLog):
            parse_location(quote(name))
    elif not name.startswith("/"):
        assert parse_location(quote(name)) == name
