"""Derived changes, on tables made for one rule each. Random histories are in tests/property."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest

from tailer.changes import Offset
from tailer.compare.engine import DiffOptions
from tailer.compare.stream import MAP_DEPTH_MAX
from tailer.errors import UnsupportedTable
from tailer.feed.options import FeedOptions
from tailer.feed.progress import Observer
from tailer.feed.read import read_changes
from tailer.testing.table import Action, TableBuilder
from tests.support.feeds import batches, events, refusal, table_log, without_ids

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.float64())])
TRACKED = {
    "delta.enableRowTracking": "true",
    "delta.rowTracking.materializedRowIdColumnName": "_row_id",
    "delta.rowTracking.materializedRowCommitVersionColumnName": "_row_version",
}
PRESERVED: Action = {"commitInfo": {"tags": {"delta.rowTracking.preserved": "true"}}}


def plain(folder: Path, schema: pa.Schema = SCHEMA) -> TableBuilder:
    table = TableBuilder(folder / "t", schema)
    table.create()
    return table


def rewrite(table: TableBuilder, old: Action, rows: Sequence[dict[str, Any]]) -> Action:
    """A commit that replaces one file by another with these rows."""
    new = table.add(rows)
    table.commit(table.remove(old), new)
    return new


def kinds(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(e["_change_type"], e["id"], e["v"]) for e in found]


def start(table: TableBuilder, rows: list[dict[str, Any]]) -> Action:
    first = table.add(rows)
    table.commit(first)
    return first


def test_rows_that_were_only_copied_are_no_changes(tmp_path: Path) -> None:
    table = plain(tmp_path)
    first = start(table, [{"id": i, "v": float(i)} for i in range(5)])
    rewrite(table, first, [{"id": i, "v": 9.0 if i == 3 else float(i)} for i in range(5)])
    assert kinds(events(table, 2)) == [("delete", 3, 3.0), ("insert", 3, 9.0)]


def test_equality_is_that_of_rows_not_of_bits(tmp_path: Path) -> None:
    table = plain(tmp_path)
    nan = math.nan
    first = start(table, [{"id": 1, "v": nan}, {"id": 2, "v": -0.0}, {"id": None, "v": None}])
    rewrite(table, first, [{"id": None, "v": None}, {"id": 2, "v": 0.0}, {"id": 1, "v": -nan}])
    assert events(table, 2) == []


def test_of_equal_rows_the_first_ones_stay(tmp_path: Path) -> None:
    table = plain(tmp_path)
    same: dict[str, Any] = {"id": 1, "v": 1.0}
    files = [table.add([same] * 3), table.add([same] * 2)]
    table.commit(*files)
    table.commit(*(table.remove(f) for f in files), table.add([same] * 2))
    [batch] = batches(table, 2)
    assert batch.file is not None
    assert batch.file.path == files[0]["add"]["path"]
    assert batch.positions.to_pylist() == [0, 1, 2]


def test_maps_have_no_order_wherever_they_are_nested(tmp_path: Path) -> None:
    inner = pa.map_(pa.string(), pa.int32())
    schema = pa.schema([("m", inner), ("l", pa.list_(pa.struct([("m", inner)])))])
    table = plain(tmp_path, schema)
    first = start(table, [{"m": [("a", 1), ("b", 2)], "l": [{"m": [("x", 1), ("y", 2)]}, None]}])
    new = rewrite(
        table, first, [{"m": [("b", 2), ("a", 1)], "l": [{"m": [("y", 2), ("x", 1)]}, None]}]
    )
    assert events(table, 2) == []
    rewrite(table, new, [{"m": [("b", 2)], "l": [{"m": [("y", 2), ("x", 2)]}, None]}])
    assert [e["_change_type"] for e in events(table, 3)] == ["delete", "insert"]


def test_maps_nested_too_deep_to_compare_are_refused_by_name(tmp_path: Path) -> None:
    deep: pa.DataType = pa.int64()
    for _ in range(MAP_DEPTH_MAX + 1):
        deep = pa.map_(pa.string(), deep)
    table = plain(tmp_path, pa.schema([("id", pa.int64()), ("m", deep)]))
    rewrite(table, start(table, [{"id": 1, "m": None}]), [{"id": 2, "m": None}])
    sentence = refusal(lambda: events(table, 2), UnsupportedTable)
    assert "version 2" in sentence
    assert "maps are nested more than" in sentence


def test_key_columns_pair_what_is_left_into_updates(tmp_path: Path) -> None:
    table = plain(tmp_path)
    first = start(table, [{"id": i, "v": 0.0} for i in range(4)])
    rewrite(table, first, [{"id": 0, "v": 0.0}, {"id": 1, "v": 1.0}, {"id": 9, "v": 0.0}])

    async def read(key: tuple[str, ...]) -> list[Any]:
        found = read_changes(table_log(table), Offset(2), 2, FeedOptions(key=key))
        return [row for batch in [b async for b in found] for row in batch.rows.to_pylist()]

    assert Counter(kinds(anyio.run(read, ("id",)))) == Counter(
        [
            ("update_preimage", 1, 0.0),
            ("update_postimage", 1, 1.0),
            ("delete", 2, 0.0),
            ("delete", 3, 0.0),
            ("insert", 9, 0.0),
        ]
    )
    sentence = refusal(lambda: anyio.run(read, ("nope",)))
    assert "version 2" in sentence
    assert "'nope' does not exist" in sentence


def test_an_added_column_alone_is_no_change_of_rows(tmp_path: Path) -> None:
    table = plain(tmp_path)
    first = start(table, [{"id": 1, "v": 1.0}, {"id": 2, "v": 2.0}])
    table.schema = SCHEMA.append(pa.field("more", pa.string()))
    rows: list[dict[str, Any]] = [
        {"id": 1, "v": 1.0, "more": None},
        {"id": 2, "v": 2.0, "more": "x"},
    ]
    table.commit(table.metadata(), table.remove(first), table.add(rows))
    left, came = without_ids(events(table, 2))
    assert left == {"id": 2, "v": 2.0, "_change_type": "delete", "_commit_version": 2}
    assert came["more"] == "x"


def test_rows_of_types_that_cannot_be_compared_all_leave_and_come(tmp_path: Path) -> None:
    table = plain(tmp_path)
    first = start(table, [{"id": 1, "v": 1.0}])
    table.schema = pa.schema([("id", pa.string()), ("v", pa.float64())])
    table.commit(table.metadata(), table.remove(first), table.add([{"id": "1", "v": 1.0}]))
    assert kinds(events(table, 2)) == [("delete", 1, 1.0), ("insert", "1", 1.0)]


def test_a_version_that_only_rearranges_gives_nothing(tmp_path: Path) -> None:
    table = plain(tmp_path)
    first = start(table, [{"id": 1, "v": 1.0}])
    table.commit(
        table.remove(first, dataChange=False), table.add([{"id": 1, "v": 1.0}], dataChange=False)
    )
    assert events(table, 2) == []


def test_a_mix_of_flags_is_compared_as_a_whole(tmp_path: Path) -> None:
    table = plain(tmp_path)
    first = start(table, [{"id": 1, "v": 1.0}])
    moved = table.add([{"id": 1, "v": 1.0}], dataChange=False)
    table.commit(table.remove(first, dataChange=False), moved, table.add([{"id": 2, "v": 2.0}]))
    assert kinds(events(table, 2, source="derived")) == [("insert", 2, 2.0)]


def test_adding_a_live_file_again_for_its_statistics_is_no_insert(tmp_path: Path) -> None:
    table = plain(tmp_path)
    first = start(table, [{"id": 1, "v": 1.0}])
    again = {"add": {**first["add"], "dataChange": False}}
    table.commit(again, table.add([{"id": 2, "v": 2.0}]))
    assert kinds(events(table, 2, source="derived")) == [("insert", 2, 2.0)]


def test_resuming_inside_a_derived_version_goes_on_where_it_was(tmp_path: Path) -> None:
    table = plain(tmp_path)
    first = start(table, [{"id": i, "v": 0.0} for i in range(6)])
    rewrite(table, first, [{"id": i, "v": float(i % 3)} for i in range(6)])
    everything = events(table, 2)
    assert len(everything) == 8
    for index in range(8):
        offset = Offset(2, index, table_id=table.table_id)
        assert events(table, offset, batch_rows_max=3) == everything[index:]


def test_memory_below_what_the_rows_need_gives_the_same_answer(tmp_path: Path) -> None:
    table = plain(tmp_path)
    rows = [{"id": i, "v": float(i)} for i in range(200_000)]
    first = start(table, rows)
    rewrite(table, first, [r if r["id"] % 1000 else {**r, "v": -1.0} for r in rows])

    async def read() -> int:
        small = FeedOptions(diff=DiffOptions(memory_bytes_max=24_000_000))
        found = read_changes(table_log(table), Offset(2), 2, small)
        return sum([batch.num_rows async for batch in found])

    assert anyio.run(read) == 400


def tracked(folder: Path) -> tuple[TableBuilder, Action]:
    """A table with row ids 0 to 2 in one file."""
    table = TableBuilder(folder / "t", SCHEMA, properties=TRACKED)
    table.commit(
        table.protocol(1, 7, writerFeatures=["rowTracking", "domainMetadata"]), table.metadata()
    )
    rows = [{"id": i, "v": 0.0} for i in range(3)]
    first = table.add(rows, baseRowId=0, defaultRowCommitVersion=1)
    table.commit(first)
    return table, first


def rewritten(
    table: TableBuilder, rows: Sequence[tuple[int, float, int | None, int | None]]
) -> Action:
    """A file with the materialised ids and commit versions that the rows end with."""
    data = table.schema
    table.schema = pa.schema([*data, ("_row_id", pa.int64()), ("_row_version", pa.int64())])
    names = table.schema.names
    new = table.add(
        [dict(zip(names, r, strict=True)) for r in rows], baseRowId=10, defaultRowCommitVersion=2
    )
    table.schema = data
    return new


def test_row_ids_tell_an_update_from_a_delete_and_an_insert(tmp_path: Path) -> None:
    table, first = tracked(tmp_path)
    rows = [(0, 0.0, 0, 1), (1, 5.0, 1, None), (7, 0.0, None, None)]
    table.commit(PRESERVED, table.remove(first), rewritten(table, rows))
    found = batches(table, 2)
    assert {b.file.origin for b in found if b.file} == {"row_ids"}
    assert kinds(events(table, 2)) == [
        ("update_preimage", 1, 0.0),
        ("delete", 2, 0.0),
        ("update_postimage", 1, 5.0),
        ("insert", 7, 0.0),
    ]


def test_an_update_that_changes_nothing_is_dropped_and_counted(tmp_path: Path) -> None:
    table, first = tracked(tmp_path)
    rows = [(0, 0.0, 0, None), (1, 5.0, 1, None), (2, 0.0, 2, 1)]
    table.commit(PRESERVED, table.remove(first), rewritten(table, rows))
    assert [e["id"] for e in events(table, 2)] == [1, 1]

    class Counting(Observer):
        dropped = 0

        def count_noops(self, rows: int) -> None:
            self.dropped += rows

    observer = Counting()

    async def read() -> None:
        options = FeedOptions(change_source="derived")
        async for _ in read_changes(table_log(table), Offset(2), 2, options, observer):
            pass

    anyio.run(read)
    assert observer.dropped == 1


def test_two_rows_that_swap_their_values_by_id_are_two_updates(tmp_path: Path) -> None:
    table, first = tracked(tmp_path)
    rows = [(1, 0.0, 0, None), (0, 0.0, 1, None), (2, 0.0, 2, 1)]
    table.commit(PRESERVED, table.remove(first), rewritten(table, rows))
    assert [e["_change_type"] for e in events(table, 2)] == [
        "update_preimage", "update_preimage", "update_postimage", "update_postimage",
    ]  # fmt: skip


@pytest.mark.parametrize("info", [None, {"commitInfo": {"tags": {}}}, {"commitInfo": {}}])
def test_ids_that_the_writer_did_not_preserve_are_not_believed(
    tmp_path: Path, info: Action | None
) -> None:
    table, first = tracked(tmp_path)
    # Fresh ids, as a plain overwrite gives them: by id every row would leave and come.
    new = rewritten(table, [(0, 0.0, None, None), (1, 0.0, None, None), (2, 4.0, None, None)])
    table.commit(*([info] if info else []), table.remove(first), new)
    assert kinds(events(table, 2)) == [("delete", 2, 0.0), ("insert", 2, 4.0)]


def test_old_commit_versions_that_come_back_are_no_updates_of_this_version(tmp_path: Path) -> None:
    """RESTORE brings back ids with their old commit versions."""
    table, first = tracked(tmp_path)
    updated = rewritten(table, [(0, 0.0, 0, 1), (1, 5.0, 1, None), (2, 0.0, 2, 1)])
    table.commit(PRESERVED, table.remove(first), updated)
    table.commit(PRESERVED, table.remove(updated), first)
    assert kinds(events(table, 3)) == [("update_preimage", 1, 5.0), ("update_postimage", 1, 0.0)]
