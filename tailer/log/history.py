"""The table's history: its commits in time, versions by timestamp, and checks of checksum files."""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import Any

from tailer.changes import Offset
from tailer.delta.checksum import VersionChecksum
from tailer.delta.segment import commits_of
from tailer.delta.snapshot import Snapshot, TableState
from tailer.delta.timestamps import enablement, first_at_or_after, last_at_or_before
from tailer.errors import ConfigError, DataLoss, TableError
from tailer.log.table import TableLog
from tailer.store import TimeTravel

__all__ = [
    "STARTS",
    "HistoryEntry",
    "Sums",
    "check_start",
    "checksum_errors",
    "history",
    "parse_timestamp",
    "snapshot_sums",
    "start_offset",
    "start_to_keep",
    "version_at_or_after",
    "version_at_or_before",
]

#: Where a feed can start, for messages.
STARTS = "latest, earliest, snapshot, a version or a time like 2026-01-31T12:00:00Z"


@dataclass(frozen=True, slots=True)
class HistoryEntry:
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
        commit = await log.commit(version, state, floor)
        state, floor = commit.after, commit.timestamp_ms
        info = commit.header.commit_info.fields if commit.header.commit_info else {}
        header = commit.header
        yield HistoryEntry(
            version, commit.timestamp_ms, info, header.adds, header.removes, header.cdcs
        )


def parse_timestamp(text: str) -> int:
    """Parse an ISO 8601 date or time to epoch milliseconds; without an offset it is in UTC.

    Raises :class:`ConfigError` if it is not one.
    """
    try:
        moment = dt.datetime.fromisoformat(text.strip())
    except ValueError:
        raise ConfigError(f"{text!r} is not a time; write it as 2026-01-31T12:00:00Z") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return int((moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1))


class _Times:
    """The timestamps of a log's commits.

    In-commit ones are read only where the search needs them.
    """

    def __init__(self, log: TableLog, state: TableState, mtimes: list[tuple[int, int]]) -> None:
        self.log = log
        self.state = state
        since = enablement(state.protocol, state.metadata)
        first = since[0] if since else None
        self.by_mtime = [c for c in mtimes if first is None or c[0] < first]
        self.in_commit = [v for v, _ in mtimes if first is not None and v >= first]

    @classmethod
    async def of(cls, log: TableLog) -> _Times:
        state = (await log.snapshot()).state
        rising: list[tuple[int, int]] = []
        for version, file in commits_of(await log.files()).items():
            floor = rising[-1][1] + 1 if rising else file.mtime_ms
            rising.append((version, max(file.mtime_ms, floor)))
        return cls(log, state, rising)

    async def time(self, version: int) -> int:
        return (await self.log.commit(version, self.state, None)).timestamp_ms

    async def first_in_commit(self, timestamp_ms: int) -> int:
        """Return the number of commits with in-commit timestamps before a time."""
        low, high = 0, len(self.in_commit)
        while low < high:
            middle = (low + high) // 2
            if await self.time(self.in_commit[middle]) < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        return low


@dataclass(frozen=True, slots=True)
class Sums:
    """The number of live files of a snapshot, and their size in bytes."""

    files: int
    size_bytes: int


async def snapshot_sums(log: TableLog, snapshot: Snapshot) -> Sums:
    """Return a snapshot's sums.

    They come from the version's checksum file if it describes this very snapshot, which saves
    reading the list of files; else they are counted.
    """
    checksum = await log.checksum(snapshot.version)
    if checksum is not None and not await _contradictions(log, snapshot, checksum):
        return Sums(checksum.num_files, checksum.table_size_bytes)
    return await _counted(log, snapshot)


async def checksum_errors(log: TableLog, snapshot: Snapshot) -> tuple[str, ...] | None:
    """Return the fields of the version's checksum file that contradict the log, by name.

    None without a readable checksum file. Counts the live files.
    """
    checksum = await log.checksum(snapshot.version)
    if checksum is None:
        return None
    wrong = await _contradictions(log, snapshot, checksum)
    found = await _counted(log, snapshot)
    if found.files != checksum.num_files:
        wrong.append("numFiles")
    if found.size_bytes != checksum.table_size_bytes:
        wrong.append("tableSizeBytes")
    return tuple(wrong)


