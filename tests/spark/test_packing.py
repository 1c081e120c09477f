"""How files become tasks: a query waits for the fullest one."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tailer.changes import ChangeFile
from tailer.spark.orders import FileOrder, Order, pack_orders
from tailer.spark.source.data_source import ChangeReader, TailerSource
from tailer.testing.table import TableBuilder
from tests.support.feeds import state

MIB = 1024 * 1024
GROUP = 160_000
FILE = ChangeFile("f", "f", 3, 0, "t", state(), {}, "insert", "files")


def files(*sizes: int) -> list[Order]:
    return [
        FileOrder(structs.replace(FILE, path=str(n), size=size)) for n, size in enumerate(sizes)
    ]


def bytes_of(share: list[Order]) -> int:
    return sum(order.cost for order in share)


def test_the_first_rows_of_a_file_go_where_there_is_less() -> None:
    shares = pack_orders(files(*[32 * MIB] * 5), 128 * MIB, 2)
    assert len(shares) == 2
    assert sum(map(len, shares)) == 6, "one file is divided, once"
    assert [bytes_of(share) / (80 * MIB) for share in shares] == pytest.approx([1, 1], rel=0.05)


def test_a_file_alone_is_divided_by_its_rows() -> None:
    (first,), (second,) = pack_orders(files(100 * MIB), 128 * MIB, 2)
    assert isinstance(first, FileOrder)
    assert isinstance(second, FileOrder)
    assert first.part is not None
    assert first.part.exact
    assert first.cost == second.cost == 50 * MIB


def test_small_files_and_many_of_one_size_stay_whole() -> None:
    for sizes, tasks in (([MIB] * 3, 2), ([32 * MIB] * 4, 2), ([10 * MIB] * 101, 100)):
        shares = pack_orders(files(*sizes), 128 * MIB, tasks)
        assert all(order.part is None for share in shares for order in share)  # type: ignore[union-attr]


@given(st.lists(st.integers(1, 400 * MIB), min_size=1, max_size=20), st.integers(1, 16))
def test_every_byte_is_in_one_task(sizes: list[int], tasks: int) -> None:
    shares = pack_orders(files(*sizes), 128 * MIB, tasks)
    assert all(shares)
    found: dict[str, list[tuple[int, int]]] = {}
    for order in (order for share in shares for order in share):
        assert isinstance(order, FileOrder)
        size = order.file.size or 0
        part = (order.part.first, min(order.part.end, size)) if order.part else (0, size)
        found.setdefault(order.file.path, []).append(part)
    for number, size in enumerate(sizes):
        first, *rest = sorted(found[str(number)])
        assert first[0] == 0
        for part in rest:
            assert part[0] == first[1]
            first = part
        assert first[1] == size


def with_single_row_groups(folder: Path) -> tuple[TableBuilder, int]:
    """A table of three files that are worth dividing, each of them one row group; and its rows."""
    table = TableBuilder(folder, pa.schema([("id", pa.int64()), ("s", pa.string())]))
    table.create()
    for number in range(3):
        action = table.add([{"id": 0, "s": ""}], path=f"{number}.parquet")
        ids = pa.array(range(number * GROUP, (number + 1) * GROUP), pa.int64())
        rows = pa.table({"id": ids, "s": pa.repeat(pa.scalar("x" * 100), GROUP)})
        path = folder / action["add"]["path"]
        pq.write_table(rows, path, row_group_size=GROUP, compression="none", use_dictionary=["id"])
        action["add"] |= {"size": path.stat().st_size, "stats": f'{{"numRecords": {GROUP}}}'}
        table.commit(action)
    return table, 3 * GROUP


@pytest.mark.parametrize("tasks", [1, 2, 3, 4])
def test_tasks_that_share_row_groups_read_each_row_once(tasks: int, tmp_path: Path) -> None:
    table, rows = with_single_row_groups(tmp_path / "t")
    options = {"path": str(table.folder), "startingVersion": "0", "minPartitions": str(tasks)}
    source = TailerSource(options)
    reader = source.reader(source.schema())
    assert isinstance(reader, ChangeReader)
    ids: list[int] = []
    shares = reader.partitions()
    assert len(shares) == tasks
    for share in shares:
        found = [*reader.read(share)]
        assert sum(batch.num_rows for batch in found) == pytest.approx(rows / tasks, rel=0.2)
        ids += [number for batch in found for number in batch["id"].to_pylist()]
    assert sorted(ids) == list(range(rows))
