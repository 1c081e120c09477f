"""Ways to read a table of a catalog."""

from __future__ import annotations

from typing import Any

from tailer.changes import Offset
from tailer.log.table import TableLog
from tailer.storage import open_store
from tests.sharing.shared import read_store


async def read_table(
    address: str, first: int | Offset, last: int, **options: Any
) -> list[dict[str, Any]]:
    """The events of a range, each with its id."""
    store = open_store(address, options)
    try:
        return await read_store(store, first, last)
    finally:
        await store.aclose()


async def newest_version(address: str, **options: Any) -> int:
    """The newest version that a reader sees."""
    store = open_store(address, options)
    try:
        return await TableLog(store).latest_version()
    finally:
        await store.aclose()


def ids(events: list[dict[str, Any]]) -> list[int]:
    """The numbers in the rows: each version's row has the version's."""
    return [event["id"] for event in events]
