"""What the log and equal bytes prove of a rewrite (rule 14 of tests/README.md), and what not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest

from tailer.changes import Offset
from tailer.compare.unmatched import Unmatched, find_unmatched
from tailer.feed.options import FeedOptions
from tailer.feed.progress import Observer
from tailer.feed.read import read_changes
from tailer.testing.table import Action, TableBuilder
from tests.support.feeds import events, table_log

SCHEMA = pa.schema([("id", pa.int64()), ("s", pa.string()), ("p", pa.string())])


def row(number: int | None, text: str | None = "x") -> dict[str, Any]:
    return {"id": number, "s": text}


def stats(records: int = 1, nulls: int | None = 0, **bounds: tuple[Any, Any]) -> str:
    document: dict[str, Any] = {
        "numRecords": records,
        "minValues": {name: low for name, (low, _) in bounds.items()},
        "maxValues": {name: high for name, (_, high) in bounds.items()},
    }
    if nulls is not None:
        document["nullCount"] = dict.fromkeys(bounds, nulls)
    return json.dumps(document)


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    table = TableBuilder(tmp_path / "t", SCHEMA, partition_by=["p"])
    table.create()
    return table


def add(table: TableBuilder, rows: list[dict[str, Any]], p: str | None = "a", **f: Any) -> Action:
    return table.add(rows, partition={"p": p}, **f)


def rewrite(table: TableBuilder, old: list[Action], new: list[Action]) -> None:
    """Version 1 adds the old files, version 2 replaces them by the new ones."""
    table.commit(*old)
    removes = [table.remove(f, **{k: v for k, v in f["add"].items() if k == "stats"}) for f in old]
    table.commit(*removes, *new)


def found(table: TableBuilder) -> list[tuple[str, int | None]]:
    return [(e["_change_type"], e["id"]) for e in events(table, 2)]


def compared(table: TableBuilder, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether version 2 needs the comparison's engine; its rows say the same, either way."""
    used: list[bool] = []

    def counting(*asked: Any) -> Unmatched:
        used.append(True)
        return find_unmatched(*asked)

    with monkeypatch.context() as patch:
        patch.setattr("tailer.compare.diff.find_unmatched", counting)
        origins = {b.file.origin for b in _batches(table)[0] if b.file}
    assert origins == {"cancel_out"}
    return bool(used)


def bytes_read(table: TableBuilder) -> int:
    return _batches(table)[1]


def _batches(table: TableBuilder) -> tuple[list[Any], int]:
    class Counting(Observer):
        total = 0

        def count_read_bytes(self, count: int) -> None:
            self.total += count

    observer = Counting()
    batches: list[Any] = []

    async def read() -> None:
        changes = read_changes(table_log(table), Offset(2), 2, FeedOptions(), observer)
        batches.extend([batch async for batch in changes])

    anyio.run(read)
    return batches, observer.total


def test_files_of_other_partitions_need_no_comparison(
    table: TableBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewrite(table, [add(table, [row(1)], "a")], [add(table, [row(1)], "b")])
    assert found(table) == [("delete", 1), ("insert", 1)]
    assert not compared(table, monkeypatch)


def test_a_null_partition_has_two_spellings(table: TableBuilder) -> None:
    rewrite(table, [add(table, [row(1)], None)], [add(table, [row(1)], "")])
    assert found(table) == []


def test_numbers_and_dates_are_partitions_by_value(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("p", pa.int32()), ("q", pa.date32())])
    table = TableBuilder(tmp_path / "t", schema, partition_by=["p", "q"])
    table.create()
    old = table.add([{"id": 1}], partition={"p": "1", "q": "2024-01-02"})
    new = table.add([{"id": 1}], partition={"p": "01", "q": "2024-1-2"})
    rewrite(table, [old], [new])
    assert events(table, 2) == []


def test_partitions_of_years_that_python_lacks_are_told_apart(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("q", pa.date32())])
    table = TableBuilder(tmp_path / "t", schema, partition_by=["q"])
    table.create()
    old = [table.add([{"id": 1}, {"id": 2}], partition={"q": "+12020-02-29"})]
    new = [table.add([{"id": i}], partition={"q": f"+1202{i}-02-28"}) for i in (0, 1)]
    new.append(table.add([{"id": 2}], partition={"q": "+12020-2-29"}))
    rewrite(table, old, new)
    changes = events(table, 2, columns=("id",))
    assert [(e["_change_type"], e["id"]) for e in changes] == [
        ("delete", 1), ("insert", 0), ("insert", 1)
    ]  # fmt: skip


