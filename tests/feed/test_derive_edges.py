"""Derived changes where the log changes more than rows, or ids are not what they should be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailer.testing.table import Action, TableBuilder
from tests.support.feeds import batches, events

TRACKED = {
    "delta.enableRowTracking": "true",
    "delta.rowTracking.materializedRowIdColumnName": "_row_id",
    "delta.rowTracking.materializedRowCommitVersionColumnName": "_row_version",
}
PRESERVED: Action = {"commitInfo": {"tags": {"delta.rowTracking.preserved": "true"}}}
NARROW, WIDE = (pa.schema([("id", t), ("v", t)]) for t in (pa.int32(), pa.int64()))


def tracked(folder: Path, schema: pa.Schema = WIDE) -> TableBuilder:
    """A table with row tracking; deletion vectors and type widening are allowed too."""
    table = TableBuilder(folder / "t", schema, properties=TRACKED)
    readers = ["deletionVectors", "typeWidening"]
    writers = [*readers, "rowTracking", "domainMetadata"]
    table.commit(
        table.protocol(3, 7, readerFeatures=readers, writerFeatures=writers), table.metadata()
    )
    return table


def rewritten(
    table: TableBuilder, rows: list[dict[str, Any]], ids: list[int | None], versions: list[Any]
) -> Action:
    """A file of these rows with materialised ids and commit versions."""
    data = table.schema
    table.schema = pa.schema([*data, ("_row_id", pa.int64()), ("_row_version", pa.int64())])
    new = table.add(
        [
            {**row, "_row_id": i, "_row_version": v}
            for row, i, v in zip(rows, ids, versions, strict=True)
        ],
        baseRowId=100,
        defaultRowCommitVersion=2,
    )
    table.schema = data
    return new


def found(table: TableBuilder, version: int = 2) -> list[tuple[str, int, int]]:
    rows = events(table, version, source="derived")
    return sorted((e["_change_type"], e["id"], e["v"]) for e in rows)


def origins(table: TableBuilder, version: int = 2) -> set[str]:
    return {b.file.origin for b in batches(table, version, source="derived") if b.file}


@pytest.mark.parametrize(
    ("partition_type", "before", "after"),
    [
        (pa.timestamp("us", "UTC"), "2024-01-01 00:00:00", "2024-01-02 00:00:00"),
        (pa.timestamp("us"), "2024-01-01 00:00:00", "2024-01-02 00:00:00"),
        (pa.float64(), "1.0", "2.0"),
        (pa.decimal128(9, 2), "1.00", "2.00"),
        (pa.binary(), "a", "b"),
    ],
    ids=str,
)
def test_rows_that_move_to_another_partition_in_a_file_of_the_same_bytes_are_changes(
    tmp_path: Path, partition_type: pa.DataType, before: str, after: str
) -> None:
    schema = pa.schema([("id", pa.int64()), ("p", partition_type)])
    table = TableBuilder(tmp_path / "t", schema, partition_by=["p"])
    table.create()
    old = table.add([{"id": 1}], partition={"p": before})
    table.commit(old)
    table.commit(table.remove(old), table.add([{"id": 1}], partition={"p": after}))
    assert [(e["_change_type"], e["id"]) for e in events(table, 2)] == [
        ("delete", 1),
        ("insert", 1),
    ]


def test_other_partition_columns_alone_change_no_row(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("p", pa.string())])
    table = TableBuilder(tmp_path / "t", schema, partition_by=["p"])
    table.create()
    old = [table.add([{"id": i}], partition={"p": p}) for i, p in enumerate("ab")]
    table.commit(*old)
    table.partition_by = ()
    new = table.add([{"id": 0, "p": "a"}, {"id": 1, "p": "b"}, {"id": 2, "p": "b"}])
    table.commit(table.metadata(), *map(table.remove, old), new)
    assert [(e["_change_type"], e["id"]) for e in events(table, 2)] == [("insert", 2)]


def test_by_row_id_rows_that_the_later_schema_cannot_hold_are_updates(tmp_path: Path) -> None:
    """RESTORE takes a widened column back, and says that it kept the ids."""
    table = tracked(tmp_path, WIDE)
    first = table.add(
        [{"id": i, "v": 2**40 + i} for i in range(3)], baseRowId=0, defaultRowCommitVersion=1
    )
    table.commit(first)
    table.schema = NARROW
    rows = [{"id": i, "v": i} for i in range(2)]
    table.commit(
        PRESERVED, table.metadata(), table.remove(first), rewritten(table, rows, [0, 1], [None] * 2)
    )
    assert found(table) == [
        ("delete", 2, 2**40 + 2),
        ("update_postimage", 0, 0),
        ("update_postimage", 1, 1),
        ("update_preimage", 0, 2**40),
        ("update_preimage", 1, 2**40 + 1),
    ]
    assert origins(table) == {"row_ids"}


def test_a_widened_column_is_no_update_of_the_rows_that_were_copied(tmp_path: Path) -> None:
    table = tracked(tmp_path, NARROW)
    first = table.add([{"id": i, "v": i} for i in range(3)], baseRowId=0, defaultRowCommitVersion=1)
    table.commit(first)
    table.schema = WIDE
    rows = [{"id": 0, "v": 0}, {"id": 1, "v": 1}, {"id": 2, "v": 2**40}]
    # The second was rewritten as an update, with the value that it had.
    table.commit(
        PRESERVED,
        table.metadata(),
        table.remove(first),
        rewritten(table, rows, [0, 1, 2], [1, None, None]),
    )
    assert found(table) == [("update_postimage", 2, 2**40), ("update_preimage", 2, 2)]


def test_a_dropped_column_that_comes_back_with_its_values_changes_rows(tmp_path: Path) -> None:
    """RESTORE beyond a DROP COLUMN: the file that leaves still has what its version had not."""
    table = TableBuilder(tmp_path / "t", WIDE)
    table.create()
    old = table.add([{"id": 1, "v": 7}, {"id": 2, "v": None}])
    table.commit(old)
    table.schema = WIDE.remove(1)
    table.commit(table.metadata())
    table.schema = WIDE
    new = table.add([{"id": 1, "v": 7}, {"id": 2, "v": None}])
    table.commit(table.metadata(), table.remove(old), new)
    rows = events(table, 3, source="derived")
    assert [(e["_change_type"], e["id"], e.get("v")) for e in rows] == [
        ("delete", 1, None),
        ("insert", 1, 7),
    ]


@pytest.mark.parametrize("base", [-5, 2**63 - 3])
def test_ids_at_the_ends_of_their_range_are_ids(tmp_path: Path, base: int) -> None:
    table = tracked(tmp_path)
    rows = [{"id": i, "v": 0} for i in range(3)]
    first = rewritten(table, rows, [base + i for i in range(3)], [1, 1, 1])
    table.commit(first)
    changed = [{**r, "v": int(i == 1)} for i, r in enumerate(rows)]
    table.commit(
        PRESERVED,
        table.remove(first),
        rewritten(table, changed, [base + i for i in range(3)], [1, None, 1]),
    )
    assert found(table) == [("update_postimage", 1, 1), ("update_preimage", 1, 0)]
    assert origins(table) == {"row_ids"}


def test_an_id_twice_on_one_side_is_not_believed(tmp_path: Path) -> None:
    table = tracked(tmp_path)
    rows = [{"id": i, "v": 0} for i in range(4)]
    first = table.add(rows, baseRowId=0, defaultRowCommitVersion=1)
    table.commit(first)
    changed = [{**r, "v": int(i == 3)} for i, r in enumerate(rows)]
    table.commit(
        PRESERVED, table.remove(first), rewritten(table, changed, [0, 1, 1, 3], [1, 1, None, None])
    )
    assert found(table) == [("delete", 3, 0), ("insert", 3, 1)]
    assert origins(table) == {"cancel_out"}


def test_vectors_copies_and_fresh_rows_in_one_commit(tmp_path: Path) -> None:
    """One file loses rows by a vector and gets some back, one is copied, one only came."""
    table = tracked(tmp_path)
    rows = [{"id": i, "v": 0} for i in range(6)]
    one = table.add(rows, baseRowId=0, defaultRowCommitVersion=1)
    one["add"]["deletionVector"] = table.vector([0, 1])
    two = table.add([{"id": i, "v": 0} for i in range(10, 13)], baseRowId=10,
                    defaultRowCommitVersion=1)  # fmt: skip
    table.commit(one, two)
    again = {"add": {**one["add"], "deletionVector": table.vector([1, 2, 3])}}
    # Row 2 is deleted, 3 updated, 0 came back; 11 updated, 12 moved as it is; 20 is new.
    moved = [{"id": 3, "v": 1}, {"id": 10, "v": 0}, {"id": 11, "v": 1}, {"id": 12, "v": 0},
             {"id": 20, "v": 0}]  # fmt: skip
    copy = rewritten(table, moved, [3, 10, 11, 12, None], [None, 1, None, 1, None])
    table.commit(PRESERVED, table.remove(one), again, table.remove(two), copy)
    assert found(table) == [
        ("delete", 2, 0),
        ("insert", 0, 0),
        ("insert", 20, 0),
        ("update_postimage", 3, 1),
        ("update_postimage", 11, 1),
        ("update_preimage", 3, 0),
        ("update_preimage", 11, 0),
    ]
    assert origins(table) == {"row_ids"}


def test_a_file_without_a_base_is_compared_by_value(tmp_path: Path) -> None:
    table = tracked(tmp_path)
    first = table.add([{"id": 1, "v": 0}, {"id": 2, "v": 0}], baseRowId=0,
                      defaultRowCommitVersion=1)  # fmt: skip
    table.commit(first)
    table.commit(PRESERVED, table.remove(first), table.add([{"id": 1, "v": 0}, {"id": 2, "v": 9}]))
    assert found(table) == [("delete", 2, 0), ("insert", 2, 9)]
    assert origins(table) == {"cancel_out"}


def test_a_remove_that_lacks_its_commit_version_takes_it_from_the_add(tmp_path: Path) -> None:
    table = tracked(tmp_path)
    rows = [{"id": i, "v": 0} for i in range(3)]
    first = table.add(rows, baseRowId=0, defaultRowCommitVersion=1)
    table.commit(first)
    remove = table.remove(first)
    del remove["remove"]["defaultRowCommitVersion"]
    changed = [{**r, "v": int(i == 1)} for i, r in enumerate(rows)]
    table.commit(PRESERVED, remove, rewritten(table, changed, [0, 1, 2], [1, None, 1]))
    assert found(table) == [("update_postimage", 1, 1), ("update_preimage", 1, 0)]
