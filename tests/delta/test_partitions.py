"""Partition values: every type's text, null, the writer's time zone, and what is none."""

from __future__ import annotations

import datetime as dt
import math
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tailer.delta.arrow_types import arrow_type
from tailer.delta.partitions import find_partition_text, parse_partition_value
from tailer.delta.schema import ArrayType, PrimitiveType
from tailer.errors import CorruptLog
from tests.support.feeds import refusal

TYPES = [
    "string", "byte", "short", "integer", "long", "float", "double", "boolean", "binary", "date",
    "timestamp", "timestamp_ntz", "decimal(10,2)",
]  # fmt: skip


def value(text: str | None, name: str, zone: str = "UTC") -> Any:
    return parse_partition_value(text, PrimitiveType(name), zone).as_py()


@pytest.fixture(params=["UTC", "America/New_York", "Asia/Kathmandu"])
def process_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("string", "a=b/ü ", "a=b/ü "),
        ("string", "null", "null"),
        ("byte", "-128", -128),
        ("short", "32767", 32767),
        ("integer", "-2147483648", -(2**31)),
        ("long", "9223372036854775807", 2**63 - 1),
        ("float", "0.5", 0.5),
        ("double", "1.7976931348623157E308", 1.7976931348623157e308),
        ("double", "-Infinity", -math.inf),
        ("boolean", "true", True),
        ("boolean", "False", False),
        ("binary", "\u0001\u0002\u0003", b"\x01\x02\x03"),
        ("date", "1970-01-01", dt.date(1970, 1, 1)),
        ("date", "0001-12-31", dt.date(1, 12, 31)),
        ("decimal(10,2)", "12345678.9", Decimal("12345678.90")),
        ("decimal(38,38)", "1E-38", Decimal("1E-38")),
        ("decimal(10,2)", "1.500", Decimal("1.50")),
        ("decimal(10,2)", "1E+3", Decimal("1000.00")),
        ("integer", " +7 ", 7),
        ("double", "1.", 1.0),
        ("double", "-.5e-3", -0.0005),
        ("float", "inf", math.inf),
        ("timestamp_ntz", "1970-01-01 00:00:00", dt.datetime(1970, 1, 1)),  # noqa: DTZ001
        ("timestamp_ntz", "2024-02-29 23:59:59.000001",
         dt.datetime(2024, 2, 29, 23, 59, 59, 1)),  # noqa: DTZ001
    ],
)  # fmt: skip
def test_each_type_has_its_text(name: str, text: str, expected: object) -> None:
    assert value(text, name) == expected


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("date", "+10000-01-01", 2_932_897),
        ("date", "+12020-02-29", 3_670_746),
        ("date", "0000-02-29", -719_469),
        ("date", "-0004-02-29", -720_930),
        ("date", "-0005-03-01", -721_295),
        ("date", "5881580-07-11", 2**31 - 1),
        ("date", "-5877641-06-23", -(2**31)),
        ("timestamp", "+10000-01-01 00:00:00.5", 253_402_300_800_500_000),
        ("timestamp", "-0005-03-01T00:00:01Z", -62_319_887_999_000_000),
        ("timestamp", "+10000-01-01T02:00:00+02:00", 253_402_300_800_000_000),
        ("timestamp_ntz", "+10000-01-01 00:00:00", 253_402_300_800_000_000),
    ],
)
def test_years_beyond_those_of_python_are_dates_too(name: str, text: str, expected: int) -> None:
    numbers = pa.int32() if name == "date" else pa.int64()
    assert parse_partition_value(text, PrimitiveType(name)).cast(numbers).as_py() == expected


