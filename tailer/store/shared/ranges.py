"""The commits of a range of versions, made from one answer of a sharing server.

While the answer arrives, each version's files go to the disk, and the rest is kept in memory. Only
at its end are all states and times known: then each commit gets its time, and the actions of what
changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tailer.errors import TransientError
from tailer.sharing.answers import Line, SharedFile
from tailer.sharing.model import EndOfStream
from tailer.store.shared.links import Origin
from tailer.store.shared.spool import AnswerSpool, append_actions, complete_removes
from tailer.store.shared.state import SharedState, Timeline


@dataclass(slots=True)
class CommitRange:
    """The commits of the versions ``first`` to ``last``, while they are gathered and afterwards."""

    origin: Origin
    folder: Path
    timeline: Timeline
    last: int
    times: dict[int, int] = field(default_factory=dict)
    # For each version with removes: the partition columns for which all of them have values.
    removes: dict[int, set[str]] = field(default_factory=dict)

    @property
    def first(self) -> int:
        """The first version."""
        return self.origin.first

    def has_version(self, version: int) -> bool:
        """Return whether the range has this version."""
        return self.first <= version <= self.last

    def commit_path(self, version: int) -> Path:
        """Return the file of a version's commit."""
        return self.folder / f"{version:020d}.json"

    def find_state(self, version: int) -> SharedState:
        """Return the state at a version; answers of the change feed imply that it is enabled."""
        state = self.timeline.find_state(version)
        return state.with_feed() if self.origin.kind == "changes" else state

    async def add_line(self, line: Line, spool: AnswerSpool) -> None:
        """Process the answer's next line.

        The server treats the end of the range as a hint: lines beyond ``last`` are dropped.
        """
        if isinstance(line, EndOfStream):
            return
        if not isinstance(line, SharedFile):
            if line.version is None or line.version <= self.last:
                self.timeline.add_line(line)
            return
        version = line.version
        if version is None:
            if self.first != self.last:
                raise TransientError("a file of the sharing server's answer lacks its version")
            version = self.first
        if version < self.first:
            raise TransientError(
                f"the sharing server gave a file of version {version}, and version {self.first} "
                "and later were asked for"
            )
        if version <= self.last:
            if line.timestamp_ms is not None:
                self.times.setdefault(version, line.timestamp_ms)
            if line.kind == "remove":
                named = set(line.action.get("partitionValues") or ())
                self.removes[version] = self.removes.get(version, named) & named
            await spool.add_file(self.commit_path(version), line)

    def complete_commits(self, before: SharedState | None, before_ms: int | None) -> None:
        """Complete the commits.

        ``before`` and ``before_ms`` are the state and the time of the version before the first one;
        None: unknown.
        """
        self._fill_times(before_ms)
        for version in self._list_versions():
            after = self.find_state(version)
            removes = self.removes.get(version)
            if before is None and version > 0 and removes is None:
                before = after  # nothing in this version depends on it
            if before is not None and removes is not None:
                lacking = before.partition_keys() - removes
                complete_removes(self.commit_path(version), lacking)
            info = {"commitInfo": {"inCommitTimestamp": self.times[version]}}
            append_actions(self.commit_path(version), [info, *after.make_actions(before)])
            before = after

    def _fill_times(self, before_ms: int | None) -> None:
        """Give every version a time: that of the answer, or that of the version before it.

        If neither is known: just before the first known time, or the table's creation.
        """
        time = before_ms
        if time is None and self.times:
            known = min(self.times)
            time = self.times[known] - (known - self.first) - 1
        if time is None:
            time = self.find_state(self.first).created_ms
        for version in self._list_versions():
            time = self.times.setdefault(version, time)

    def _list_versions(self) -> Iterator[int]:
        yield from range(self.first, self.last + 1)
