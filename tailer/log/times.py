"""Versions by time: the last one at or before a time, the first one at or after it."""

from __future__ import annotations

import datetime as dt

from tailer.delta.actions import LONG_MAX
from tailer.delta.segment import find_commits
from tailer.delta.snapshot import TableState
from tailer.delta.timestamps import (
    find_commit_timestamp,
    find_enablement,
    first_at_or_after,
    last_at_or_before,
)
from tailer.errors import ConfigError, TableError
from tailer.log.table import TableLog


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


def is_version(text: str) -> bool:
    """Return whether a text is a version."""
    return text.isascii() and text.isdigit() and int(text) <= LONG_MAX


def is_moment(text: str) -> bool:
    """Return whether a text is a version or a time."""
    if text.isdigit():
        return is_version(text)
    try:
        parse_timestamp(text)
    except ConfigError:
        return False
    return True


async def first_version(log: TableLog, moment: str) -> int:
    """Return the version that a text names, or the first one at or after the time that it names."""
    if is_version(moment):
        return int(moment)
    return await version_at_or_after(log, parse_timestamp(moment))


async def last_version(log: TableLog, moment: str) -> int:
    """Return the version that a text names, or the last one at or before the time that it names."""
    if is_version(moment):
        return int(moment)
    return await version_at_or_before(log, parse_timestamp(moment))


async def list_times(log: TableLog) -> dict[int, int]:
    """Return when each version was committed, in epoch ms, by the times of the commits' files."""
    times: dict[int, int] = {}
    before: int | None = None
    for version, file in find_commits(await log.list_files()).items():
        times[version] = before = find_commit_timestamp(version, file.mtime_ms, before, None, None)
    return times


class _Times:
    """The timestamps of a log's commits.

    In-commit ones are read only where the search needs them.
    """

    def __init__(self, log: TableLog, state: TableState, mtimes: list[tuple[int, int]]) -> None:
        self.log = log
        self.state = state
        since = find_enablement(state.protocol, state.metadata)
        first = since[0] if since else None
        self.by_mtime = [c for c in mtimes if first is None or c[0] < first]
        self.in_commit = [v for v, _ in mtimes if first is not None and v >= first]

    @classmethod
    async def from_log(cls, log: TableLog) -> _Times:
        state = (await log.load_snapshot()).state
        return cls(log, state, list((await list_times(log)).items()))

    async def find_time(self, version: int) -> int:
        return (await self.log.read_commit(version, self.state, None)).timestamp_ms

    async def first_in_commit(self, timestamp_ms: int) -> int:
        """Return the number of commits with in-commit timestamps before a time."""
        low, high = 0, len(self.in_commit)
        while low < high:
            middle = (low + high) // 2
            if await self.find_time(self.in_commit[middle]) < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        return low


async def version_at_or_after(log: TableLog, timestamp_ms: int) -> int:
    """Return the first version at or after a time (inclusive), for a start.

    Raises :class:`TableError` if the newest version is before it.
    """
    if log.store.server_log:
        version = await log.store.version_at_or_after(timestamp_ms)
        return _require_version(log, version, timestamp_ms)
    times = await _Times.from_log(log)
    version = first_at_or_after(times.by_mtime, timestamp_ms)
    # The two regimes do not mix: from the enablement on, only the in-commit timestamps are searched
    # ("Recommendations for Readers").
    if times.in_commit and (
        version is None or await times.find_time(times.in_commit[0]) <= timestamp_ms
    ):
        at = await times.first_in_commit(timestamp_ms)
        version = times.in_commit[at] if at < len(times.in_commit) else None
    return _require_version(log, version, timestamp_ms)


def _format_utc(timestamp_ms: int) -> str:
    try:
        moment = dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=timestamp_ms)  # noqa: DTZ001
    except OverflowError:  # a zone leads out of the years 1 to 9999
        return f"{timestamp_ms} ms since 1970"
    return f"{moment.isoformat(timespec='seconds')}Z"


def _require_version(log: TableLog, version: int | None, timestamp_ms: int) -> int:
    if version is None:
        raise TableError(
            f"no version is at or after {_format_utc(timestamp_ms)}",
            table=log.store.root,
            hint="its newest version is older: ask for an earlier time",
        )
    return version


async def version_at_or_before(log: TableLog, timestamp_ms: int) -> int:
    """Return the last version at or before a time (inclusive), for an end or a snapshot.

    Raises :class:`TableError` if the oldest version is after it.
    """
    if log.store.server_log:
        after = await log.store.version_at_or_after(timestamp_ms + 1)
        if after is None:
            return await log.latest_version()
        version = after - 1 if after else None
    else:
        times = await _Times.from_log(log)
        version = last_at_or_before(times.by_mtime, timestamp_ms)
        if times.in_commit and await times.find_time(times.in_commit[0]) <= timestamp_ms:
            version = times.in_commit[await times.first_in_commit(timestamp_ms + 1) - 1]
    if version is None:
        raise TableError(
            f"no version that the log still has is at or before {_format_utc(timestamp_ms)}",
            table=log.store.root,
            hint="ask for a later time",
        )
    return version
