"""Offsets, and the ids of events."""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa
import pytest
from msgspec import structs

from tailer.changes import (
    CHANGE_TYPES,
    METADATA_FIELDS,
    ChangeBatch,
    ChangeFile,
    DecodedRows,
    Offset,
)
from tailer.errors import OffsetError
from tests.support.feeds import refusal, state

FULL = Offset(5, 7, snapshot=True, table_id="t", timestamp_floor_ms=123)
FILE = ChangeFile(
    path="a.parquet",
    location="a.parquet",
    version=5,
    timestamp_ms=0,
    table_id="t",
    state=state(),
    partition_values={},
    change_type=None,
    origin="cdf",
)


def batch(*kinds: str, file: ChangeFile | None = FILE, offset: Offset | None = None) -> ChangeBatch:
    offset = offset or Offset(5)
    count = len(kinds)
    columns = [
        pa.array(range(count), pa.int64()),
        pa.array(kinds, pa.string()),
        pa.nulls(count, pa.int64()),
        pa.nulls(count, METADATA_FIELDS[2].type),
    ]
    schema = pa.schema([("id", pa.int64()), *METADATA_FIELDS])
    rows = pa.RecordBatch.from_arrays(columns, schema=schema)
    positions = pa.array(range(10, 10 + count), pa.int64())
    return ChangeBatch(rows, positions, FILE.state, file, 0, offset, offset)


def test_a_sink_may_keep_something_by_file() -> None:
    rows = DecodedRows(pa.record_batch({"id": ["secret"]}), pa.array([0], pa.int64()))
    partition = structs.replace(FILE, partition_values={"part": "secret"}, kept=(rows,))
    assert {FILE: 1, partition: 2}[structs.replace(FILE)] == 1
    assert "secret" not in repr(partition)


def ids(*kinds: str, **options: Any) -> list[str]:
    found: list[str] = batch(*kinds, **options).event_ids().to_pylist()
    return found


def test_an_offset_survives_its_json() -> None:
    assert Offset.from_json(json.loads(str(FULL))) == FULL
    found = Offset.from_json(FULL.to_json())
    assert (found.snapshot, found.table_id, found.timestamp_floor_ms) == (True, "t", 123)


def test_an_offsets_text_never_changes() -> None:
    assert str(FULL) == (
        '{"format":1,"table_id":"t","version":5,"index":7,"snapshot":true,"timestamp_floor_ms":123}'
    )


def test_unknown_fields_of_an_offset_are_passed_over() -> None:
    assert Offset.from_json({**FULL.to_json(), "new": 1}) == FULL


@pytest.mark.parametrize(
    "damage",
    [
        {"version": None}, {"version": "5"}, {"version": -1}, {"version": 5.0},
        {"index": -1}, {"index": None}, {"snapshot": None}, {"snapshot": 1},
        {"table_id": 5}, {"timestamp_floor_ms": "1"},
    ],
    ids=str,
)  # fmt: skip
def test_a_damaged_offset_is_refused(damage: dict[str, Any]) -> None:
    message = refusal(lambda: Offset.from_json({**FULL.to_json(), **damage}), OffsetError)
    assert "damaged" in message


@pytest.mark.parametrize("document", [None, [], "x", {}, {"format": 2, "version": 1}, 5])
def test_an_offset_of_another_format_is_refused_by_it(document: Any) -> None:
    assert "format" in refusal(lambda: Offset.from_json(document), OffsetError)


def test_the_next_version_begins_at_its_first_change_and_knows_the_time_before_it() -> None:
    assert FULL.next_version(456).position == (6, 0)
    following = FULL.next_version(456)
    assert following.to_json() == {
        **FULL.to_json(), "version": 6, "index": 0, "snapshot": False, "timestamp_floor_ms": 456,
    }  # fmt: skip


def test_offsets_are_equal_if_all_their_fields_are() -> None:
    assert structs.replace(FULL) == FULL
    for name, other in {
        "version": 6, "index": 8, "snapshot": not FULL.snapshot, "table_id": "another",
        "timestamp_floor_ms": 0, "counted_by": "another",
    }.items():  # fmt: skip
        changes: dict[str, Any] = {name: other}
        assert structs.replace(FULL, **changes) != FULL, name


def test_offsets_are_ordered_by_position_alone() -> None:
    found = sorted([Offset(10), Offset(2, 1), Offset(1, 9), Offset(2)], key=lambda o: o.position)
    assert found == [Offset(1, 9), Offset(2), Offset(2, 1), Offset(10)]
    assert Offset(2, 1, table_id="a").position == Offset(2, 1, snapshot=True).position


def test_an_event_id_is_of_table_version_file_position_and_kind() -> None:
    found = ids(*CHANGE_TYPES)
    assert len(set(found)) == 4
    prefix = FILE.event_prefix()
    assert re.fullmatch("[0-9a-f]{32}", prefix)
    assert found == [f"{prefix}-10-i", f"{prefix}-11-b", f"{prefix}-12-a", f"{prefix}-13-d"]


def test_event_ids_stay_the_same_for_ever() -> None:
    assert FILE.event_prefix() == "70791c247695eb15aca832863d036537"


@pytest.mark.parametrize("change", [{"table_id": "u"}, {"version": 6}, {"path": "b.parquet"}])
def test_another_table_version_or_file_gives_other_ids(change: dict[str, Any]) -> None:
    other = structs.replace(FILE, **change)
    assert other.event_prefix() != FILE.event_prefix()


def test_what_does_not_tell_events_apart_does_not_change_their_ids() -> None:
    other = structs.replace(
        FILE, location="/moved/a.parquet", timestamp_ms=9, size=5, origin="files"
    )
    assert ids("delete", file=other) == ids("delete")


def test_rows_of_the_snapshot_have_ids_of_their_own() -> None:
    assert ids("insert", offset=Offset(5, snapshot=True)) == [f"{FILE.event_prefix()}-10-s"]


def test_a_batch_without_rows_has_no_ids() -> None:
    assert ids() == []
    assert ids(file=None) == []
    assert batch(file=None, offset=Offset(8)).version == 8


def test_kinds_are_chosen_of_rows_that_were_chosen_before() -> None:
    changes = batch("insert", "delete", "update_preimage", "delete")
    folded = changes.of_kinds(pa.array(["insert", "delete"]))
    assert folded.of_kinds(pa.array(["delete"])).row_indices().to_pylist() == [1, 3]
