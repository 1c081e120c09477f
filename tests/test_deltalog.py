from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from tailer.delta.actions import AddFile, Metadata, RemoveFile
from tailer.deltalog import DeltaLog
from tailer.errors import ConfigError, CorruptLog, CorruptRow, DataLoss, TableError
from tailer.testing.table import TableBuilder


@pytest.fixture(autouse=True)
def _no_cache() -> Iterator[None]:
    DeltaLog.clear_cache()
    yield
    DeltaLog.clear_cache()


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = str(tmp_path / "orders")
    rows = pa.table({"id": [1, 2, 3], "part": ["a", "b", None]})
    write_deltalake(path, rows, partition_by=["part"])
    done = CommitProperties(app_transactions=[Transaction("my-stream", 7)])
    write_deltalake(path, rows, mode="append", commit_properties=done)
    DeltaTable(path).delete("part = 'a'")
    return path


def test_one_table_has_one_log_until_it_is_forgotten(table: str) -> None:
    log = DeltaLog.for_table(table)
    assert DeltaLog.for_table(f"file://{table}") is log
    DeltaLog.invalidate_cache(table)
    assert DeltaLog.for_table(table) is not log


def test_a_folder_without_commits_is_no_table(table: str, tmp_path: Path) -> None:
    assert DeltaLog.for_table(table).table_exists
    assert not DeltaLog.for_table(str(tmp_path / "nothing")).table_exists


def test_update_looks_again_only_when_the_snapshot_is_too_old(table: str) -> None:
    now_s = [1000.0]
    log = DeltaLog(table, clock=lambda: now_s[0])
    assert log.update().version == 2
    write_deltalake(table, pa.table({"id": [4], "part": ["c"]}), mode="append")
    now_s[0] += 5
    assert log.update(staleness_acceptable_s=10).version == 2
    assert log.snapshot.version == 2
    assert log.update(staleness_acceptable_s=5).version == 3
    assert log.update().version == 3


def test_a_clock_that_goes_back_does_not_make_a_snapshot_fresh(table: str) -> None:
    now_s = [1000.0]
    log = DeltaLog(table, clock=lambda: now_s[0])
    log.update()
    write_deltalake(table, pa.table({"id": [4], "part": ["c"]}), mode="append")
    now_s[0] -= 500
    assert log.update(staleness_acceptable_s=10).version == 3


def test_a_snapshot_is_found_by_version_and_by_time(table: str) -> None:
    log = DeltaLog.for_table(table)
    first = log.history()[-1]
    assert log.snapshot_at(0).version == 0
    assert log.snapshot_at(timestamp_ms=first.timestamp_ms).version == 0
    with pytest.raises(TableError, match="at or before"):
        log.snapshot_at(timestamp_ms=first.timestamp_ms - 1)
    with pytest.raises(ConfigError):
        log.snapshot_at()


def test_state_is_told_in_deltas_words(table: str) -> None:
    log = DeltaLog.for_table(table)
    assert log.metadata.partition_columns == ("part",)
    assert log.protocol.min_reader_version == 1
    assert log.properties == {}
    assert log.transaction_version("my-stream") == 7
    assert log.transaction_version("another") is None
    assert log.domain_metadata("delta.rowTracking") is None


def test_files_are_filtered_by_typed_partition_values(table: str) -> None:
    log = DeltaLog.for_table(table)
    files = list(log.files())
    assert sorted(str(f.partition_values["part"]) for f in files) == ["None", "None", "b", "b"]
    state = log.snapshot.state
    nulls = log.filter_file_list(state, files, lambda values: values["part"] is None)
    assert [f.partition_values for f in nulls] == [{"part": None}] * 2
    assert sum(f.num_records or 0 for f in files) == 4


def test_a_partition_value_that_python_does_not_have_is_refused_by_name(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32())])
    table = TableBuilder(tmp_path / "far", schema, partition_by=["day"])
    table.create()
    table.commit(table.add([{"id": 1}], partition={"day": "+12020-02-29"}))
    log = DeltaLog.for_table(str(table.folder))
    state = log.snapshot.state
    with pytest.raises(CorruptRow, match=r"'\+12020-02-29' of the column 'day'"):
        list(log.filter_file_list(state, log.files(), lambda _: True))


def test_a_partition_value_that_a_file_lacks_is_refused_by_name(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32())])
    table = TableBuilder(tmp_path / "lacking", schema, partition_by=["day"])
    table.create()
    table.commit(table.add([{"id": 1}], path="a.parquet"))
    log = DeltaLog.for_table(str(table.folder))
    state = log.snapshot.state
    with pytest.raises(CorruptLog, match=r"a\.parquet: .* no partition value for the column 'day'"):
        list(log.filter_file_list(state, log.files(), lambda _: True))


def test_files_can_be_left_before_the_last_one(table: str) -> None:
    assert len(list(islice(DeltaLog.for_table(table).files(), 1))) == 1


def test_changes_are_all_actions_of_each_version_in_order(table: str) -> None:
    log = DeltaLog.for_table(table)
    changes = dict(log.get_changes(1))
    assert list(changes) == [1, 2]
    assert sum(isinstance(a, AddFile) for a in changes[1]) == 3
    assert sum(isinstance(a, RemoveFile) for a in changes[2]) == 2
    assert list(log.get_changes(3)) == []


def test_changes_need_no_snapshot_of_the_version_before(table: str) -> None:
    log_folder = Path(table, "_delta_log")
    (log_folder / f"{0:020d}.json").unlink()
    log = DeltaLog.for_table(table)
    assert [version for version, _ in log.get_changes(1)] == [1, 2]
    with pytest.raises(DataLoss, match=r"version 0, 0{20}\.json: the commit is missing"):
        list(log.get_changes(0))


def test_changes_go_on_where_the_table_gets_another_id(tmp_path: Path) -> None:
    builder = TableBuilder(tmp_path / "t", pa.schema([("id", pa.int64())]))
    builder.create()
    metadata = builder.metadata()
    metadata["metaData"]["id"] = "another"
    builder.commit(metadata)
    builder.commit(builder.add([{"id": 1}]))
    changes = dict(DeltaLog.for_table(str(builder.folder)).get_changes(0))
    assert list(changes) == [0, 1, 2]
    assert [a.id for a in changes[1] if isinstance(a, Metadata)] == ["another"]


def test_a_commit_that_the_protocol_forbids_is_refused_among_the_changes(tmp_path: Path) -> None:
    builder = TableBuilder(tmp_path / "t", pa.schema([("id", pa.int64())]))
    builder.create()
    add = builder.add([{"id": 1}])
    builder.commit(add, {"add": {**add["add"], "dataChange": False}})
    with pytest.raises(CorruptLog, match=r"version 1, .* one file is added twice"):
        list(DeltaLog.for_table(str(builder.folder)).get_changes(1))


def test_history_is_newest_first(table: str) -> None:
    log = DeltaLog.for_table(table)
    assert [entry.version for entry in log.history()] == [2, 1, 0]
    assert [entry.info["operation"] for entry in log.history(limit=1)] == ["DELETE"]


def test_retention_follows_the_tables_property(table: str) -> None:
    log = DeltaLog(table, clock=lambda: 1_000_000.0)
    assert log.tombstone_retention_millis == 7 * 86_400_000
    assert log.min_file_retention_timestamp() == 1_000_000_000 - 7 * 86_400_000
    DeltaTable(table).alter.set_table_properties(
        {"delta.deletedFileRetentionDuration": "interval 2 days"}
    )
    log.update()
    assert log.tombstone_retention_millis == 2 * 86_400_000
