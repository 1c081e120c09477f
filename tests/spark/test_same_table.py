"""A query and another table in the place of its own: ids come before everything else. No Spark is
started here."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec import structs
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tailer.changes import Offset
from tailer.spark.error_sentence import TailerSourceError
from tailer.spark.source import TailerSource
from tailer.spark.source.limited_stream import LimitedStreamReader
from tailer.spark.source.reader import ChangeStreamReader, ClassicStreamReader
from tailer.store.local import LocalStore
from tailer.testing.table import TableBuilder

SCHEMA = pa.schema([("id", pa.int64())])
ALL = ReadAllAvailable()
ANOTHER = r"\[replaced\] .*the query has read table .*, and the table there now is"

_READERS: list[ChangeStreamReader] = []


@pytest.fixture(autouse=True)
def stopped() -> Iterator[None]:
    yield
    while _READERS:
        _READERS.pop().stop()


def make(folder: Path, versions: int) -> TableBuilder:
    """Make a table with version 0 and these, in the place of the one there."""
    shutil.rmtree(folder, ignore_errors=True)
    table = TableBuilder(folder, SCHEMA)
    table.create()
    for number in range(versions):
        table.insert([{"id": number}])
    return table


def reader(folder: Path, **options: Any) -> LimitedStreamReader:
    given = {name: str(value) for name, value in options.items()}
    source = TailerSource({"path": str(folder), "startingVersion": "0", **given})
    found = source.streamReader(source.schema())
    assert isinstance(found, LimitedStreamReader)
    _READERS.append(found)
    return found


def classic(folder: Path, **options: Any) -> ClassicStreamReader:
    new = reader(folder, **options)
    old = ClassicStreamReader(new.query)
    _READERS.append(old)
    return old


def read_all(folder: Path) -> dict[str, Any]:
    stream = reader(folder)
    return stream.latestOffset(stream.initialOffset(), ALL)


@pytest.mark.parametrize("versions", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("again", ["restarted", "running"])
def test_a_table_made_again_is_refused_however_many_versions_it_has(
    versions: int, again: str, tmp_path: Path
) -> None:
    folder = tmp_path / "t"
    make(folder, 2)
    stream = reader(folder)
    place = stream.latestOffset(stream.initialOffset(), ALL)
    assert stream.latestOffset(place, ALL) == place, "nothing is new"
    make(folder, versions)
    stream = reader(folder) if again == "restarted" else stream
    if versions <= 2 or again == "restarted":
        with pytest.raises(TailerSourceError, match=ANOTHER) as refused:
            stream.latestOffset(place, ALL)
    else:
        with pytest.raises(TailerSourceError, match="the table there is") as refused:
            stream.latestOffset(place, ALL)
    assert "start a new query with a new checkpoint" in str(refused.value)
    assert "tailer offsets" not in str(refused.value)


def test_the_checkpoint_of_another_table_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "one", 2)
    make(tmp_path / "other", 2)
    with pytest.raises(TailerSourceError, match=ANOTHER):
        reader(tmp_path / "other").latestOffset(read_all(tmp_path / "one"), ALL)


@pytest.mark.parametrize("kind", [reader, classic])
def test_a_batch_that_comes_again_finds_no_other_table(
    kind: Callable[..., ChangeStreamReader], tmp_path: Path
) -> None:
    folder = tmp_path / "t"
    make(folder, 2)
    end = read_all(folder)
    make(folder, 2)
    stream = kind(folder)
    with pytest.raises(TailerSourceError, match="the table was replaced by another one"):
        stream.partitions(stream.initialOffset(), end)


def test_the_reader_of_older_sparks_sees_it_too(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    make(folder, 2)
    stream = classic(folder)
    place = stream.latestOffset()
    make(folder, 2)
    with pytest.raises(TailerSourceError, match=ANOTHER):
        stream.latestOffset()
    again = classic(folder)
    with pytest.raises(TailerSourceError, match=ANOTHER):
        again.partitions(place, again.latestOffset())


@pytest.mark.parametrize("cut", [0, 1])
def test_a_snapshot_that_was_begun_is_not_read_on_in_another_table(
    cut: int, tmp_path: Path
) -> None:
    folder = tmp_path / "t"
    table = make(folder, 0)
    table.commit(table.add([{"id": 1}]), table.add([{"id": 2}]))
    stream = reader(folder, startingVersion="snapshot")
    place = Offset.from_json(stream.latestOffset(stream.initialOffset(), ALL))
    assert place.table_id == table.table_id, "a place that is pinned is one in this table"
    make(folder, 1)
    with pytest.raises(TailerSourceError, match=ANOTHER):
        reader(folder).latestOffset(structs.replace(place, index=cut).to_json(), ALL)


def test_a_table_without_news_is_not_read_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "t", 2)
    stream = reader(tmp_path / "t")
    place = stream.latestOffset(stream.initialOffset(), ALL)
    reads: list[str] = []
    whole = LocalStore.read_here

    def counted(self: LocalStore, path: str, *more: Any) -> Any:
        reads.append(path)
        return whole(self, path, *more)

    monkeypatch.setattr(LocalStore, "read_here", counted)
    assert stream.latestOffset(place, ALL) == place
    first = len(reads)
    for _ in range(5):
        assert stream.latestOffset(place, ALL) == place
    assert first > 0
    assert len(reads) == first


# Loss


def lose(table: TableBuilder, *versions: int) -> None:
    for version in versions:
        table.commit_path(version).unlink()


def test_what_a_query_can_do_about_a_cleaned_log_is_said(tmp_path: Path) -> None:
    table = make(tmp_path / "t", 4)
    table.checkpoint(3)
    place = Offset(1, table_id=table.table_id).to_json()
    lose(table, 0, 1, 2)
    with pytest.raises(TailerSourceError, match=r"\[data_loss\] .*set failOnDataLoss to false"):
        reader(tmp_path / "t").latestOffset(place, ALL)


@pytest.mark.parametrize(
    ("lost", "start", "ids", "told"),
    [
        ((0, 1, 2), 0, [3], "versions 0 to 3"),
        ((0, 1, 2), 1, [3], "versions 1 to 3"),
        ((2,), 0, [0, 3], "versions 2 to 3"),
        ((2,), 2, [3], "versions 2 to 3"),
    ],
)
def test_a_query_that_accepts_loss_goes_on_at_what_is_there_and_says_what_it_left_out(
    lost: tuple[int, ...],
    start: int,
    ids: list[int],
    told: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = make(tmp_path / "t", 4)
    table.checkpoint(3)
    lose(table, *lost)
    stream = reader(tmp_path / "t", startingVersion=start, failOnDataLoss="false")
    first = stream.initialOffset()
    end = stream.latestOffset(first, ALL)
    assert found(stream, stream.partitions(first, end)) == ids
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1, "once"
    assert told in said[0]
    source = TailerSource({"path": str(table.folder), "startingVersion": str(start),
                           "failOnDataLoss": "false"})  # fmt: skip
    batch = source.reader(source.schema())
    assert found(batch, batch.partitions()) == ids


def found(reads: Any, tasks: Any) -> list[int]:
    return [row["id"] for task in tasks for rows in reads.read(task) for row in rows.to_pylist()]
