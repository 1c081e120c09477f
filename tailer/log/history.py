"""The table's history: its commits, oldest first."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from msgspec import Struct

from tailer.delta.segment import commits_of
from tailer.delta.snapshot import TableState
from tailer.log.table import TableLog

__all__ = ["HistoryEntry", "history"]


class HistoryEntry(Struct, frozen=True):
    """One commit: ``timestamp_ms`` in epoch ms, ``info`` the fields of its commitInfo."""

    version: int
    timestamp_ms: int
    info: dict[str, Any]
    adds: int
    removes: int
    cdcs: int


async def history(log: TableLog) -> AsyncGenerator[HistoryEntry, None]:
    """Yield the commits that the log still has, oldest first."""
    await log.latest_version()
    floor: int | None = None
    state: TableState | None = None
    for version in commits_of(await log.files()):
        if state is None and version:
            state = (await log.snapshot()).state
        commit = await log.commit(version, state, floor, digests=False)
        state, floor = commit.after, commit.timestamp_ms
        info = commit.header.commit_info.fields if commit.header.commit_info else {}
        header = commit.header
        yield HistoryEntry(
            version, commit.timestamp_ms, info, header.adds, header.removes, header.cdcs
        )
