"""However a version is cut into batches and wherever it is resumed, its events are the same."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from tailer.changes import CHANGE_TYPES, LEAVING_KINDS, ChangeFile, ChangeType
from tailer.decode.byte_range import ByteRange
from tailer.decode.rows import DecodeOptions, Skip, decode_file
from tailer.decode.vectors import RowSelection
from tailer.errors import OffsetError
from tailer.testing.table import TableBuilder
from tests.support.extent import examples
from tests.support.feeds import ID, batches, events, offset_of, state

ROWS_MAX = 60
positions_of_a_file = st.sets(st.integers(0, ROWS_MAX - 1))
bounds: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    batch_rows_max=st.integers(1, ROWS_MAX + 1),
    batch_bytes_max=st.sampled_from([1, 50, 2**25]),
)


@dataclass(frozen=True)
class DataFile:
    """A Parquet file, and which of its rows are changes."""

    data: bytes
    order: ChangeFile
    selection: RowSelection


@st.composite
def data_files(draw: st.DrawFn) -> DataFile:
    count, group = draw(st.integers(0, ROWS_MAX)), draw(st.integers(1, ROWS_MAX))
    kind: ChangeType | None = draw(st.none() | st.sampled_from(CHANGE_TYPES))
    columns: dict[str, Any] = {"id": pa.array(range(count), pa.int64())}
    kinds = None
    if kind is None:
        each = draw(st.lists(st.sampled_from(CHANGE_TYPES), min_size=count, max_size=count))
        columns["_change_type"] = pa.array(each, pa.string())
        kinds = draw(st.sampled_from([None, CHANGE_TYPES[:2], ("delete",)]))
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink, row_group_size=group)
    only, without = (
        BitMap64(i for i in rows if i < count) if rows is not None else None
        for rows in (draw(st.none() | positions_of_a_file), draw(st.none() | positions_of_a_file))
    )
    order = ChangeFile("f", "f", 3, 0, "t", state(), {}, kind, "files", kinds=kinds)
    return DataFile(bytes(sink.getvalue()), order, RowSelection.from_sets(only, without))


def decoded(
    file: DataFile, skip: int = 0, part: ByteRange | None = None, **options: Any
) -> tuple[list[tuple[Any, ...]], int]:
    """The (id, kind, position) of each row, and how much of the skip is left."""
    counter = Skip(skip)
    found: list[tuple[Any, ...]] = []
    source = pa.BufferReader(file.data)
    found_rows = decode_file(
        source, file.order, file.selection, DecodeOptions(**options), counter, part
    )
    for rows in found_rows:
        assert 0 < rows.batch.num_rows <= options.get("batch_rows_max", ROWS_MAX)
        columns = (rows.batch.column("id"), rows.batch.column("_change_type"), rows.positions)
        found += zip(*(c.to_pylist() for c in columns), strict=True)
    return found, counter.remaining


def in_file_order(file: DataFile) -> bool:
    """Whether the rows come as they lie in the file: of a cdc file that is read whole, where what
    leaves lies before what comes, or every postimage right behind a preimage."""
    if file.order.change_type is not None or file.order.kinds is not None:
        return True
    kinds = pq.read_table(pa.BufferReader(file.data)).column("_change_type").to_pylist()
    leaves = [kind in LEAVING_KINDS for kind in kinds]
    if leaves == sorted(leaves, reverse=True):
        return True
    posts = [i for i, kind in enumerate(kinds) if kind == "update_postimage"]
    return bool(posts) and all(i and kinds[i - 1] == "update_preimage" for i in posts)


@given(data_files(), bounds)
def test_any_size_of_batches_gives_the_same_rows(file: DataFile, bound: dict[str, Any]) -> None:
    whole, _ = decoded(file)
    assert decoded(file, **bound) == (whole, 0)
    assert sorted(position for _, _, position in whole) == sorted({i for i, _, _ in whole})


@given(data_files(), bounds, st.integers(0, ROWS_MAX + 5))
def test_any_skip_gives_the_rest(file: DataFile, bound: dict[str, Any], skip: int) -> None:
    whole, _ = decoded(file)
    assert decoded(file, skip, **bound) == (whole[skip:], max(0, skip - len(whole)))


@given(file=data_files(), bound=bounds, cuts=st.sets(st.floats(0, 1)), exact=st.booleans())
def test_parts_that_meet_have_each_row_once(
    file: DataFile, bound: dict[str, Any], cuts: set[float], *, exact: bool
) -> None:
    whole, _ = decoded(file)
    edges = [0, *sorted(round(cut * len(file.data)) for cut in cuts), 2**63]
    parts = [ByteRange(first, end, exact=exact) for first, end in pairwise(edges)]
    found = [row for part in parts for row in decoded(file, 0, part, **bound)[0]]
    if in_file_order(file):
        assert found == whole
    else:  # each part is put in order by itself
        assert sorted(found) == sorted(whole)


@given(data_files())
def test_the_rows_are_those_that_sets_say(file: DataFile) -> None:
    table = pq.read_table(pa.BufferReader(file.data)).to_pylist()
    indices = file.selection.find_indices(0, len(table))
    wanted = range(len(table)) if indices is None else indices.to_pylist()
    expected = [(i, table[i].get("_change_type", file.order.change_type), i) for i in wanted]
    if file.order.kinds is not None:
        expected = [row for row in expected if row[1] in file.order.kinds]
    elif not in_file_order(file):
        expected.sort(key=lambda row: row[1] not in LEAVING_KINDS)
    assert decoded(file)[0] == expected


def written(folder: Path, seed: list[int]) -> TableBuilder:
    """A small table with every way to change: whole files, vectors both ways, cdc files."""
    table = TableBuilder(folder, ID, cdf=True, table_id="t")
    table.create(timestamp_ms=1000)
    first = table.add([{"id": i} for i in range(12)], path="first", row_group_size=1 + seed[0] % 5)
    second = table.add([{"id": i} for i in range(50, 55)], path="second")
    table.commit(first, second, timestamp_ms=2000)
    now = table.delete_rows(first, {i % 12 for i in seed})
    table.commit(*now, timestamp_ms=3000)
    now = table.delete_rows(now[1], {i % 7 for i in seed})
    table.commit(*now, table.remove(second), timestamp_ms=4000)
    images = [{"id": i, "_change_type": CHANGE_TYPES[i % 4]} for i in seed]
    table.commit(table.cdc(images, path="c"), table.cdc(images[:3], path="d"), timestamp_ms=5000)
    table.commit({"commitInfo": {"operation": "nothing"}}, timestamp_ms=6000)
    table.commit(table.remove(now[1]), timestamp_ms=7000)
    return table


@settings(max_examples=examples(25))
@given(st.lists(st.integers(0, 100), min_size=1, max_size=8), st.integers(1, 9))
def test_a_feed_has_the_same_events_and_ids_in_any_batches_and_from_any_offset(
    seed: list[int], size: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = written(Path(folder), seed)
        whole = events(table)
        assert len({e["_event_id"] for e in whole}) == len(whole) > 17
        small = batches(table, batch_rows_max=size)
        found = [e for b in small for e in b.event_ids().to_pylist()]
        assert found == [e["_event_id"] for e in whole]
        for before, after in pairwise(small):
            assert before.next_offset.to_json() == after.offset.to_json(), "no gap between batches"
        delivered, step = 0, 1 + len(small) // 6
        for i, batch in enumerate(small):
            delivered += batch.num_rows
            if i % step == 0:  # resumed from what is saved behind this batch
                rest = events(table, batch.next_offset, batch_rows_max=size + 1)
                assert rest == whole[delivered:]


@given(st.integers(0, 20))
def test_any_index_into_a_version_gives_its_rest_and_one_beyond_is_refused(index: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = TableBuilder(Path(folder), ID, table_id="t")
        table.create(timestamp_ms=1000)
        table.commit(
            *(table.add([{"id": 5 * n + i} for i in range(5)], path=f"f{n}") for n in range(3)),
            timestamp_ms=2000,
        )
        whole = events(table, 1)
        if index > len(whole):
            with pytest.raises(OffsetError, match=f"change {index} of a version that has 15"):
                events(table, offset_of(table, 1, index))
        else:
            assert events(table, offset_of(table, 1, index), batch_rows_max=2) == whole[index:]
