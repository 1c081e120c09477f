"""Cursors: what was handed out counts when the block ends without an error."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

import tailer
from tailer.errors import ConfigError, OffsetError, OffsetHeld
from tailer.offsets.local import LocalOffsetStore
from tailer.testing.table import TableBuilder
from tests.api.conftest import SCHEMA, insert, interrupted
from tests.s3.fixture import Bucket


def ids(cursor: tailer.Cursor, table: Path, start: str | None = None) -> list[int]:
    changes = tailer.read(table, after=cursor, start=start)
    return [row["id"] for batch in changes for row in batch.to_pylist()]


def test_a_read_continues_after_what_was_read(table: TableBuilder, tmp_path: Path) -> None:
    place = tmp_path / "deep" / "orders.cursor"
    with tailer.Cursor(place) as cursor:
        assert cursor.offset is None
        assert ids(cursor, table.folder) == list(range(40))
        assert not place.exists()
    assert place.exists()
    with tailer.Cursor(place) as cursor:
        assert ids(cursor, table.folder) == []
    insert(table, 40)
    with tailer.Cursor(place) as cursor:
        assert ids(cursor, table.folder) == list(range(40, 50))
        assert ids(cursor, table.folder) == []


def test_a_block_that_fails_reads_the_same_again(table: TableBuilder, tmp_path: Path) -> None:
    place = tmp_path / "orders.cursor"
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), tailer.Cursor(place) as cursor:
            assert 1 / (40 - len(ids(cursor, table.folder)))
    with tailer.Cursor(place) as cursor:
        assert len(ids(cursor, table.folder)) == 40


def test_saving_within_the_block_counts_what_was_handed_out(
    table: TableBuilder, tmp_path: Path
) -> None:
    place, seen = tmp_path / "orders.cursor", []
    for stop in (1, 2, 0):
        try:
            with tailer.Cursor(place) as cursor:
                # A version a batch: another schema each time.
                changes = tailer.tail(table.folder, after=cursor, end=4, where="id % 2 = 0")
                for count, batch in enumerate(changes, 1):
                    seen += [row["id"] for row in batch.to_pylist()]
                    cursor.save()
                    if count == stop:
                        raise ZeroDivisionError
        except ZeroDivisionError:
            pass
    assert seen == list(range(0, 40, 2))


def test_a_cursor_that_was_never_used_begins_where_the_read_says(
    table: TableBuilder, tmp_path: Path
) -> None:
    place = tmp_path / "orders.cursor"
    with tailer.Cursor(place) as cursor:
        assert ids(cursor, table.folder, "latest") == []
    insert(table, 40)
    with tailer.Cursor(place) as cursor:
        assert ids(cursor, table.folder, "earliest") == list(range(40, 50))
        cursor.reset()
        assert sorted(ids(cursor, table.folder, "snapshot")) == list(range(50))
    with tailer.Cursor(place) as cursor:
        assert ids(cursor, table.folder) == []


def test_a_table_that_was_made_again_is_refused(table: TableBuilder, tmp_path: Path) -> None:
    place = tmp_path / "orders.cursor"
    with tailer.Cursor(place) as cursor:
        ids(cursor, table.folder)
    shutil.rmtree(table.folder)
    other = TableBuilder(table.folder, SCHEMA, cdf=True, table_id="another")
    other.create()
    for version in range(6):
        insert(other, version)
    with (
        pytest.raises(OffsetError, match=r"orders: .*another; .*begin again with an empty cursor"),
        tailer.Cursor(place) as cursor,
    ):
        ids(cursor, table.folder)


def test_a_table_that_was_replaced_within_a_range_is_read_on(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "orders", SCHEMA, cdf=True)
    table.create()
    insert(table, 0)
    table.commit(table.metadata(id="00000000-0000-4000-8000-00000000000b"))
    insert(table, 10)
    place = tmp_path / "orders.cursor"
    with tailer.Cursor(place) as cursor:
        assert ids(cursor, table.folder) == list(range(20))
    insert(table, 20)
    with tailer.Cursor(place) as cursor:
        assert ids(cursor, table.folder) == list(range(20, 30))


def test_who_takes_some_of_the_rows_does_not_move_the_cursor(
    table: TableBuilder, tmp_path: Path
) -> None:
    with tailer.Cursor(tmp_path / "orders.cursor") as cursor:
        changes = tailer.read(table.folder, after=cursor)
        reader = changes.to_reader()
        assert reader.read_next_batch().num_rows
        reader.close()
        assert changes.schema.names
        at = cursor.offset
        assert at is None
        assert changes.read_all().num_rows == 40
        at = cursor.offset
        unused = changes.to_reader()
        assert changes.schema.names
        del unused
        assert len(next(iter(changes)))  # again from its first row
        assert cursor.offset == at


@pytest.mark.anyio
async def test_a_block_whose_beginning_is_cancelled_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquire = LocalOffsetStore._try_lock

    def slowly(self: LocalOffsetStore) -> bool:
        found = acquire(self)
        time.sleep(0.3)
        return found

    monkeypatch.setattr(LocalOffsetStore, "_try_lock", slowly)

    async def use() -> None:
        async with tailer.Cursor(tmp_path / "orders.cursor"):
            await anyio.sleep(10)

    for delay in (0.0, 0.05, 0.2):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(use(), delay)
    with tailer.Cursor(tmp_path / "orders.cursor") as cursor:
        assert cursor.offset is None


def test_one_program_has_a_cursor_at_a_time(table: TableBuilder, tmp_path: Path) -> None:
    place = tmp_path / "orders.cursor"
    with tailer.Cursor(place) as cursor:
        with (
            pytest.raises(OffsetHeld, match=r"\(this one\) holds .*; only one may"),
            tailer.Cursor(place),
        ):
            pass
        with pytest.raises(ConfigError, match="in use in this program already"), cursor:
            pass
        assert len(ids(cursor, table.folder)) == 40
    with pytest.raises(ConfigError, match="is not open; read in its block"):
        tailer.read(table.folder, after=cursor)


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("", "must be a path or an address"),
        (7, "must be a path or an address"),
        ("{folder}", "is a folder; name a file in it"),
        ("s3://bucket", "names no place in its storage; add a name"),
        ("nowhere://bucket/a/b", "no store for"),
    ],
)
def test_a_wrong_address_is_one_sentence(address: object, says: str, tmp_path: Path) -> None:
    if isinstance(address, str):
        address = address.replace("{folder}", str(tmp_path))
    with pytest.raises(ConfigError, match=says), tailer.Cursor(address):  # type: ignore[arg-type]
        pass


@pytest.mark.parametrize("text", ["", "no cursor", '{"format": 1}'])
def test_a_file_that_is_no_cursor_is_refused(tmp_path: Path, text: str) -> None:
    place = tmp_path / "orders.cursor"
    place.write_text(text)
    with pytest.raises(OffsetError, match=r"orders\.cursor.*remove it"), tailer.Cursor(place):
        pass
    assert place.read_text() == text


@pytest.mark.anyio
async def test_it_is_used_from_an_event_loop(table: TableBuilder, tmp_path: Path) -> None:
    async with tailer.Cursor(tmp_path / "orders.cursor") as cursor:
        found = [b async for b in tailer.read(table.folder, after=cursor)]
        assert sum(map(len, found)) == 40
    async with tailer.Cursor(tmp_path / "orders.cursor") as cursor:
        assert [b async for b in tailer.read(table.folder, after=cursor)] == []


def test_a_cursor_and_a_table_on_s3(bucket: Bucket) -> None:
    assert bucket.folder is not None
    table = TableBuilder(bucket.folder / "orders", SCHEMA, cdf=True)
    table.create()
    insert(table, 0)
    options = {**bucket.deltalake, "AWS_S3_ALLOW_UNSAFE_RENAME": "true"}
    for count in (10, 0):
        with tailer.Cursor(bucket.address("state/orders"), storage_options=options) as cursor:
            changes = tailer.read(bucket.address("orders"), after=cursor, storage_options=options)
            assert sum(map(len, changes)) == count
            other = tailer.Cursor(bucket.address("state/orders"), storage_options=options)
            with pytest.raises(OffsetHeld), other:
                pass


KILLED = """
import os, sys, tailer

