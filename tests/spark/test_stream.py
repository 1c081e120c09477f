"""Offsets and admission, by calling the readers as Spark does: no Spark is started here."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
)

from tailer.changes import Offset
from tailer.spark.error_sentence import TailerSourceError
from tailer.spark.source import TailerSource
from tailer.spark.source.limited_stream import LimitedStreamReader
from tailer.spark.source.reader import ChangeStreamReader, ClassicStreamReader
from tailer.testing.table import TableBuilder

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
ALL = ReadAllAvailable()

Place = dict[str, Any]


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    built = TableBuilder(tmp_path / "orders", SCHEMA, cdf=True)
    built.create()
    return built


#: The readers of the test that runs. Each has a thread, which a collection of garbage may not end.
_READERS: list[ChangeStreamReader] = []


@pytest.fixture(autouse=True)
def stopped() -> Iterator[None]:
    """Stop all readers after a test, as Spark does."""
    yield
    while _READERS:
        _READERS.pop().stop()


def reader(table: TableBuilder, **options: Any) -> LimitedStreamReader:
    source = TailerSource({"path": str(table.folder), **{k: str(v) for k, v in options.items()}})
    found = source.streamReader(source.schema())
    assert isinstance(found, LimitedStreamReader)
    # As Spark hands it from one process to the next.
    copied: LimitedStreamReader = pickle.loads(pickle.dumps(found))  # noqa: S301  # our own
    _READERS.append(copied)
    return copied


def rows_of(stream: ChangeStreamReader, start: Place, end: Place) -> list[dict[str, Any]]:
    found = []
    for partition in stream.partitions(start, end):
        travelled = pickle.loads(pickle.dumps(partition))  # noqa: S301  # our own
        for batch in stream.read(travelled):
            found += batch.to_pylist()
    return sorted(found, key=lambda row: (row["_commit_version"], row["id"]))


def batches(stream: LimitedStreamReader, limit: ReadLimit) -> Iterator[tuple[Place, Place]]:
    start = stream.initialOffset()
    while (end := stream.latestOffset(start, limit)) != start:
        yield start, end
        start = end


def rows(*ids: int) -> list[dict[str, Any]]:
    return [{"id": i, "name": f"n{i}"} for i in ids]


def ids(found: list[dict[str, Any]]) -> list[int]:
    return [row["id"] for row in found]


def flat(found: list[list[Any]]) -> list[Any]:
    return [*chain.from_iterable(found)]


def add_files(table: TableBuilder, *files: tuple[int, ...]) -> None:
    table.commit(*(table.add(rows(*file)) for file in files))


def test_offsets_are_the_daemons_in_one_order_of_keys(table: TableBuilder) -> None:
    table.insert(rows(1))
    stream = reader(table, startingVersion=0)
    end = stream.latestOffset(stream.initialOffset(), ALL)
    assert list(end) == list(Offset(0, commit_id="of version 1").to_json())
    offset = Offset.from_json(end)
    assert (offset.version, offset.index, offset.table_id) == (2, 0, table.table_id)
    assert offset.timestamp_floor_ms is not None


def test_an_offset_that_does_not_move_is_the_same_text(table: TableBuilder) -> None:
    stream = reader(table, startingVersion=1)
    for start in ({"version": 1, **Offset(1).to_json()}, Offset(1).to_json()):
        assert json.dumps(stream.latestOffset(start, ALL)) == json.dumps(start)
    table.insert(rows(1))
    start = stream.latestOffset(Offset(1).to_json(), ALL)
    assert json.dumps(stream.latestOffset(start, ALL)) == json.dumps(start)
    assert stream.partitions(start, start) == []


@pytest.mark.parametrize("files", [1, 2, 3, 100])
def test_max_files_cuts_versions_between_files_and_loses_nothing(
    table: TableBuilder, files: int
) -> None:
    add_files(table, (1, 2), (3,), (4, 5, 6))
    add_files(table, (7,))
    add_files(table, (8,), (9, 10))
    stream = reader(table, startingVersion=0)
    found = [ids(rows_of(stream, *b)) for b in batches(stream, ReadMaxFiles(files))]
    assert flat(found) == list(range(1, 11))
    if files == 1:
        assert found == [[1, 2], [3], [4, 5, 6], [7], [8], [9, 10]]


def test_max_rows_and_max_bytes_take_at_least_one_file(table: TableBuilder) -> None:
    add_files(table, (1, 2), (3,), (4, 5, 6))
    stream = reader(table, startingVersion=0)
    by_rows = [ids(rows_of(stream, *b)) for b in batches(stream, ReadMaxRows(2))]
    assert by_rows == [[1, 2], [3], [4, 5, 6]]
    by_bytes = [ids(rows_of(stream, *b)) for b in batches(stream, ReadMaxBytes(1))]
    assert by_bytes == by_rows


def test_max_bytes_of_the_query_bounds_files_too(table: TableBuilder) -> None:
    add_files(table, (1, 2), (3,), (4, 5, 6))
    stream = reader(table, startingVersion=0, maxBytesPerTrigger=1)
    limit = stream.getDefaultReadLimit()
    assert limit == ReadMaxFiles(1000)
    assert len(list(batches(stream, limit))) == 3
    (whole,) = batches(stream, ALL)
    assert ids(rows_of(stream, *whole)) == [1, 2, 3, 4, 5, 6]


def test_cdc_files_are_counted_by_their_footers(table: TableBuilder) -> None:
    def change(kind: str, *numbers: int) -> list[dict[str, Any]]:
        return [{**row, "_change_type": kind} for row in rows(*numbers)]

    table.insert(rows(1, 2, 3))
    table.commit(
        table.cdc(change("update_preimage", 1) + change("update_postimage", 1)),
        table.cdc(change("delete", 2, 3)),
        table.add(rows(1)),
    )
    stream = reader(table, startingVersion=2)
    found = list(batches(stream, ReadMaxFiles(1)))
    assert [Offset.from_json(end).index for _, end in found] == [2, 0]
    assert [ids(rows_of(stream, *b)) for b in found] == [[1, 1], [2, 3]]


def test_a_daemons_offset_inside_a_file_is_taken_up(table: TableBuilder) -> None:
    add_files(table, (1, 2, 3), (4, 5))
    offset = Offset(1, 2, table_id=table.table_id)
    stream = reader(table, startingOffset=str(offset))
    assert stream.initialOffset() == offset.to_json()
    (batch,) = batches(stream, ALL)
    assert ids(rows_of(stream, *batch)) == [3, 4, 5]


def test_a_snapshot_is_pinned_first_and_then_read_file_by_file(table: TableBuilder) -> None:
    add_files(table, (1, 2), (3,))
    stream = reader(table)
    assert stream.initialOffset() == {"format": 1, "start": "snapshot"}
    pinned = stream.latestOffset(stream.initialOffset(), ReadMaxFiles(1))
    offset = Offset.from_json(pinned)
    assert (offset.version, offset.index, offset.snapshot) == (1, 0, True)
    assert stream.partitions(stream.initialOffset(), pinned) == []
    table.insert(rows(4))  # not in the snapshot, but right after it
    found, start = [], pinned
    while (end := stream.latestOffset(start, ReadMaxFiles(1))) != start:
        found.append(ids(rows_of(stream, start, end)))
        start = end
    assert sorted(found[:2]) == [[1, 2], [3]]
    assert found[2:] == [[4]]


def test_latest_is_pinned_where_the_query_starts(table: TableBuilder) -> None:
    table.insert(rows(1))
    stream = reader(table, startingVersion="latest")
    pinned = stream.latestOffset(stream.initialOffset(), ALL)
    assert stream.partitions(stream.initialOffset(), pinned) == []
    table.insert(rows(2))
    assert ids(rows_of(stream, pinned, stream.latestOffset(pinned, ALL))) == [2]


def test_initial_offset_says_the_same_however_often_it_is_asked(table: TableBuilder) -> None:
    for start in ("latest", "earliest", "snapshot", "0"):
        stream = reader(table, startingVersion=start)
        before = stream.initialOffset()
        table.insert(rows(1))
        assert (
            stream.initialOffset() == before == reader(table, startingVersion=start).initialOffset()
        )


def test_available_now_ends_where_the_table_was(table: TableBuilder) -> None:
    add_files(table, (1,), (2,))
    stream = reader(table, startingVersion=0)
    stream.prepareForTriggerAvailableNow()
    table.insert(rows(3))
    found = [ids(rows_of(stream, *b)) for b in batches(stream, ReadMaxFiles(1))]
    assert flat(found) == [1, 2]
    assert stream.reportLatestOffset()["version"] == 3


def test_a_table_that_went_back_is_refused_and_never_read_backwards(table: TableBuilder) -> None:
    table.insert(rows(1))
    table.insert(rows(2))
    stream = reader(table, startingVersion=0)
    end = stream.latestOffset(stream.initialOffset(), ALL)
    table.commit_path(2).unlink()
    table.commit_path(1).unlink()
    with pytest.raises(TailerSourceError, match="has read up to version 2, and the newest is 0"):
        stream.latestOffset(end, ALL)


def test_a_gap_is_refused_unless_loss_is_put_up_with(table: TableBuilder) -> None:
    for number in range(1, 6):
        table.insert(rows(number))
    table.checkpoint(3)
    for version in (0, 1, 2):
        table.commit_path(version).unlink()
    with pytest.raises(TailerSourceError, match=r"\[data_loss\]"):
        list(batches(reader(table, startingVersion=1), ALL))
    stream = reader(table, startingVersion=1, failOnDataLoss="false")
    (batch,) = batches(stream, ALL)
    assert ids(rows_of(stream, *batch)) == [4, 5]


def test_a_schema_change_ends_the_batch_before_it_and_then_says_what_to_do(
    table: TableBuilder,
) -> None:
    table.insert(rows(1))
    stream = reader(table, startingVersion=0)
    cast = reader(table, startingVersion=0, onSchemaChange="cast")
    table.schema = pa.schema([*SCHEMA, ("size", pa.int32())])
    table.commit(table.metadata(), table.add([{"id": 2, "name": "n2", "size": 5}]))
    end = stream.latestOffset(stream.initialOffset(), ALL)
    assert ids(rows_of(stream, stream.initialOffset(), end)) == [1]
    with pytest.raises(TailerSourceError, match="it adds size; restart the query to take up"):
        stream.latestOffset(end, ALL)
    (batch,) = batches(cast, ALL)
    assert [set(row) for row in rows_of(cast, *batch)] == [
        {"id", "name", "_change_type", "_commit_version", "_commit_timestamp"}
    ] * 2
    again = reader(table, startingVersion=0)
    (batch,) = batches(again, ALL)
    assert [row["size"] for row in rows_of(again, *batch)] == [None, 5]


def test_commits_are_passed_over_as_asked(table: TableBuilder) -> None:
    first = table.add(rows(1))
    table.commit(first)
    table.commit(table.remove(first))
    second = table.add(rows(2))
    table.commit(second)
    table.commit(table.remove(second), table.add(rows(3)))

    def kinds(**options: Any) -> list[tuple[int, str]]:
        stream = reader(table, startingVersion=0, **options)
        (batch,) = batches(stream, ALL)
        return [(row["id"], row["_change_type"]) for row in rows_of(stream, *batch)]

    whole = [(1, "insert"), (1, "delete"), (2, "insert"), (2, "delete"), (3, "insert")]
    assert kinds() == whole
    assert kinds(ignoreDeletes="true") == [whole[0], *whole[2:]]
    assert kinds(skipChangeCommits="true") == [whole[0], whole[2]]


def test_the_reader_of_older_sparks_takes_all_there_is(table: TableBuilder) -> None:
    def classic(**options: Any) -> ClassicStreamReader:
        new = reader(table, **options)
        old = ClassicStreamReader(new.query)
        _READERS.append(old)
        return old

    add_files(table, (1, 2), (3,))
    stream = classic(startingVersion=0)
    end = stream.latestOffset()
    assert ids(rows_of(stream, stream.initialOffset(), end)) == [1, 2, 3]
    assert json.dumps(stream.latestOffset()) == json.dumps(end)
    assert json.dumps(classic(startingVersion=0).latestOffset()) == json.dumps(end), "a restart"

    snapshot = classic()
    assert ids(rows_of(snapshot, snapshot.initialOffset(), end)) == [1, 2, 3]
    latest = classic(startingVersion="latest")
    assert rows_of(latest, latest.initialOffset(), end) == []
    table.insert(rows(4))
    following = stream.latestOffset()
    assert ids(rows_of(stream, end, following)) == [4]

    table.commit_path(2).unlink()
    with pytest.raises(TailerSourceError, match="and the newest is 1"):
        stream.latestOffset()


def test_event_ids_are_the_daemons(table: TableBuilder) -> None:
    from tests.support.feeds import events

    add_files(table, (1, 2), (3,))
    stream = reader(table, startingVersion=0, withIds="true")
    found = [rows_of(stream, *batch) for batch in batches(stream, ReadMaxFiles(1))]
    wanted = {event["id"]: event["_event_id"] for event in events(table)}
    assert {row["id"]: row["_event_id"] for row in flat(found)} == wanted
    assert {row["_origin"] for row in flat(found)} == {"files"}