async def _contradictions(
    log: TableLog, snapshot: Snapshot, checksum: VersionChecksum
) -> list[str]:
    """Return the contradictions that can be found without reading the snapshot's list of files."""
    state, wrong = snapshot.state, []
    if checksum.protocol != state.protocol:
        wrong.append("protocol")
    if checksum.metadata != state.metadata:
        wrong.append("metadata")
    if checksum.transaction_id is not None:
        try:
            info = (await log.commit(snapshot.version, state, None)).header.commit_info
        except FileNotFoundError:  # cleaned up behind a checkpoint
            return wrong
        known = info.fields.get("txnId") if info else None
        if known is not None and known != checksum.transaction_id:
            wrong.append("txnId")
    return wrong


async def _counted(log: TableLog, snapshot: Snapshot) -> Sums:
    files = size = 0
    async for add in log.live_files(snapshot):
        files, size = files + 1, size + add.size
    return Sums(files, size)


async def version_at_or_after(log: TableLog, timestamp_ms: int) -> int:
    """Return the first version at or after a time (inclusive), for a start.

    Raises :class:`TableError` if the newest version is before it.
    """
    if isinstance(log.store, TimeTravel):
        found = await log.store.version_at_or_after(timestamp_ms)
        return _found(log, found)
    times = await _Times.of(log)
    found = first_at_or_after(times.by_mtime, timestamp_ms)
    # The two regimes do not mix: from the enablement on, only the in-commit timestamps are searched
    # ("Recommendations for Readers").
    if times.in_commit and (found is None or await times.time(times.in_commit[0]) <= timestamp_ms):
        at = await times.first_in_commit(timestamp_ms)
        found = times.in_commit[at] if at < len(times.in_commit) else None
    return _found(log, found)


def _found(log: TableLog, found: int | None) -> int:
    if found is None:
        raise TableError(
            "no version is at or after that time",
            table=log.store.root,
            hint="start at an earlier time, or at latest",
        )
    return found


async def version_at_or_before(log: TableLog, timestamp_ms: int) -> int:
    """Return the last version at or before a time (inclusive), for an end or a snapshot.

    Raises :class:`TableError` if the oldest version is after it.
    """
    if isinstance(log.store, TimeTravel):
        after = await log.store.version_at_or_after(timestamp_ms + 1)
        if after is None:
            return await log.latest_version()
        found = after - 1 if after else None
    else:
        times = await _Times.of(log)
        found = last_at_or_before(times.by_mtime, timestamp_ms)
        if times.in_commit and await times.time(times.in_commit[0]) <= timestamp_ms:
            found = times.in_commit[await times.first_in_commit(timestamp_ms + 1) - 1]
    if found is None:
        raise TableError(
            "no version that the log still has is at or before that time",
            table=log.store.root,
            hint="ask for a later time",
        )
    return found


def check_start(start: str) -> None:
    """Raise :class:`ConfigError` if ``start`` is invalid for any table."""
    if start not in ("latest", "earliest", "snapshot") and not _is_version(start):
        try:
            parse_timestamp(start)
        except ConfigError:
            raise ConfigError(f"the start is {start!r}, and must be {STARTS}") from None


def _is_version(start: str) -> bool:
    return start.isascii() and start.isdigit()


async def start_offset(log: TableLog, start: str) -> Offset:
    """Return the first offset of a feed that starts at ``start``.

    ``latest``: the next commit after the newest one. ``earliest``: the first commit whose changes
    can be read, inclusive. ``snapshot``: all rows of the newest version, then what follows it. A
    version or time is inclusive: the changes of that version come first.
    """
    check_start(start)
    match start:
        case "latest":
            return Offset(await log.latest_version() + 1)
        case "earliest":
            return Offset(await log.earliest_version())
        case "snapshot":
            return Offset(await log.latest_version(), snapshot=True)
    if _is_version(start):
        version = int(start)
        newest = await log.latest_version()
        if version > newest + 1:
            raise TableError(
                f"the start is version {version}, and the newest is {newest}",
                table=log.store.root,
                hint="start at latest to wait for the next version",
            )
        return Offset(version)
    return Offset(await version_at_or_after(log, parse_timestamp(start)))


async def start_to_keep(log: TableLog, start: str) -> Offset:
    """Return :func:`start_offset` with the id of the current table.

    A feed that resumes from it later can then detect another table.
    """
    offset = await start_offset(log, start)
    try:
        if offset.snapshot or not offset.version:
            state: TableState | None = (await log.snapshot(offset.version)).state
        else:
            state = await log.state_before(offset.version)
    except DataLoss:  # the feed's policy decides how to handle it
        return offset
    return replace(offset, table_id=state.table_id if state else None)