@pytest.mark.parametrize(
    ("text", "utc"), [("+10000-07-01 12:00:00", 10), ("9999-07-01 12:00:00", 10)]
)
def test_a_zones_summer_time_goes_on_in_far_years(text: str, utc: int) -> None:
    at = (
        parse_partition_value(text, PrimitiveType("timestamp"), "Europe/Berlin")
        .cast(pa.int64())
        .as_py()
    )
    assert at // 3_600_000_000 % 24 == utc


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("integer", "01", 1),
        ("integer", "1.9", 1),
        ("long", "-1.9", -1),
        ("byte", "127.", 127),
        ("short", "-.5", 0),
        ("integer", "\x001\x1f", 1),
        ("double", "1d", 1.0),
        ("float", "1.5e1F", 15.0),
        ("decimal(10,2)", "1.005", Decimal("1.01")),
        ("decimal(10,2)", "-1.005", Decimal("-1.01")),
        ("decimal(3,0)", ".5", Decimal(1)),
        *(("boolean", text, True) for text in ["t", "Y", "Yes", "1", " TRUE\n"]),
        *(("boolean", text, False) for text in ["F", "n", "NO", "0"]),
        ("date", "2024", dt.date(2024, 1, 1)),
        ("date", "2024-6", dt.date(2024, 6, 1)),
        ("date", "2024-06-05 noon", dt.date(2024, 6, 5)),
        ("timestamp", "2024-06", dt.datetime(2024, 6, 1, tzinfo=dt.UTC)),
        ("timestamp", "2024-06-05 12", dt.datetime(2024, 6, 5, 12, tzinfo=dt.UTC)),
        ("timestamp", "2024-06-05 12:00:00 UTC", dt.datetime(2024, 6, 5, 12, tzinfo=dt.UTC)),
        ("timestamp", "2024-06-05T12:00:00.+2", dt.datetime(2024, 6, 5, 10, tzinfo=dt.UTC)),
        ("timestamp", "2024-06-05 12:00:00.1234567899",
         dt.datetime(2024, 6, 5, 12, 0, 0, 123456, tzinfo=dt.UTC)),
        ("timestamp_ntz", "2024", dt.datetime(2024, 1, 1)),  # noqa: DTZ001
    ],
)  # fmt: skip
def test_names_of_folders_that_were_converted_are_read_as_spark_casts_them(
    name: str, text: str, expected: object
) -> None:
    """``tests/spark/test_partition_texts.py`` asks Spark itself."""
    assert value(text, name) == expected


def test_nan_is_a_value_and_not_null() -> None:
    assert math.isnan(value("NaN", "double"))


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("text", [None, ""])
def test_null_and_the_empty_string_are_null_of_every_type(name: str, text: str | None) -> None:
    scalar = parse_partition_value(text, PrimitiveType(name))
    assert scalar.as_py() is None
    assert scalar.type == arrow_type(PrimitiveType(name))


@pytest.mark.parametrize(
    ("text", "zone", "expected"),
    [
        ("2024-07-01 12:00:00", "UTC", "2024-07-01T12:00:00+00:00"),
        ("2024-07-01 12:00:00", "Europe/Berlin", "2024-07-01T10:00:00+00:00"),
        ("2024-01-01 12:00:00.25", "Europe/Berlin", "2024-01-01T11:00:00.250000+00:00"),
        ("2024-07-01", "Asia/Tokyo", "2024-06-30T15:00:00+00:00"),
        ("1969-12-31 16:00:00", "America/Los_Angeles", "1970-01-01T00:00:00+00:00"),
    ],
)
def test_a_timestamp_without_zone_is_in_the_writers_zone_and_never_in_the_process_own(
    process_zone: str, text: str, zone: str, expected: str
) -> None:
    assert process_zone
    assert value(text, "timestamp", zone) == dt.datetime.fromisoformat(expected)


@pytest.mark.parametrize(
    "text",
    [
        "1970-01-01T00:00:00.123456Z",
        "1970-01-01T02:00:00.123456+02:00",
        "1969-12-31 18:30:00.123456 -0530",
        "1970-01-01T00:00:00.123456789Z",
    ],
)
def test_a_timestamp_with_a_zone_of_its_own_ignores_the_writers(
    process_zone: str, text: str
) -> None:
    assert process_zone
    expected = dt.datetime(1970, 1, 1, 0, 0, 0, 123456, tzinfo=dt.UTC)
    assert value(text, "timestamp", "Asia/Tokyo") == expected


