"""The table's commits in time, and where a feed starts."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tailer.changes import Offset
from tailer.errors import ConfigError, CorruptLog, TableError
from tailer.log.history import read_history
from tailer.log.starts import find_start_offset
from tailer.log.table import TableLog
from tailer.log.times import parse_timestamp, version_at_or_after, version_at_or_before
from tailer.store.local import LocalStore
from tailer.testing.table import TableBuilder

pytestmark = pytest.mark.anyio

SCHEMA = pa.schema([("id", pa.int64())])
SECOND = 1000


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    """Versions 0 to 3, one every ten seconds from the epoch's first second on."""
    table = TableBuilder(tmp_path, SCHEMA)
    table.create(timestamp_ms=SECOND)
    for version in (1, 2, 3):
        info = {"commitInfo": {"operation": "WRITE"}}
        add = table.add([{"id": version}])
        table.commit(info, add, timestamp_ms=(1 + 10 * version) * SECOND)
    return table


@pytest.fixture
def log(table: TableBuilder) -> TableLog:
    return TableLog(LocalStore(str(table.folder)))


def in_commit_table(folder: Path, since: int) -> TableBuilder:
    """In-commit timestamps hold from a version on: 100 s, 110 s, ...; file times before it: 1 s,
    11 s, ... The file times of the later versions are nonsense."""
    table = TableBuilder(folder, SCHEMA)
    features = {"writerFeatures": ["inCommitTimestamp"]}
    table.create(table.protocol(1, 7, **features), timestamp_ms=SECOND)
    for version in range(1, 6):
        stamp = (100 + 10 * (version - since)) * SECOND
        actions = [{"commitInfo": {"inCommitTimestamp": stamp}}] if version >= since else []
        if version == since:
            table.properties = {
                "delta.enableInCommitTimestamps": "true",
                "delta.inCommitTimestampEnablementVersion": str(version),
                "delta.inCommitTimestampEnablementTimestamp": str(stamp),
            }
            actions.append(table.metadata())
        mtime = (1 + 10 * version) * SECOND if version < since else 5 * SECOND
        table.commit(*actions, timestamp_ms=mtime)
    return table


async def test_the_history_has_every_commit_with_its_time(log: TableLog) -> None:
    found = [
        (e.version, e.timestamp_ms, e.adds, e.info.get("operation"))
        async for e in read_history(log)
    ]
    assert found == [
        (0, 1000, 0, None),
        (1, 11_000, 1, "WRITE"),
        (2, 21_000, 1, "WRITE"),
        (3, 31_000, 1, "WRITE"),
    ]


async def test_a_history_whose_beginning_is_gone_begins_later(
    table: TableBuilder, log: TableLog
) -> None:
    table.checkpoint(2)
    table.commit_path(0).unlink()
    assert [e.version async for e in read_history(log)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("time_ms", "after", "before"),
    [
        (0, 0, None),
        (1000, 0, 0),
        (1001, 1, 0),
        (20_999, 2, 1),
        (21_000, 2, 2),
        (21_001, 3, 2),
        (31_000, 3, 3),
        (31_001, None, 3),
    ],
)
async def test_a_time_is_inclusive_on_both_sides(
    log: TableLog, time_ms: int, after: int | None, before: int | None
) -> None:
    if after is None:
        with pytest.raises(TableError, match="no version is at or after"):
            await version_at_or_after(log, time_ms)
    else:
        assert await version_at_or_after(log, time_ms) == after
    if before is None:
        with pytest.raises(TableError, match="at or before 1970"):
            await version_at_or_before(log, time_ms)
    else:
        assert await version_at_or_before(log, time_ms) == before


async def test_a_file_time_that_went_back_is_raised(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, SCHEMA)
    for version, seconds in enumerate((10, 30, 20, 25, 40)):
        stamp = seconds * SECOND
        table.commit(timestamp_ms=stamp) if version else table.create(timestamp_ms=stamp)
    log = TableLog(LocalStore(str(tmp_path)))
    assert [e.timestamp_ms async for e in read_history(log)] == [
        10_000,
        30_000,
        30_001,
        30_002,
        40_000,
    ]
    assert await version_at_or_after(log, 20_000) == 1
    assert await version_at_or_after(log, 30_001) == 2
    assert await version_at_or_before(log, 30_000) == 1
    assert await version_at_or_before(log, 39_999) == 3