def test_rule_14_bounds_of_integers_prove_that_no_row_is_shared(
    table: TableBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = [add(table, [row(1), row(5)], stats=stats(2, id=(1, 5)))]
    new = [add(table, [row(6)], stats=stats(id=(6, 6)))]
    rewrite(table, old, new)
    assert found(table) == [("delete", 1), ("delete", 5), ("insert", 6)]
    assert not compared(table, monkeypatch)


def test_rule_14_bounds_that_meet_prove_nothing(
    table: TableBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = [add(table, [row(1), row(5)], stats=stats(2, id=(1, 5)))]
    new = [add(table, [row(5), row(6)], stats=stats(2, id=(5, 6)))]
    rewrite(table, old, new)
    assert found(table) == [("delete", 1), ("insert", 6)]
    assert compared(table, monkeypatch)


@pytest.mark.parametrize("nulls", [1, None])
def test_rule_14_a_null_on_both_sides_is_in_no_bounds(
    table: TableBuilder, nulls: int | None
) -> None:
    old = [add(table, [row(1), row(None)], stats=stats(2, nulls, id=(1, 1)))]
    new = [add(table, [row(None), row(9)], stats=stats(2, nulls, id=(9, 9)))]
    rewrite(table, old, new)
    assert found(table) == [("delete", 1), ("insert", 9)]


def test_rule_14_one_side_without_nulls_is_enough(
    table: TableBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = [add(table, [row(1), row(None)], stats=stats(2, 1, id=(1, 1)))]
    rewrite(table, old, [add(table, [row(9)], stats=stats(1, 0, id=(9, 9)))])
    assert not compared(table, monkeypatch)


def test_rule_14_cut_strings_and_numbers_of_other_types_prove_nothing(table: TableBuilder) -> None:
    # The bounds are cut to one letter, and the upper one was not raised.
    old = [add(table, [row(1, "ab")], stats=stats(s=("a", "a")))]
    new = [add(table, [row(1, "ab")], stats=stats(s=("b", "b")))]
    rewrite(table, old, new)
    assert found(table) == []


def test_rule_14_bounds_of_a_text_column_that_look_like_numbers_prove_nothing(
    table: TableBuilder,
) -> None:
    old = [add(table, [row(1, "12")], stats=stats(s=(1, 1)))]
    rewrite(table, old, [add(table, [row(1, "12")], stats=stats(s=(2, 2)))])
    assert found(table) == []


def test_rule_14_wide_bounds_behind_a_deletion_vector_are_bounds(table: TableBuilder) -> None:
    first = add(table, [row(1), row(2), row(9)], stats=stats(3, id=(1, 9)))
    table.commit(table.protocol(3, 7, readerFeatures=["deletionVectors"],
                                writerFeatures=["deletionVectors"]), first)  # fmt: skip
    remove, smaller = table.delete_rows(first, [2])
    table.commit(remove, smaller)
    # Row 2 is still in the file, so it must cancel with the one that comes.
    table.commit(table.remove(smaller), add(table, [row(2)], stats=stats(id=(2, 2))))
    assert [(e["_change_type"], e["id"]) for e in events(table, 3)] == [("delete", 1)]


def test_rows_of_other_partitions_are_paired_by_their_key_all_the_same(
    table: TableBuilder,
) -> None:
    rewrite(table, [add(table, [row(1)], "a")], [add(table, [row(1)], "b")])

    async def kinds() -> list[str]:
        options = FeedOptions(key=("id",))
        changes = read_changes(table_log(table), Offset(2), 2, options)
        return [k async for b in changes for k in b.rows.column("_change_type").to_pylist()]

    assert anyio.run(kinds) == ["update_preimage", "update_postimage"]


def copies(table: TableBuilder, files: list[Action]) -> list[Action]:
    """The same files under other names."""
    new = []
    for number, file in enumerate(files):
        path = f"copy-{number}.parquet"
        shutil.copy(table.folder / file["add"]["path"], table.folder / path)
        new.append({"add": {**file["add"], "path": path}})
    return new


def test_files_that_only_came_under_other_names_are_not_decoded(table: TableBuilder) -> None:
    old = [add(table, [row(1), row(1)]), add(table, [row(2), row(3)])]
    rewrite(table, old, copies(table, old)[::-1])
    assert found(table) == []
    assert bytes_read(table) == 0


def test_of_equal_rows_the_first_stay_even_if_a_file_came_again(table: TableBuilder) -> None:
    old = [add(table, [row(1)]), add(table, [row(1)])]
    rewrite(table, old, copies(table, old[:1]))
    [batch] = [b for b in _batches(table)[0] if b.file]
    assert batch.file.path == old[0]["add"]["path"]
    assert found(table) == [("delete", 1)]


def test_of_two_partitions_one_may_be_the_same_and_the_other_changed(table: TableBuilder) -> None:
    same, other = add(table, [row(1)], "a"), add(table, [row(2), row(3)], "b")
    rewrite(table, [same, other], [*copies(table, [same]), add(table, [row(3)], "b")])
    assert found(table) == [("delete", 2)]


def test_files_of_one_size_with_other_rows_are_compared(table: TableBuilder) -> None:
    old, new = add(table, [row(1)]), add(table, [row(2)])
    assert old["add"]["size"] == new["add"]["size"]
    rewrite(table, [old], [new])
    assert found(table) == [("delete", 1), ("insert", 2)]


def test_equal_bytes_under_another_schema_are_compared(tmp_path: Path) -> None:
    """The partition column is read from the log, so that equal files are not equal rows."""
    table = TableBuilder(tmp_path / "t", SCHEMA, partition_by=["p"])
    table.create()
    old = add(table, [row(1)], "a")
    table.commit(old)
    table.schema = SCHEMA.append(pa.field("more", pa.int8()))
    table.commit(table.metadata(), table.remove(old), *copies(table, [old]))
    assert found(table) == []
    assert bytes_read(table) > 0
