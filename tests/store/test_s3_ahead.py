"""What is fetched before its turn: the next commit and the next files, in order, within bounds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest

from tailer.changes import ChangeBatch, Offset
from tailer.errors import FileGone
from tailer.storage import open_store
from tailer.store import Store
from tailer.store.budget import Budget
from tailer.testing.table import TableBuilder
from tests.s3.fixture import Bucket
from tests.s3.front import Front, run_front
from tests.s3.objects import Objects
from tests.s3.tables import Collected, deliver, upload
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.anyio

SCHEMA = pa.schema([("id", pa.int64())])
FILES, VERSIONS = 12, 6


@pytest.fixture
async def table(bucket: Bucket, tmp_path: Path) -> TableBuilder:
    """A table whose version 1 has many files, and some small versions after it."""
    made = TableBuilder(tmp_path / "orders", SCHEMA)
    made.create()
    made.commit(*(made.add([{"id": i}], path=f"part-{i:02d}.parquet") for i in range(FILES)))
    for i in range(VERSIONS):
        made.insert([{"id": 100 + i}])
    await upload(made.folder, bucket, "orders")
    return made


def store_at(bucket: Bucket, **options: Any) -> Store:
    return open_store(bucket.address("orders"), {**bucket.options, **options})


def taken(store: Store) -> int:
    budget = store.ahead()
    assert budget is not None
    return budget.taken


def asked_for(front: Front, name: str) -> bool:
    return any(path.endswith(name) for _, path in list(front.asked))


def waiting_for(
    front: Front, wanted: Callable[[ChangeBatch], str | None]
) -> Callable[[ChangeBatch], Awaitable[None]]:
    """A sink's pause in each write, until a file is asked for that lies ahead."""

    async def wait(batch: ChangeBatch) -> None:
        name = wanted(batch)
        if name is not None:
            await eventually_async(lambda: asked_for(front, name), why=f"{name} is asked for")

    return wait


async def test_files_are_on_their_way_while_the_first_is_written(
    bucket: Bucket, table: TableBuilder
) -> None:
    """The reader itself is two files ahead of the sink; this is about those that follow."""

    def wanted(batch: ChangeBatch) -> str | None:
        return "part-07.parquet" if batch.version == 1 and batch.offset.index == 0 else None

    with run_front(bucket) as front:
        front.delay_s = 0.005
        async with aclosing(store_at(front.bucket)) as store:
            sink = Collected(before_write=waiting_for(front, wanted))
            await deliver(store, Offset(0), table.version, sink=sink)
        assert front.at_a_time_max > 2
    ids = [row["id"] for row in sink.events.values()]
    assert ids == [*range(FILES), *range(100, 100 + VERSIONS)], "in order"


async def test_the_next_commit_is_on_its_way_while_one_is_written(
    bucket: Bucket, table: TableBuilder
) -> None:
    """The reader waits with the batch of version 3 in hand while that of 2 is written."""

    def wanted(batch: ChangeBatch) -> str | None:
        return f"{batch.version + 2:020d}.json" if batch.version + 2 <= table.version else None

    with run_front(bucket) as front:
        async with aclosing(store_at(front.bucket)) as store:
            sink = Collected(before_write=waiting_for(front, wanted))
            await deliver(store, Offset(2), table.version, sink=sink)
            assert taken(store) == 0, "all is given back"
    assert [row["id"] for row in sink.events.values()] == list(range(100, 100 + VERSIONS))


async def test_with_no_bytes_for_it_nothing_is_fetched_ahead(
    bucket: Bucket, table: TableBuilder
) -> None:
    with run_front(bucket) as front:
        async with aclosing(store_at(front.bucket, memory_bytes_max=0)) as store:
            sink = await deliver(store, Offset(0), table.version)
        assert front.at_a_time_max == 1
    assert len(sink.events) == FILES + VERSIONS


async def test_what_is_ahead_stays_within_the_bytes_of_table_and_process(
    bucket: Bucket, table: TableBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []
    take = Budget.try_take

    def noted(budget: Budget, size: int) -> bool:
        has_room = take(budget, size)
        seen.append((budget.taken, budget.bytes_max))
        return has_room

    monkeypatch.setattr(Budget, "try_take", noted)
    options = {"memory_bytes_max": 8_000}
    async with (
        aclosing(store_at(bucket, **options)) as one,
        aclosing(store_at(bucket, **options)) as two,
    ):
        async with anyio.create_task_group() as tasks:
            for store in (one, two):
                tasks.start_soon(deliver, store, Offset(0), table.version)
        assert {limit for _, limit in seen} == {2_000, 8_000}
        assert all(size <= limit for size, limit in seen)
        assert max(size for size, _ in seen) > 1_000, "there was something ahead"
        assert (taken(one), taken(two)) == (0, 0)


async def test_a_file_that_is_gone_is_told_in_its_turn(bucket: Bucket, table: TableBuilder) -> None:
    async with Objects(bucket) as objects, aclosing(store_at(bucket)) as store:
        await objects.delete("orders/part-05.parquet")
        sink = Collected()
        with pytest.raises(FileGone, match=r"part-05\.parquet"):
            await deliver(store, Offset(0), table.version, sink=sink)
        assert taken(store) == 0
    # One batch is held back by the reader, one is in its hand.
    assert [row["id"] for row in sink.events.values()] in ([*range(4)], [*range(5)])