@pytest.mark.parametrize("since", [1, 3, 5])
async def test_in_commit_timestamps_hold_from_their_enablement_on(
    tmp_path: Path, since: int
) -> None:
    log = TableLog(LocalStore(str(in_commit_table(tmp_path, since).folder)))
    times = [e.timestamp_ms async for e in read_history(log)]
    assert times[since:] == [(100 + 10 * i) * SECOND for i in range(6 - since)]
    assert times[:since] == [(1 + 10 * v) * SECOND for v in range(since)]
    for version, time in enumerate(times):
        assert await version_at_or_after(log, time) == version
        assert await version_at_or_before(log, time) == version
        assert await version_at_or_after(log, time - 1) == version
    for time in times[1:]:
        assert await version_at_or_before(log, time - 1) == times.index(time) - 1
    with pytest.raises(TableError, match="no version is at or after"):
        await version_at_or_after(log, times[-1] + 1)


@pytest.mark.parametrize("first", [0, 2])
async def test_a_table_that_can_not_be_read_has_a_history(tmp_path: Path, first: int) -> None:
    """Also where the oldest commits are gone, and with times of the log's own."""
    table = in_commit_table(tmp_path, 1)
    metadata = table.metadata()
    metadata["metaData"]["schemaString"] = '{"type":"struct","fields":"none"}'
    stamp = 150 * SECOND
    table.commit({"commitInfo": {"inCommitTimestamp": stamp}}, metadata)
    for version in range(first):
        (tmp_path / "_delta_log" / f"{version:020d}.json").unlink()
    log = TableLog(LocalStore(str(tmp_path)))
    with pytest.raises(TableError):
        await log.load_snapshot()
    entries = [e async for e in read_history(log)]
    assert [e.version for e in entries] == list(range(first, 7))
    assert entries[-1].timestamp_ms == stamp


async def test_a_missing_in_commit_timestamp_is_an_error(tmp_path: Path) -> None:
    table = in_commit_table(tmp_path, 2)
    table.commit(table.add([{"id": 1}]))
    log = TableLog(LocalStore(str(tmp_path)))
    with pytest.raises(CorruptLog, match="no inCommitTimestamp") as caught:
        assert [e async for e in read_history(log)]
    assert caught.value.version == 6


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01", 0),
        ("1970-01-01T00:00:01", 1000),
        ("1970-01-01 01:00:01.5+01:00", 1500),
        ("1970-01-01T00:00:00.001999Z", 1),
        ("1969-12-31T23:59:59.999Z", -1),
    ],
)
async def test_a_time_without_offset_is_in_utc(text: str, expected: int) -> None:
    assert parse_timestamp(text) == expected


@pytest.mark.parametrize("text", ["", "soon", "12", "2026-13-01", "2026-01-01T25:00"])
async def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a time"):
        parse_timestamp(text)


async def test_every_kind_of_start_has_its_offset(log: TableLog) -> None:
    assert await find_start_offset(log, "latest") == Offset(4)
    assert await find_start_offset(log, "earliest") == Offset(0)
    assert await find_start_offset(log, "2") == Offset(2)
    assert await find_start_offset(log, "4") == Offset(4), "the next version may be waited for"
    assert await find_start_offset(log, "1970-01-01T00:00:12Z") == Offset(2)
    snapshot = await find_start_offset(log, "snapshot")
    assert (snapshot.version, snapshot.index, snapshot.snapshot) == (3, 0, True)


async def test_a_start_beyond_the_end_is_named(log: TableLog) -> None:
    with pytest.raises(TableError, match="start is version 5, and the newest is 3"):
        await find_start_offset(log, "5")
    with pytest.raises(TableError, match="no version is at or after 2"):
        await find_start_offset(log, "2026-01-01")


@pytest.mark.parametrize("text", ["newest", "-1", "1.5", "²"])
async def test_a_start_that_means_nothing_is_refused(log: TableLog, text: str) -> None:
    with pytest.raises(ConfigError, match="must be latest, earliest, snapshot"):
        await find_start_offset(log, text)
