"""A commit's timestamp, and the search from a timestamp to a version.

There are two regimes ("In-Commit Timestamps"). From the enablement version on, the commit contains
its time. Before it, the commit file's modification time counts, raised if needed so that time
increases with every version, as Delta on Spark does it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from tailer.delta.actions import CommitInfo, Metadata, Protocol
from tailer.delta.features import in_commit_timestamps_enabled
from tailer.errors import CorruptLog

#: The years 1 to 9999, in epoch ms: outside of them, time formats disagree.
_TIMES_MS = range(-62_135_596_800_000, 253_402_300_800_000)


def find_enablement(protocol: Protocol, metadata: Metadata) -> tuple[int, int | None] | None:
    """Return (version, timestamp in epoch ms) from which in-commit timestamps hold; None: off.

    Without the two properties they hold from the start: (0, None).
    """
    if not in_commit_timestamps_enabled(protocol, metadata):
        return None
    version = metadata.configuration.get("delta.inCommitTimestampEnablementVersion")
    timestamp = metadata.configuration.get("delta.inCommitTimestampEnablementTimestamp")
    try:
        return (int(version) if version else 0, int(timestamp) if timestamp else None)
    except ValueError:
        raise CorruptLog("the in-commit timestamp enablement properties are not numbers") from None


def find_commit_timestamp(
    version: int,
    mtime_ms: int,
    floor_ms: int | None,
    commit_info: CommitInfo | None,
    enabled_from: tuple[int, int | None] | None,
) -> int:
    """Return the commit's timestamp in epoch ms.

    ``mtime_ms`` is the commit file's modification time, ``floor_ms`` the timestamp of the version
    before (None if unknown), ``enabled_from`` the result of :func:`find_enablement` at this
    version. Raises :class:`CorruptLog` if an in-commit timestamp is required and missing.
    """
    if enabled_from is not None and version >= enabled_from[0]:
        timestamp = commit_info.in_commit_timestamp if commit_info else None
        if timestamp is None:
            raise CorruptLog(
                "the commit has no inCommitTimestamp, though the table has them enabled",
                version=version,
            )
        if timestamp not in _TIMES_MS:
            raise CorruptLog("the commit's inCommitTimestamp is not a time", version=version)
        return timestamp
    return mtime_ms if floor_ms is None else max(mtime_ms, floor_ms + 1)


def first_at_or_after(commits: Sequence[tuple[int, int]], timestamp_ms: int) -> int | None:
    """Return the first version at or after a time; None if all are before it.

    ``commits``: (version, timestamp in epoch ms), both rising.
    """
    at = bisect_left(commits, timestamp_ms, key=lambda c: c[1])
    return commits[at][0] if at < len(commits) else None


def last_at_or_before(commits: Sequence[tuple[int, int]], timestamp_ms: int) -> int | None:
    """Return the last version at or before a time; None if all are after it."""
    at = bisect_right(commits, timestamp_ms, key=lambda c: c[1])
    return commits[at - 1][0] if at else None
