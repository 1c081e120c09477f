"""Times without a zone: local as Python's datetimes, in the session's zone as texts."""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from tailer.errors import ConfigError
from tailer.spark import changes
from tailer.spark.session_zone import as_time
from tailer.spark.source import TailerSource
from tailer.testing.table import TableBuilder

NOON = dt.datetime(2026, 7, 1, 12)  # noqa: DTZ001  # without a zone


@pytest.fixture
def in_tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process, nine hours before UTC."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("value", "zone", "hour"),
    [
        (NOON, None, 3),
        (NOON, "Europe/Berlin", 3),
        (NOON.replace(tzinfo=dt.UTC), "Europe/Berlin", 12),
        ("2026-07-01 12:00:00", None, 3),
        ("2026-07-01 12:00:00", "Europe/Berlin", 10),
        ("2026-07-01T12:00:00Z", "Europe/Berlin", 12),
        ("2026-07-01T12:00:00-01:00", "Europe/Berlin", 13),
        ("2026-07-01 12:00:00", "UTC", 12),
        ("2026-07-01 12:00:00", "Z", 12),
        ("2026-07-01 12:00:00", "+02:00", 10),
        ("2026-07-01 12:00:00", "GMT-3", 15),
        ("2026-07-01", "GMT-3", 3),
        (dt.date(2026, 7, 1), "GMT-3", 3),
    ],
    ids=str,
)
@pytest.mark.usefixtures("in_tokyo")
def test_a_time_is_where_it_is_said(value: Any, zone: str | None, hour: int) -> None:
    assert as_time(value, zone) == f"2026-07-01T{hour:02}:00:00+00:00"


def test_a_zone_that_python_does_not_know_is_named() -> None:
    with pytest.raises(ConfigError, match="the session's time zone 'Mars/Base' is not known"):
        as_time("2026-07-01", "Mars/Base")


@pytest.fixture
def berlin(spark: SparkSession) -> Iterator[SparkSession]:
    """A session with a zone of its own. The source is registered when it is set."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    spark.dataSource.register(TailerSource)
    yield spark
    spark.conf.set("spark.sql.session.timeZone", str(before))
    spark.dataSource.register(TailerSource)


def test_a_row_s_time_given_back_starts_at_its_version(
    berlin: SparkSession, tmp_path: Path
) -> None:
    """As a datetime, as Spark shows it, and as what Delta itself takes for the same."""
    table = TableBuilder(tmp_path / "t", pa.schema([("id", pa.int64())]), cdf=True)
    start = (int(time.time()) // 1800 - 10) * 1_800_000  # Delta refuses what is older than a week
    table.create(timestamp_ms=start)
    for number in range(1, 8):  # one each half hour
        at = start + number * 1_800_000
        table.commit(table.add([{"id": number}]), timestamp_ms=at)
    folder = str(table.folder)
    row = changes(berlin, folder, startingVersion=0).where("id = 4")
    when = row.first()
    assert when is not None
    moment = when["_commit_timestamp"]
    shown = row.selectExpr("CAST(_commit_timestamp AS STRING) AS at").first()
    assert shown is not None

    def source(**options: Any) -> DataFrame:
        return berlin.read.format("tailer").options(**options).load(folder)

    def delta(**options: Any) -> DataFrame:
        reader = berlin.read.format("delta").option("readChangeFeed", "true")
        return reader.options(**options).load(folder)

    def ids(found: DataFrame) -> list[int]:
        return sorted(row.id for row in found.select("id").collect())

    there = dt.datetime.fromtimestamp(start / 1000 + 4 * 1800, ZoneInfo("Europe/Berlin"))
    assert shown.at == f"{there:%Y-%m-%d %H:%M:%S}"
    assert ids(changes(berlin, folder, startingTimestamp=moment)) == [4, 5, 6, 7]
    assert ids(changes(berlin, folder, startingTimestamp=shown.at)) == [4, 5, 6, 7]
    assert ids(source(startingTimestamp=shown.at)) == [4, 5, 6, 7]
    assert ids(delta(startingTimestamp=shown.at)) == [4, 5, 6, 7]
    bounded = {"startingVersion": "0", "endingTimestamp": shown.at}
    assert ids(source(**bounded)) == ids(changes(berlin, folder, **bounded)) == [1, 2, 3, 4]
    assert os.environ.get("TZ", "UTC") != "Europe/Berlin", "the session's zone, not the process's"