def test_a_timestamp_without_time_zone_has_none_whatever_the_writer_has(process_zone: str) -> None:
    assert process_zone
    expected = dt.datetime(2024, 3, 31, 2, 30)  # noqa: DTZ001 - in Berlin, there is no such time
    assert value("2024-03-31 02:30:00", "timestamp_ntz", "Europe/Berlin") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-03-31 02:30:00", "2024-03-31T01:30:00+00:00"),  # skipped: an hour later, 03:30
        ("2024-10-27 02:30:00", "2024-10-27T00:30:00+00:00"),  # twice: the earlier one
    ],
)
def test_a_time_that_clocks_skip_or_show_twice_is_read_as_java_reads_it(
    text: str, expected: str
) -> None:
    assert value(text, "timestamp", "Europe/Berlin") == dt.datetime.fromisoformat(expected)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("byte", "128"),
        ("short", "40000"),
        ("integer", "2147483648"),
        ("long", "9223372036854775808"),
        ("long", "9" * 10_000),
        ("integer", "one"),
        ("integer", "1.5.0"),
        ("integer", "1e2"),
        ("boolean", "truee"),
        ("double", "-nan"),
        ("date", "2020-01-01foo"),
        ("timestamp", "2020-01-01 12:34:56+18:01"),
        ("timestamp", "2020-01-01 12:34:56+01:60"),
        ("timestamp", "2020-01-01 12:34:56+031"),
        ("timestamp", "2020-01-01 12:34Z"),
        ("timestamp_ntz", "2020-01-01 12:34:56-19:00"),
        ("double", "1,5"),
        ("date", "1970-13-01"),
        ("date", "1970-02-30"),
        ("date", "5881580-07-12"),
        ("date", "10000000-01-01"),
        ("date", "today"),
        ("timestamp", "1970-01-01 25:00:00"),
        ("timestamp", "1970-01-01 00:00:00+99:00"),
        ("timestamp", "0"),
        ("timestamp_ntz", "12:00"),
        ("decimal(4,2)", "100.00"),
        ("decimal(4,2)", "NaN"),
        ("decimal(4,2)", "1E999999999"),
        ("decimal(4,2)", "x"),
        ("decimal(10,2)", "1_0"),
        ("decimal(10,2)", "sNaN"),
        ("integer", "1_0"),
        ("integer", "\u0661"),
        ("long", "0x10"),
        ("double", "1_0.5"),
        ("double", "\u0661.5"),
        ("float", "."),
        ("date", "202\u0664-01-01"),
        ("timestamp", "2024-01-01 0\u0661:00:00"),
        ("string", "\ud800"),
        ("void", "1"),
        ("variant", "1"),
    ],
)
def test_a_text_that_is_no_such_value_is_refused_with_text_and_type(name: str, text: str) -> None:
    message = refusal(lambda: value(text, name), CorruptLog)
    assert repr(text)[:1000] in message  # a long one is cut in the middle
    assert name in message


def test_a_nested_partition_column_is_refused() -> None:
    nested = ArrayType(PrimitiveType("long"), contains_null=True)
    assert "nested" in refusal(lambda: parse_partition_value("1", nested), CorruptLog)


@pytest.mark.parametrize(("entry", "said"), [("COL-B", ", only one for 'COL-B'"), ("b", "; its w")])
def test_a_column_without_a_value_is_named_as_users_know_it(entry: str, said: str) -> None:
    message = refusal(lambda: find_partition_text({entry: "7"}, "col-b", "b"), CorruptLog)
    assert f"no partition value for the column 'b', which is 'col-b' there{said}" in message
    assert find_partition_text({"col-b": "7"}, "col-b", "b") == "7"
