"""The table's history: its commits, oldest first."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import AsyncGenerator
from typing import Any

from msgspec import Struct

from tailer.delta.actions import Metadata, Protocol
from tailer.delta.schema import StructType
from tailer.delta.segment import find_commits
from tailer.delta.snapshot import TableState
from tailer.errors import TableError
from tailer.log.table import TableLog

#: Of a table whose protocol is not known: its properties alone say where its times are.
_ANY_PROTOCOL = Protocol(1, 7, writer_features=frozenset({"inCommitTimestamp"}))


class HistoryEntry(Struct, frozen=True):
    """One commit: ``timestamp_ms`` in epoch ms, ``info`` the fields of its commitInfo."""

    version: int
    timestamp_ms: int
    info: dict[str, Any]
    adds: int
    removes: int
    cdcs: int

    @property
    def timestamp(self) -> dt.datetime:
        """Return the commit's time, in UTC."""
        return dt.datetime.fromtimestamp(self.timestamp_ms / 1000, dt.UTC)

    @property
    def operation(self) -> str:
        """Return what its writer calls it; empty if it does not say."""
        named = self.info.get("operation")
        return named if isinstance(named, str) else "" if named is None else json.dumps(named)


class _UncheckedState(TableState, frozen=True):
    """A state whose schema is not looked at, nor whether its rows can be read: whoever asks why
    they can't needs the history most."""

    @classmethod
    def from_actions(cls, protocol: Protocol, metadata: Metadata) -> TableState:
        return cls(protocol, metadata, StructType(()), "none")

    def after(self, protocol: Protocol | None, metadata: Metadata | None) -> TableState:
        return self.from_actions(protocol or self.protocol, metadata or self.metadata)


async def read_history(log: TableLog) -> AsyncGenerator[HistoryEntry, None]:
    """Yield the commits that the log still has, oldest first; also of a table that can't be read.

    Raises :class:`TableError` for a log without commits, or with one that is damaged.
    """
    await log.latest_version()
    floor: int | None = None
    state: TableState | None = None
    for version in find_commits(await log.list_files()):
        if state is None:
            state = await _find_state_before(log, version)
        commit = await log.read_commit(version, state, floor, digests=False)
        state, floor = commit.after, commit.timestamp_ms
        info = commit.header.commit_info.fields if commit.header.commit_info else {}
        header = commit.header
        yield HistoryEntry(
            version, commit.timestamp_ms, info, header.adds, header.removes, header.cdcs
        )


async def _find_state_before(log: TableLog, version: int) -> TableState:
    """Return a state before the first commit that is left: only its rules of time count."""
    if version:
        try:
            state = (await log.load_snapshot()).state
            return _UncheckedState.from_actions(state.protocol, state.metadata)
        except TableError:
            pass  # then times are those of the files, until a commit says otherwise
    return _UncheckedState.from_actions(_ANY_PROTOCOL, Metadata(""))
