"""Rows that the comparison decoded already: they save a second look, and change no event."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest

from tailer.changes import Offset
from tailer.compare import idsets
from tailer.compare.engine import DiffOptions
from tailer.decode.rows import DecodeOptions
from tailer.feed.options import FeedOptions
from tailer.feed.read import read_changes
from tailer.store.local import LocalStore
from tailer.testing.table import TableBuilder
from tests.support.feeds import table_log

SCHEMA = pa.schema(
    [("id", pa.int64()), ("v", pa.float64()), ("s", pa.string()), ("l", pa.list_(pa.int32()))]
)
TRACKED = {
    "delta.enableRowTracking": "true",
    "delta.rowTracking.materializedRowIdColumnName": "_row_id",
    "delta.rowTracking.materializedRowCommitVersionColumnName": "_row_version",
}
PRESERVED = {"commitInfo": {"tags": {"delta.rowTracking.preserved": "true"}}}


def row(i: int) -> dict[str, Any]:
    v = float("nan") if i % 7 == 0 else float(i)
    return {"id": i % 50, "v": v, "s": None if i % 5 == 0 else f"row {i % 40}", "l": [i % 3]}


def changed(rows: list[dict[str, Any]], every: int) -> list[dict[str, Any]]:
    return [{**r, "v": -1.0} if i % every == 0 else r for i, r in enumerate(rows)]


def plain_table(folder: Path) -> TableBuilder:
    """Version 2 rewrites three files: in order, in another order, and without some rows."""
    table = TableBuilder(folder / "t", SCHEMA)
    table.create()
    parts = [[row(i) for i in range(at, at + 300)] for at in (0, 300, 600)]
    files = [table.add(rows) for rows in parts]
    table.commit(*files)
    parts[0] = changed(parts[0], 10)
    parts[1] = changed(parts[1], 15)
    random.Random(1).shuffle(parts[1])
    parts[2] = changed(parts[2], 20)[5:]
    table.commit(*(table.remove(f) for f in files), *(table.add(rows) for rows in parts))
    return table


def tracked_table(folder: Path) -> TableBuilder:
    """Version 2 updates some rows by id, one of them to what it was, and deletes the last one."""
    table = TableBuilder(folder / "t", SCHEMA, properties=TRACKED)
    table.commit(
        table.protocol(1, 7, writerFeatures=["rowTracking", "domainMetadata"]), table.metadata()
    )
    rows = [row(i) for i in range(100)]
    first = table.add(rows, baseRowId=0, defaultRowCommitVersion=1)
    table.commit(first)
    table.schema = pa.schema([*SCHEMA, ("_row_id", pa.int64()), ("_row_version", pa.int64())])
    new = [
        {**r, "_row_id": i, "_row_version": 2 if i % 9 == 0 else 1}
        for i, r in enumerate(changed(rows, 18)[:-1])
    ]
    second = table.add(new, baseRowId=200, defaultRowCommitVersion=2)
    table.schema = SCHEMA
    table.commit(PRESERVED, table.remove(first), second)
    return table


class CountingStore(LocalStore):
    """Knows how often it opened each data file."""

    def __init__(self, table: str) -> None:
        super().__init__(table)
        self.opened: list[str] = []

    async def open(self, location: str, size: int | None) -> pa.NativeFile:
        self.opened.append(location)
        return await super().open(location, size)


def read(table: TableBuilder, start: Offset, keep_bytes: int, **decode: Any) -> list[Any]:
    """All events from an offset in version 2 on: rows, ids, origins and row ids."""
    options = FeedOptions(
        change_source="derived",
        diff=DiffOptions(keep_bytes_max=keep_bytes),
        decode=DecodeOptions(row_ids=True, **decode),
    )
    found: list[Any] = []

    async def collect() -> None:
        async for batch in read_changes(table_log(table), start, 2, options):
            ids = [None] * batch.num_rows if batch.row_ids is None else batch.row_ids.to_pylist()
            origin = batch.file.origin if batch.file else None
            events = zip(batch.rows.to_pylist(), batch.event_ids().to_pylist(), ids, strict=True)
            found.extend((repr(r), event_id, row_id, origin) for r, event_id, row_id in events)

    anyio.run(collect)
    return found


@pytest.mark.parametrize("make", [plain_table, tracked_table])
def test_kept_rows_give_the_same_events_as_decoding_again(tmp_path: Path, make: Any) -> None:
    table = make(tmp_path)
    again = read(table, Offset(2), 0)
    assert len(again) > 10
    for keep_bytes in (1000, 2**20):
        assert read(table, Offset(2), keep_bytes) == again
    assert read(table, Offset(2), 2**20, batch_rows_max=7) == again
    assert read(table, Offset(2, 5), 2**20) == again[5:]
    assert read(table, Offset(2), 2**20, columns=("id",)) == read(
        table, Offset(2), 0, columns=("id",)
    )


def test_an_update_is_read_once(tmp_path: Path) -> None:
    table = tracked_table(tmp_path)
    store = CountingStore(str(table.folder))
    log = table_log(table)
    log.store = store

    async def drain() -> int:
        options = FeedOptions(change_source="derived")
        return sum([b.num_rows async for b in read_changes(log, Offset(2), 2, options)])

    assert anyio.run(drain) > 0
    # Once for the ids alone, once for the rows.
    assert sorted({store.opened.count(f) for f in store.opened}) == [2]


def test_rows_of_many_commit_versions_give_the_same_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tracked_table(tmp_path)
    by_bitmaps = read(table, Offset(2), 0)
    assert {origin for *_, origin in by_bitmaps} == {"row_ids"}
    monkeypatch.setattr(idsets, "_VERSIONS_MAX", 1)
    assert read(table, Offset(2), 0) == by_bitmaps
