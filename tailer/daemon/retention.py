"""How much is unread, and how long it will be available (rules of cleanup and VACUUM).

The log: a commit may be deleted once it is older than ``delta.logRetentionDuration`` and a newer
checkpoint replaces it, unless ``delta.enableExpiredLogCleanup`` is false. The data: VACUUM may
delete a file ``delta.deletedFileRetentionDuration`` after a commit removed it, so the removals in
the unread versions count. A change data file has no tombstone: its own age counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from tailer.delta.actions import RemoveFile
from tailer.delta.changed_rows import count_changed_rows
from tailer.delta.commit import Commit
from tailer.delta.properties import parse_interval_ms
from tailer.delta.segment import LogFile, LogKind, find_commits
from tailer.delta.snapshot import TableState
from tailer.errors import CorruptLog
from tailer.feed.progress import FeedProgress
from tailer.log.listing import list_versions
from tailer.log.table import TableLog
from tailer.process.threads import parse_in_thread

#: The number of commits to examine in one pass; the next pass continues after them.
LOOK_COMMITS_MAX = 200
_DAY = 86_400.0


def _find_seconds(properties: Mapping[str, str], name: str, default: float) -> float:
    """Return the seconds of a table property; ``default`` if it is missing or no interval."""
    with suppress(CorruptLog):
        return parse_interval_ms(properties.get(name, "")) / 1000
    return default


@dataclass(frozen=True, slots=True)
class _Unread:
    """One unread commit: times in epoch seconds; ``threatened_s`` is the time from which the age of
    its removals and change data counts, None if it has neither. ``operation`` is what its writer
    calls it, None if it does not say, and ``rows`` those that it changes, as far as known."""

    size: int
    rows: int | None
    committed_s: float
    threatened_s: float | None
    operation: str | None
    adds: int
    removes: int
    cdcs: int


class Outlook:
    """Checks, now and then, what a feed has not read yet."""

    def __init__(self, log: TableLog, progress: FeedProgress) -> None:
        self.log = log
        self.progress = progress
        self._seen: dict[int, _Unread] = {}
        self._state: tuple[int, TableState] | None = None

    async def update_progress(self) -> None:
        """Update the progress. Raises what the log raises."""
        at = self.progress.known_offset
        if at is None:
            return
        first = at.version + at.snapshot  # of a snapshot's version, only the files are needed
        files = await self.log.list_files(f"{max(0, first):020d}")
        newest = max(list_versions(files), default=-1)
        self._seen = {v: seen for v, seen in self._seen.items() if v >= first}
        if newest < first:
            self.progress.note_unread(None, {}, {}, {"log": {}, "data": {}})
            return
        self.progress.note_newest(newest)
        if self._state is None or self._state[0] != newest:
            self._state = newest, (await self.log.load_snapshot(newest)).state
        state = self._state[1]
        todo = [v for v in find_commits(files) if v >= first and v not in self._seen]
        for version in todo[:LOOK_COMMITS_MAX]:
            try:
                commit = await self.log.read_commit(version, state, None)
                build = partial(_build_unread, commit)
                self._seen[version] = await parse_in_thread(build, commit.size)
            except FileNotFoundError:
                continue  # it has just been cleaned up; following the log will report it
        self._find_deadlines(files, state)

    def list_unread(self, most: int) -> list[dict[str, Any]]:
        """Return the oldest unread versions, as far as they were looked at: ``version``,
        ``committed_s``, ``size`` in bytes, ``rows``, ``operation``, the numbers of file actions."""
        versions = sorted(self._seen)[:most]
        fields = ("committed_s", "size", "rows", "operation", "adds", "removes", "cdcs")
        return [
            {"version": v, **{name: getattr(self._seen[v], name) for name in fields}}
            for v in versions
        ]

    def _find_deadlines(self, files: list[LogFile], state: TableState) -> None:
        properties = state.metadata.configuration
        log_s = _find_seconds(properties, "delta.logRetentionDuration", 30 * _DAY)
        data_s = _find_seconds(properties, "delta.deletedFileRetentionDuration", 7 * _DAY)
        kept = properties.get("delta.enableExpiredLogCleanup", "true").lower() == "false"
        others = (LogKind.COMMIT, LogKind.COMPACTED, LogKind.CHECKSUM)
        checkpoint = max((f.version for f in files if f.kind not in others), default=-1)
        log = {
            v: seen.committed_s + log_s
            for v, seen in self._seen.items()
            if v < checkpoint and not kept
        }
        data = {
            v: seen.threatened_s + data_s
            for v, seen in self._seen.items()
            if seen.threatened_s is not None
        }
        first = min(self._seen, default=None)
        since_s = None if first is None else self._seen[first].committed_s
        sizes = {v: seen.size for v, seen in self._seen.items()}
        rows = {v: seen.rows for v, seen in self._seen.items()}
        self.progress.note_unread(since_s, sizes, rows, {"log": log, "data": data})


def _build_unread(commit: Commit) -> _Unread:
    committed = commit.timestamp_ms / 1000
    threats = [committed] if commit.header.cdcs else []
    if commit.header.removes:
        threats += [
            committed if action.deletion_timestamp is None else action.deletion_timestamp / 1000
            for action in commit.file_actions()
            if isinstance(action, RemoveFile)
        ]
    header = commit.header
    operation = header.commit_info.fields.get("operation") if header.commit_info else None
    return _Unread(
        header.file_bytes,
        count_changed_rows(commit),
        committed,
        min(threats, default=None),
        operation if isinstance(operation, str) else None,
        header.adds,
        header.removes,
        header.cdcs,
    )
