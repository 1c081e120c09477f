"""From a commit to its changes, by the protocol's rules: on real tables, end to end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec import structs

from tailer.changes import ChangeFile
from tailer.delta.actions import AddFile
from tailer.errors import CorruptLog, DataLoss, TableError, UnsupportedTable
from tailer.plan.rules import choose_source, find_incomplete_removes, plan_changes, plan_snapshot
from tailer.testing.table import TableBuilder
from tests.support.feeds import (
    ID,
    commit_of,
    events,
    metadata,
    offset_of,
    refusal,
    state,
    without_ids,
)

Change = tuple[str, Any]
PARTED = pa.schema([("id", pa.int64()), ("p", pa.string())])


def rows(*ids: int) -> list[dict[str, Any]]:
    return [{"id": i} for i in ids]


def changes(table: TableBuilder, version: int, **options: Any) -> list[Change]:
    """(kind, id) of each event of a version, in order."""
    found = events(table, version, version, **options)
    assert {e["_commit_version"] for e in found} <= {version}
    return [(e["_change_type"], e["id"]) for e in found]


def add(path: str = "f", **fields: Any) -> dict[str, Any]:
    return {"add": {"path": path, "partitionValues": {}, "size": 10, "modificationTime": 0,
                    "dataChange": True, **fields}}  # fmt: skip


def remove(path: str = "f", **fields: Any) -> dict[str, Any]:
    return {"remove": {"path": path, "dataChange": True, "size": 10, "partitionValues": {},
                       "extendedFileMetadata": True, **fields}}  # fmt: skip


def vector(name: str) -> dict[str, Any]:
    return {"storageType": "p", "pathOrInlineDv": name, "offset": 1, "sizeInBytes": 40,
            "cardinality": 1}  # fmt: skip


def orders(*actions: dict[str, Any], **options: Any) -> list[ChangeFile]:
    return list(plan_changes(commit_of(*actions, **options)))


def outline(found: list[ChangeFile]) -> list[tuple[Any, ...]]:
    def name(dv: Any) -> str | None:
        return dv.path_or_inline_dv if dv else None

    return [(f.change_type, f.path, name(f.only), name(f.without)) for f in found]


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    built = TableBuilder(tmp_path, ID, cdf=True)
    built.create()
    return built


def test_a_version_with_cdc_actions_is_read_from_them_alone(table: TableBuilder) -> None:
    first = table.add(rows(1, 2))
    table.commit(first)
    images = [
        {"id": 2, "_change_type": "update_preimage"},
        {"id": 3, "_change_type": "update_postimage"},
    ]
    version = table.commit(table.remove(first), table.add(rows(1, 3)), table.cdc(images))
    assert changes(table, version) == [("update_preimage", 2), ("update_postimage", 3)]


@pytest.mark.parametrize("now", [{}, {"delta.enableChangeDataFeed": "false"}])
def test_cdc_actions_count_whatever_the_property_says_now(
    table: TableBuilder, now: dict[str, str]
) -> None:
    table.insert(rows(1))
    images = table.cdc([{"id": 1, "_change_type": "delete"}])
    version = table.commit(images, table.metadata(configuration=now))
    assert changes(table, version) == [("delete", 1)]


@pytest.mark.parametrize("path", ["beside.parquet", "_change_data/x y.parquet", "sub/c.parquet"])
def test_a_cdc_file_may_lie_anywhere(table: TableBuilder, path: str) -> None:
    version = table.commit(table.cdc([{"id": 1, "_change_type": "insert"}], path=path))
    assert changes(table, version) == [("insert", 1)]


def test_a_cdc_action_may_have_an_adds_path_and_is_known_by_its_kind(table: TableBuilder) -> None:
    both = table.cdc([{"id": 7, "_change_type": "insert"}], path="both.parquet")
    same = {**add("both.parquet")["add"], "size": both["cdc"]["size"]}
    version = table.commit({"add": same}, both)
    assert changes(table, version) == [("insert", 7)]


def test_cdc_counts_though_its_data_change_is_false_and_no_file_changes_data() -> None:
    cdc = {"cdc": {"path": "c", "partitionValues": {}, "size": 1, "dataChange": False}}
    found = orders(add("a", dataChange=False), cdc)
    assert [(f.path, f.change_type) for f in found] == [("c", None)]


def test_a_cdc_action_that_climbs_out_of_the_table_is_refused() -> None:
    cdc = {"cdc": {"path": "../c", "partitionValues": {}, "size": 1}}
    message = refusal(lambda: orders(cdc), CorruptLog)
    assert "climbs" in message
    assert "version 1" in message


def test_adds_are_inserts_and_removes_are_deletes_and_deletes_come_first() -> None:
    assert outline(orders(add("a"), remove("r"), add("b"), remove("s"))) == [
        ("delete", "r", None, None),
        ("delete", "s", None, None),
        ("insert", "a", None, None),
        ("insert", "b", None, None),
    ]


def test_data_change_is_a_flag_of_each_action_and_not_of_the_commit() -> None:
    found = orders(add("a"), add("b", dataChange=False), remove("r", dataChange=False), remove("s"))
    assert [(f.change_type, f.path) for f in found] == [("delete", "s"), ("insert", "a")]


def test_a_commit_that_only_rearranges_data_has_no_changes(table: TableBuilder) -> None:
    first = table.add(rows(1, 2))
    table.commit(first)
    version = table.commit(
        table.remove(first, dataChange=False), table.add(rows(1, 2), dataChange=False)
    )
    assert changes(table, version) == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (None, "n", [("delete", "f", "n", None)]),
        ("o", "n", [("delete", "f", "n", "o"), ("insert", "f", "o", "n")]),
        ("o", None, [("insert", "f", "o", None)]),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_one_path_with_two_vectors_is_the_difference_both_ways(
    old: str | None, new: str | None, expected: list[Any], *, turned: bool
) -> None:
    gone = remove("f", **({"deletionVector": vector(old)} if old else {}))
    come = add("f", **({"deletionVector": vector(new)} if new else {}))
    assert outline(orders(*([come, gone] if turned else [gone, come]))) == expected


def test_a_pair_of_which_one_side_changes_no_data_is_none() -> None:
    gone = remove("f", deletionVector=vector("o"))
    come = add("f", deletionVector=vector("n"), dataChange=False)
    assert outline(orders(gone, come)) == [("delete", "f", None, "o")]


@pytest.mark.parametrize("storage", ["u", "i", "p"])
def test_deletes_by_vector_are_read_from_every_storage(table: TableBuilder, storage: str) -> None:
    first = table.add(rows(*range(10)))
    table.commit(first)
    second = table.delete_rows(first, [2, 5], storage)
    assert changes(table, table.commit(*second)) == [("delete", 2), ("delete", 5)]
    third = table.delete_rows(second[1], [5, 9], storage)
    expected = [("delete", 9), ("insert", 2)]
    assert changes(table, table.commit(*third)) == expected, "row 2 came back"
    version = table.commit(table.remove(third[1]))
    assert changes(table, version) == [("delete", i) for i in (0, 1, 2, 3, 4, 6, 7, 8)]


def test_vectors_are_honoured_though_no_protocol_announces_them(table: TableBuilder) -> None:
    first = table.add(rows(1, 2, 3))
    version = table.commit({"add": {**first["add"], "deletionVector": table.vector([1])}})
    assert changes(table, version) == [("insert", 1), ("insert", 3)]


@pytest.mark.parametrize("damage", ["gone", "cut", "flipped"])
def test_a_damaged_vector_stops_the_feed_with_version_and_file(
    table: TableBuilder, damage: str
) -> None:
    first = table.add(rows(*range(10)))
    table.commit(first)
    version = table.commit(*table.delete_rows(first, [2]))
    (file,) = table.folder.glob("deletion_vector_*.bin")
    data = file.read_bytes()
    match damage:
        case "gone":
            file.unlink()
        case "cut":
            file.write_bytes(data[:-3])
        case "flipped":
            file.write_bytes(data[:20] + bytes([data[20] ^ 4]) + data[21:])
    kind = DataLoss if damage == "gone" else CorruptLog
    message = refusal(lambda: changes(table, version), kind)
    assert f"version {version}, {file.name}" in message


def test_rows_that_leave_are_of_the_metadata_before_and_rows_that_come_of_the_one_after(
    table: TableBuilder,
) -> None:
    old = table.add(rows(1))
    table.commit(old)
    # An overwrite changes everything at once: the column's type and name, and the partitioning.
    table.schema, table.partition_by = pa.schema([("id", pa.string()), ("q", pa.int32())]), ("q",)
    new = table.add([{"id": "x"}], partition={"q": "5"})
    version = table.commit(new, table.remove(old), table.metadata())
    gone, come = without_ids(events(table, version, version))
    assert gone == {"id": 1, "_change_type": "delete", "_commit_version": version}
    assert come == {"id": "x", "q": 5, "_change_type": "insert", "_commit_version": version}


def test_the_schema_before_counts_for_what_leaves_wherever_the_metadata_stands() -> None:
    before, after = state(PARTED, "p"), metadata()
    meta = {"metaData": {"id": after.id, "schemaString": after.schema_string,
                         "partitionColumns": [], "configuration": {}}}  # fmt: skip
    actions = [add("a"), remove("r", partitionValues={"p": "1"}), meta]
    for ordered in (actions, actions[::-1]):
        gone, come = orders(*ordered, before=before)
        assert gone.state is before
        assert come.state.metadata.partition_columns == ()


def parted(tmp_path: Path, **action: Any) -> TableBuilder:
    """A table of one file in one partition, that is removed by an action that has no more fields
    than these."""
    table = TableBuilder(tmp_path, PARTED, partition_by=["p"], cdf=True)
    table.create()
    first = table.add(rows(1, 2), partition={"p": "x"})
    table.commit(first)
    gone = {"path": first["add"]["path"], "dataChange": True, **action}
    table.commit({"remove": gone})
    return table


@pytest.mark.parametrize("lacking", [{}, {"partitionValues": {}}, {"partitionValues": None}])
def test_a_bare_remove_takes_its_partition_values_from_the_add_that_it_removes(
    tmp_path: Path, lacking: dict[str, Any]
) -> None:
    table = parted(tmp_path, **lacking)
    bare = commit_of(remove("f", **lacking), before=state(PARTED, "p"))
    assert find_incomplete_removes(bare) == {("f", "")}
    assert [(e["_change_type"], e["id"], e["p"]) for e in events(table, 2)] == [
        ("delete", 1, "x"),
        ("delete", 2, "x"),
    ]


def test_a_bare_remove_of_a_file_that_is_not_there_removes_no_row(tmp_path: Path) -> None:
    table = parted(tmp_path)
    version = table.commit({"remove": {"path": "unknown.parquet", "dataChange": True}})
    assert events(table, version) == []


def test_a_bare_remove_that_nothing_completes_is_refused_by_name() -> None:
    bare = commit_of(remove("f"), before=state(PARTED, "p"))
    message = refusal(lambda: list(plan_changes(bare)), CorruptLog)
    assert "partition values" in message


def test_a_full_remove_needs_no_look_at_the_version_before() -> None:
    full = remove("f", partitionValues={"p": "x"})
    assert find_incomplete_removes(commit_of(full, before=state(PARTED, "p"))) == set()
    bare = {"remove": {"path": "f%20g", "dataChange": True}}
    assert find_incomplete_removes(commit_of(bare)) == set(), "nothing to fill in"
    assert find_incomplete_removes(commit_of(bare, before=state(PARTED, "p"))) == {("f g", "")}


def test_a_remove_that_changes_no_data_or_stands_beside_cdc_needs_no_completion() -> None:
    before = state(PARTED, "p")
    bare = {"path": "f", "dataChange": False}
    cdc = {"cdc": {"path": "c", "partitionValues": {"p": "1"}, "size": 1}}
    assert find_incomplete_removes(commit_of({"remove": bare}, before=before)) == set()
    beside = commit_of({"remove": {**bare, "dataChange": True}}, cdc, before=before)
    assert find_incomplete_removes(beside) == set()


def test_cdc_files_of_several_partitions_give_what_leaves_first(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, PARTED, partition_by=["p"], cdf=True)
    table.create()
    moved = [
        table.cdc([{"id": 1, "_change_type": "update_postimage"}], partition={"p": "new"}),
        table.cdc([{"id": 1, "_change_type": "update_preimage"}], partition={"p": "old"}),
    ]
    version = table.commit(*moved)
    assert [(e["_change_type"], e["p"]) for e in events(table, version)] == [
        ("update_preimage", "old"),
        ("update_postimage", "new"),
    ]


def test_the_first_version_can_remove_nothing() -> None:
    commit = commit_of(remove("f"), version=0)
    first = structs.replace(commit, before=None)
    assert "first version" in refusal(lambda: list(plan_changes(first)), CorruptLog)


@pytest.mark.parametrize(("cdf", "cdcs", "expected"), [
    (True, 0, "cdf"), (False, 1, "cdf"), (False, 0, "derived"),
])  # fmt: skip
def test_auto_takes_the_change_data_where_there_is_some(
    *, cdf: bool, cdcs: int, expected: str
) -> None:
    before = state(delta__enableChangeDataFeed=str(cdf).lower())
    cdc = {"cdc": {"path": "c", "partitionValues": {}, "size": 1}}
    assert choose_source(commit_of(add(), *[cdc] * cdcs, before=before), "auto") == expected


def test_cdf_is_refused_for_a_version_that_has_changes_and_no_change_data() -> None:
    message = refusal(lambda: choose_source(commit_of(add()), "cdf"), TableError)
    assert "not enabled" in message
    assert choose_source(commit_of(add(dataChange=False)), "cdf") == "cdf", "nothing is missing"


def test_a_data_file_that_is_gone_is_data_loss_with_version_and_file(table: TableBuilder) -> None:
    version = table.insert(rows(1), path="lost.parquet")
    (table.folder / "lost.parquet").unlink()
    message = refusal(lambda: changes(table, version), DataLoss)
    assert f"version {version}, lost.parquet: the data file is gone" in message


def test_snapshot_rows_are_inserts_without_the_rows_that_a_vector_deletes(
    table: TableBuilder,
) -> None:
    first = table.add(rows(1, 2, 3))
    table.commit(first)
    version = table.commit(*table.delete_rows(first, [1]))
    offset = offset_of(table, version)
    start = type(offset)(version, 0, snapshot=True, table_id=table.table_id)
    found = events(table, start, version)
    assert [(e["_change_type"], e["id"]) for e in found] == [("insert", 1), ("insert", 3)]
    assert all(e["_event_id"].endswith("-s") for e in found)


def test_a_snapshots_work_order_is_an_insert_of_its_own_origin() -> None:
    file = AddFile("a%20b", 1, data_change=False, stats='{"numRecords": 3}')
    order = plan_snapshot(file, 4, 99, state())
    assert (order.change_type, order.origin, order.location) == ("insert", "snapshot", "a b")
    assert (order.version, order.timestamp_ms, order.num_records) == (4, 99, 3)


def test_an_unknown_reader_feature_stops_the_feed_at_the_version_that_asks_for_it(
    table: TableBuilder,
) -> None:
    before = table.insert(rows(1))
    newer = table.protocol(3, 7, readerFeatures=["newThing"], writerFeatures=["newThing"])
    version = table.commit(newer, table.add(rows(2)))
    assert changes(table, before) == [("insert", 1)]
    message = refusal(lambda: changes(table, version), UnsupportedTable)
    assert "'newThing'" in message
    assert f"version {version}" in message
