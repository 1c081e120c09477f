"""`tailer.tail`: the changes as they are committed."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import anyio
import pyarrow as pa
import pytest

import tailer
from tailer.errors import ConfigError, TableReplaced
from tailer.testing.table import TableBuilder
from tests.api.conftest import SCHEMA, insert, interrupted
from tests.support.waiting import eventually_async


def test_what_is_committed_comes(table: TableBuilder) -> None:
    def write() -> None:
        for row in range(40, 100, 10):
            time.sleep(0.02)
            insert(table, row)

    writer = threading.Thread(target=write)
    batches = iter(tailer.tail(table.folder, start=4, select="id"))
    assert next(batches)["id"].to_pylist() == list(range(30, 40))
    writer.start()
    found: list[int] = []
    while len(found) < 60:
        found += next(batches)["id"].to_pylist()
    writer.join()
    assert found == list(range(40, 100))


def test_it_ends_after_its_last_version(table: TableBuilder) -> None:
    found = tailer.tail(table.folder, start="earliest", end=3)
    assert sum(map(len, found)) == sum(map(len, found)) == 30


def test_each_batch_has_the_schema_of_its_versions(table: TableBuilder) -> None:
    table.schema = pa.schema([*SCHEMA, ("country", pa.string())])
    table.commit(table.add([{"id": 99, "country": "DE"}]), table.metadata())
    first, *_, last = tailer.tail(table.folder, start=1, end=5, with_ids=True)
    assert "country" not in first.schema.names
    assert last["country"].to_pylist() == ["DE"]
    assert {"_event_id", "_origin", "_row_id"} <= {*last.schema.names}


@pytest.mark.anyio
async def test_it_is_followed_from_an_event_loop(table: TableBuilder) -> None:
    found: list[int] = []

    async def follow() -> None:
        async for batch in tailer.tail(table.folder, start="latest"):
            found.extend(batch["id"].to_pylist())

    following = asyncio.create_task(follow())
    row = 40
    while not found:  # the version after the newest one at the start
        insert(table, row, 1)
        row += 1
        await anyio.sleep(0.05)
    count = len(found)
    insert(table, row, 1)
    await eventually_async(lambda: len(found) > count)
    assert found == [*range(found[0], found[-1] + 1)]
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following


def test_ctrl_c_ends_the_wait(table: TableBuilder) -> None:
    with interrupted():
        next(iter(tailer.tail(table.folder)))


def test_a_dropped_iterator_that_waits_for_a_commit_ends(table: TableBuilder) -> None:
    for row in range(40, 80, 10):
        insert(table, row)
    for _ in range(5):
        for batch in tailer.tail(table.folder, start=1):
            assert len(batch)
            break


def test_a_table_that_is_not_there_yet_is_waited_for_by_none(tmp_path: Path) -> None:
    with pytest.raises(tailer.errors.TableError, match="no_table"):
        next(iter(tailer.tail(tmp_path / "no_table")))


def test_a_table_that_is_replaced_ends_it(table: TableBuilder) -> None:
    batches = iter(tailer.tail(table.folder, start=4))
    assert len(next(batches)) == 10
    for file in (table.folder / "_delta_log").iterdir():
        file.unlink()
    other = TableBuilder(table.folder, SCHEMA, cdf=True, table_id="another")
    other.create()
    for version in range(6):
        insert(other, version)
    with pytest.raises((TableReplaced, tailer.errors.OffsetError), match="orders"):
        next(batches)


def test_an_offset_behind_the_end_has_nothing_left(table: TableBuilder) -> None:
    *_, last = tailer.tail(table.folder, start=1, end=4)
    assert list(tailer.tail(table.folder, after=str(last.offset), end=4)) == []


def test_a_range_that_ends_before_it_starts_is_refused(table: TableBuilder) -> None:
    with pytest.raises(ConfigError, match="exchange the two"):
        next(iter(tailer.tail(table.folder, start=4, end=1)))
