"""Batches for sinks, and how a feed would write them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tailer.changes import ChangeBatch, Offset
from tailer.sink import Sink
from tailer.testing.batches import change_batch

#: A table of ids and names.
NAMED = pa.schema([("id", pa.int64()), ("name", pa.string())])


def named(first: int = 0, count: int = 2, **where: Any) -> ChangeBatch:
    """The inserts of rows from id ``first`` on: all that is left of a version."""
    found = [{"id": i, "name": f"name {i}"} for i in range(first, first + count)]
    return change_batch(NAMED, found, **{"last": True, **where})


def rows(*values: tuple[int, str | None], kind: str = "insert", **where: Any) -> ChangeBatch:
    """Changes of one kind of rows by id and name: all that is left of a version."""
    changes = [{"id": key, "name": name, "_change_type": kind} for key, name in values]
    return change_batch(NAMED, changes, **{"last": True, **where})


async def write(sink: Sink, *batches: ChangeBatch, feed: str = "orders") -> Offset | None:
    """Open a sink, write batches and close it; returns the offset that it has kept."""
    found = await sink.open(feed)
    try:
        for batch in batches:
            await sink.write(batch)
    finally:
        await sink.aclose()
    return found
