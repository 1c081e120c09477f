"""What the tests of shared tables have in common: tables to share, and ways to read them."""

from __future__ import annotations

import tarfile
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pyarrow as pa

from tailer.changes import Offset
from tailer.feed.options import FeedOptions
from tailer.feed.read import read_changes
from tailer.log.follow import FollowOptions
from tailer.log.table import TableLog
from tailer.plan.rules import ChangeSource
from tailer.store.shared.store import SharingOptions, SharingStore
from tailer.testing.table import TableBuilder

NAME = ("share", "schema", "table")
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


def golden_table(name: str, folder: Path) -> Path:
    """A golden table, unpacked."""
    archive = Path(__file__).parent.parent / "golden" / "data" / f"{name}.tar.gz"
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder / name / "table"


def orders(folder: Path, versions: int = 4, *, cdf: bool = True) -> TableBuilder:
    """A table of so many versions; each after the first adds a file of one row, its version."""
    table = TableBuilder(folder, SCHEMA, cdf=cdf)
    table.create(timestamp_ms=1_767_225_600_000)
    for version in range(1, versions):
        insert(table, version)
    return table


def insert(table: TableBuilder, number: int) -> int:
    """Commit a file of one row; a minute apart by the number."""
    add = table.add([{"id": number, "v": f"v{number}"}])
    return table.commit(add, timestamp_ms=1_767_225_600_000 + number * 60_000)


def shared_store(profile: Path, **options: Any) -> SharingStore:
    """The store of the shared table; ``poll_interval_s`` may be shorter than users may have it."""
    options.setdefault("poll_interval_s", 0.01)
    most, source = options.pop("versions_per_request", 100), options.pop("change_source", "auto")
    given = SharingOptions(**options)
    store = SharingStore(f"{profile}#share.schema.table", given, versions_per_request=most)
    store.serve(source)
    return store


async def read_shared(
    profile: Path,
    first: int | Offset,
    last: int,
    *,
    change_source: ChangeSource = "auto",
    **options: Any,
) -> list[dict[str, Any]]:
    """The events of a range, each with its id."""
    store = shared_store(profile, change_source=change_source, **options)
    try:
        return await read_store(store, first, last, change_source)
    finally:
        await store.aclose()


async def read_store(
    store: Any, first: int | Offset, last: int, change_source: ChangeSource = "auto"
) -> list[dict[str, Any]]:
    """The events of a range of any store's table."""
    feed = FeedOptions(
        change_source=change_source,
        follow=FollowOptions(poll_min_s=0.02, poll_max_s=0.05, same_table=False),
    )
    start = first if isinstance(first, Offset) else Offset(first)
    found = []
    async with aclosing(read_changes(TableLog(store), start, last, feed)) as batches:
        async for batch in batches:
            ids = batch.event_ids().to_pylist()
            rows = batch.rows.to_pylist()
            found += [{**row, "_event_id": i} for row, i in zip(rows, ids, strict=True)]
    return found
