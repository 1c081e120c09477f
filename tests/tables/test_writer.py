"""The table writer: two writers at once, and the rules that a valid table has to keep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from tailer.changes import Offset
from tests.support.builders import CLASSIC_KINDS, V2_KINDS
from tests.support.feeds import ID, events
from tests.tables.transaction import ConcurrentChange
from tests.tables.writer import TableWriter

ROWS = [{"id": i} for i in range(4)]
TRACKED = {"delta.enableRowTracking": "true"}


def commit(writer: TableWriter, version: int) -> list[dict[str, Any]]:
    text = writer.builder.commit_path(version).read_text()
    return [json.loads(line) for line in text.splitlines()]


def of_kind(actions: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [action[kind] for action in actions if kind in action]


def ids_of(writer: TableWriter) -> list[tuple[Any, Any, Any]]:
    """Row id, row commit version and value of each row."""
    rows = (row for _, row in writer.present.live())
    return sorted((row.row_id, row.commit_version, row.values["id"]) for row in rows)


def test_of_two_writers_at_once_the_slower_commits_on_top_of_the_faster(tmp_path: Path) -> None:
    writer = TableWriter(tmp_path, ID, properties=TRACKED)
    other = writer.fork()
    writer.append([{"id": 1}, {"id": 2}])
    other.append([{"id": 3}])
    assert (writer.present.version, other.present.version) == (1, 2)
    assert sorted(row["id"] for row in other.present.rows()) == [1, 2, 3]
    # Ids and commit versions that the slower one gives are those of the version that it got.
    assert ids_of(other) == [(0, 1, 1), (1, 1, 2), (2, 2, 3)]
    assert [e["id"] for e in events(writer.builder)] == [1, 2, 3]


def test_a_transaction_whose_file_another_removed_is_given_up(tmp_path: Path) -> None:
    writer = TableWriter(tmp_path, ID)
    writer.append(ROWS)
    other = writer.fork()
    writer.delete(lambda row: row["id"] == 0)
    with pytest.raises(ConcurrentChange, match="removed"):
        other.delete(lambda row: row["id"] == 1)
    assert writer.builder.version == 2


def test_a_transaction_whose_metadata_another_changed_is_given_up(tmp_path: Path) -> None:
    writer = TableWriter(tmp_path, ID)
    other = writer.fork()
    writer.set_cdf(on=True)
    with pytest.raises(ConcurrentChange, match="metadata"):
        other.append(ROWS)


def test_there_is_one_second_attempt(tmp_path: Path) -> None:
    writer = TableWriter(tmp_path, ID)
    other = writer.fork()
    writer.append(ROWS)
    writer.append(ROWS)
    with pytest.raises(FileExistsError):
        other.append(ROWS)


def test_kept_rows_keep_their_ids_and_updated_ones_get_a_new_commit_version(
    tmp_path: Path,
) -> None:
    writer = TableWriter(tmp_path, ID, properties=TRACKED)
    writer.append(ROWS)
    writer.update(lambda row: row["id"] == 1, lambda _: {"id": 10})
    writer.optimise()
    assert ids_of(writer) == [(0, 1, 0), (1, 2, 10), (2, 1, 2), (3, 1, 3)]
    (info,) = of_kind(commit(writer, 3), "commitInfo")
    assert info["tags"] == {"delta.rowTracking.preserved": "true"}
    marks = [
        json.loads(d["configuration"])["rowIdHighWaterMark"]
        for version in range(1, 4)
        for d in of_kind(commit(writer, version), "domainMetadata")
    ]
    assert marks == sorted(set(marks)), "the high-water mark only rises, and no id is given twice"


def test_backfill_gives_every_file_ids_before_tracking_is_enabled(tmp_path: Path) -> None:
    writer = TableWriter(tmp_path, ID)
    writer.append(ROWS, files=2)
    writer.set_row_tracking(on=True)
    assert sorted(row_id for row_id, _, _ in ids_of(writer)) == [0, 1, 2, 3]
    enabled = writer.present.version
    for version in range(2, enabled):
        adds = of_kind(commit(writer, version), "add")
        assert not any(add["dataChange"] for add in adds)
        assert all("baseRowId" in add for add in adds)
    assert of_kind(commit(writer, enabled), "add") == []


def test_every_change_of_a_version_is_in_its_cdc_files_or_none_is(tmp_path: Path) -> None:
    writer = TableWriter(tmp_path, ID, cdf=True)
    writer.append(ROWS, files=2)
    writer.delete(lambda row: row["id"] < 2)  # a whole file: the remove says it all
    writer.delete(lambda row: row["id"] == 2)
    assert [len(of_kind(commit(writer, v), "cdc")) for v in (1, 2, 3)] == [0, 0, 1]
    kinds = [(e["_change_type"], e["id"]) for e in events(writer.builder, 2)]
    assert kinds == [("delete", 0), ("delete", 1), ("delete", 2)]


@pytest.mark.parametrize("kind", [*CLASSIC_KINDS, *V2_KINDS])
def test_a_cleaned_log_begins_with_any_kind_of_checkpoint(tmp_path: Path, kind: str) -> None:
    v2 = {"delta.checkpointPolicy": "v2"} if kind in V2_KINDS else {}
    writer = TableWriter(tmp_path, ID, properties=v2, seed=3)
    writer.append(ROWS, files=3)
    writer.optimise()
    writer.checkpoint(kind)
    writer.append([{"id": 9}])
    assert writer.clean_log() == 2
    assert not writer.builder.commit_path(1).exists()
    found = [e["id"] for e in events(writer.builder, Offset(3, snapshot=True))]
    assert sorted(found) == [0, 1, 2, 3, 9]
    if kind in CLASSIC_KINDS:  # deltalake does not read the others
        rows = deltalake.DeltaTable(tmp_path).to_pyarrow_table()
        assert sorted(rows.column("id").to_pylist()) == sorted(found)


def test_a_compaction_holds_what_is_left_of_its_commits(tmp_path: Path) -> None:
    writer = TableWriter(tmp_path, ID)
    writer.append(ROWS)
    writer.delete(lambda row: row["id"] == 0)
    lines = writer.compact_log(1).read_text().splitlines()
    kinds = sorted(next(iter(json.loads(line))) for line in lines)
    assert kinds == ["add", "remove"]


@pytest.mark.parametrize(
    ("features", "versions"),
    [({}, (1, 2)), ({"cdf": True}, (1, 4)), ({"mapping": "name"}, (2, 5))],
)
def test_protocol_versions_are_no_higher_than_they_must_be(
    tmp_path: Path, features: dict[str, Any], versions: tuple[int, int]
) -> None:
    writer = TableWriter(tmp_path, ID, **features)
    (protocol,) = of_kind(commit(writer, 0), "protocol")
    assert (protocol["minReaderVersion"], protocol["minWriterVersion"]) == versions


def test_columns_are_renamed_and_dropped_under_column_mapping_only(tmp_path: Path) -> None:
    writer = TableWriter(tmp_path, pa.schema([("id", pa.int64()), ("a", pa.string())]))
    with pytest.raises(ValueError, match="column mapping"):
        writer.rename_column("b", "a")
    writer.set_column_mapping()
    writer.append([{"id": 1, "a": "x"}])
    writer.rename_column("b", "a")
    writer.drop_column("b")
    writer.add_column("b", pa.string())
    assert writer.present.rows() == [{"id": 1, "b": None}]
    with pytest.raises(ValueError, match="no column c"):
        writer.drop_column("c")
