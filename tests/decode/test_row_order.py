"""Within a cdc file, too: what leaves before what comes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from tailer.changes import CHANGE_TYPES, LEAVING_KINDS, Offset
from tailer.decode import row_order
from tailer.decode.row_order import is_ordered
from tailer.delta.parquet_columns import ParquetColumns
from tailer.feed.options import FeedOptions
from tailer.testing.table import TableBuilder
from tests.support.feeds import ID, events

LETTERS = {
    "i": "insert",
    "a": "update_postimage",
    "b": "update_preimage",
    "d": "delete",
}
PLAN = FeedOptions().counting_id()


def cdc_table(folder: Path, kinds: str, **fields: Any) -> TableBuilder:
    """A table whose version 1 has one cdc file with rows of these kinds, by their letters in event
    ids; the id of each is its position."""
    table = TableBuilder(folder / "t", ID, cdf=True)
    table.create()
    rows = [{"id": n, "_change_type": LETTERS[kind]} for n, kind in enumerate(kinds)]
    table.commit(table.cdc(rows, **fields))
    return table


def found(table: TableBuilder, start: Offset | int = 1, **options: Any) -> str:
    """Position and letter of each event, from the event ids."""
    ids = [e["_event_id"] for e in events(table, start, 1, **options)]
    return " ".join("".join(i.split("-")[1:]) for i in ids)


@pytest.mark.parametrize(("kinds", "expected"), [
    ("baba", "0b 1a 2b 3a"),
    ("bbaa", "0b 1b 2a 3a"),
    ("dbai", "0d 1b 2a 3i"),
    ("ibad", "0i 1b 2a 3d"),
    ("aabb", "2b 3b 0a 1a"),
    ("abab", "1b 3b 0a 2a"),
    ("babba", "0b 1a 2b 3b 4a"),
    ("idid", "1d 3d 0i 2i"),
    ("bad", "0b 1a 2d"),
    ("bab", "0b 1a 2b"),
    ("", ""),
])  # fmt: skip
def test_what_leaves_comes_first_where_images_are_not_side_by_side(
    tmp_path: Path, kinds: str, expected: str
) -> None:
    assert found(cdc_table(tmp_path, kinds)) == expected


@pytest.mark.parametrize("kinds", ["aabb" * 5, "ibadibad" * 3, "ba" * 8, "aaaabbbbdi"])
@pytest.mark.parametrize("bounds", [{}, {"batch_rows_max": 3}, {"batch_bytes_max": 40}])
def test_a_resume_goes_on_in_the_same_order(
    tmp_path: Path, kinds: str, bounds: dict[str, int]
) -> None:
    """However little is kept in memory of what comes."""
    table = cdc_table(tmp_path, kinds)
    whole = found(table)
    assert sorted(whole.split()) == sorted(f"{n}{kind}" for n, kind in enumerate(kinds))
    assert found(table, **bounds) == whole
    for index in range(len(kinds)):
        start = Offset(1, index, counted_by=PLAN)
        assert found(table, start, **bounds) == " ".join(whole.split()[index:])


def test_statistics_of_the_change_types_are_hints(tmp_path: Path) -> None:
    """Those of this file say that all of its rows are inserts."""
    table = cdc_table(tmp_path, "idid")
    (file,) = (table.folder / "_change_data").iterdir()
    content = file.read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    lie = content[footer:].replace(b"delete", b"insert")
    assert lie != content[footer:]
    file.write_bytes(content[:footer] + lie)
    assert found(table) == "1d 3d 0i 2i"


def violations(kinds: list[str]) -> bool:
    """Whether a row that comes may lie before one of its key that leaves, said another way."""
    leaves = [kind in LEAVING_KINDS for kind in kinds]
    if leaves == sorted(leaves, reverse=True):
        return False
    posts = sum(kind == "update_postimage" for kind in kinds)
    adjacent = list(pairwise(kinds)).count(("update_preimage", "update_postimage"))
    return posts != adjacent or not posts


@given(st.lists(st.sampled_from(CHANGE_TYPES), max_size=12), st.integers(1, 5), st.integers(1, 4))
def test_order_is_told_whatever_the_row_groups(kinds: list[str], group: int, at_once: int) -> None:
    sink = pa.BufferOutputStream()
    table = pa.table({"_change_type": pa.array(kinds, pa.string())})
    pq.write_table(table, sink, row_group_size=group)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_order, "_ROWS_AT_ONCE", at_once)
        file = ParquetColumns(pa.BufferReader(sink.getvalue()), dictionaries=["_change_type"])
        assert is_ordered(file) is not violations(kinds)


def test_what_another_writer_writes_comes_in_order(tmp_path: Path) -> None:
    """deltalake writes all preimages and then all postimages, or the other way round: by chance."""
    rows = pa.table({"id": pa.array(range(6), pa.int64()), "v": pa.array([0] * 6, pa.int64())})
    folder = tmp_path / "t"
    write_deltalake(folder, rows, configuration={"delta.enableChangeDataFeed": "true"})
    written = DeltaTable(folder)
    for _ in range(12):
        written.update(updates={"v": "v + 1"}, predicate="id < 4")
    seen: dict[int, list[int]] = {}
    table = TableBuilder(folder, ID)
    for event in events(table, 1):
        values = seen.setdefault(event["id"], [0])
        leaves = event["_change_type"] == "update_preimage"
        assert leaves == (event["v"] == values[-1])
        if not leaves:
            values.append(event["v"])
    assert seen == {n: list(range(13)) for n in range(4)}