with tailer.Cursor(sys.argv[2]) as cursor:
    for batch in tailer.read(sys.argv[1], after=cursor, where="id <> 13"):
        with open(sys.argv[3], "a") as file:
            file.write("".join(f"{row['id']}\\n" for row in batch.to_pylist()))
            file.flush()
            os.fsync(file.fileno())
        cursor.save()
        if int(sys.argv[4]) == batch.offset.version:
            os.kill(os.getpid(), 9)
"""


def test_kills_lose_nothing(table: TableBuilder, tmp_path: Path) -> None:
    output = tmp_path / "rows.txt"
    arguments = [str(table.folder), str(tmp_path / "orders.cursor"), str(output)]
    for count in range(5):
        insert(table, 40 + count * 10)
        ended = subprocess.run(
            [sys.executable, "-c", KILLED, *arguments, str(6 + count)], check=False
        )
        assert ended.returncode == -signal.SIGKILL
    rows = [int(line) for line in output.read_text().splitlines()]
    assert rows == [i for i in range(90) if i != 13]


def test_an_interrupted_block_is_one_that_failed(table: TableBuilder, tmp_path: Path) -> None:
    place = tmp_path / "orders.cursor"
    with interrupted(loops=2), tailer.Cursor(place) as cursor:
        assert [len(batch) for batch in tailer.tail(table.folder, after=cursor)] == []
    with tailer.Cursor(place) as cursor:
        assert cursor.offset is None
