"""A log as one listing shows it, for a read of versions that are there already.

A slow store is asked once for the listing, once for each small file, and once whether the table is
still the same: most of a short read's time would be spent waiting for answers that say the same
again. A file is kept by the tag that the listing gave it, so what is read is what was listed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from tailer.delta.commit import Commit
from tailer.delta.segment import LogFile, commit_name
from tailer.delta.snapshot import Snapshot
from tailer.errors import TailerError, TransientError
from tailer.log.json_files import JsonFiles
from tailer.log.table import TableLog
from tailer.store import LOG_DIR

__all__ = ["ListedLog", "as_listed"]


class ListedLog(TableLog):
    """The log of a table whose files were listed before, from the last checkpoint on or all."""

    def __init__(self, log: TableLog, listed: Sequence[LogFile]) -> None:
        super().__init__(log.store, torn_commit_max_s=log.torn_commit_max_s)
        self.listed = listed
        self._tags = {file.name: file.tag for file in listed if file.tag}
        self._json = JsonFiles(log.store, log.torn_commit_max_s, self._tags)
        self._snapshots: dict[int, Snapshot] = {}
        self._settled: int | None = None

    async def recent_files(self) -> list[LogFile]:
        """Return what was listed, as long as all of it is there."""
        return [*self.listed] or await super().recent_files()

    async def snapshot(self, version: int | None = None) -> Snapshot:
        """See :meth:`TableLog.snapshot`. A snapshot is built once."""
        found = None if version is None else self._snapshots.get(version)
        if found is None:
            found = await self._built(version)
            self._snapshots[found.version] = found
        return found

    async def _built(self, version: int | None) -> Snapshot:
        if self.listed:
            try:
                return await super().snapshot(version)
            except TransientError:
                self.listed = ()  # a file of it may be gone
        return await super().snapshot(version)

    async def settle(self, version: int) -> None:
        """Read ahead what a read from a version on begins with: the state before it, its commit,
        and then that the commit before is as it was listed, so that all is of one table.

        Whatever is amiss is found, and said, when it is read in its turn.
        """
        before = commit_name(version - 1)
        if before not in self._tags:
            return
        with suppress(TailerError, FileNotFoundError):
            await self.state_before(version)
            await self._json.whole_lines(commit_name(version), version)
            if (await self.store.stat(f"{LOG_DIR}/{before}")).tag == self._tags[before]:
                self._settled = version

    def is_settled(self, commit: Commit) -> bool:
        """Return whether a commit was read between the state before it and a look at the table."""
        kept = self._json.kept([commit.name]) is not None
        return kept and self._settled == commit.version and bool(self.listed)


async def as_listed(log: TableLog) -> TableLog:
    """Return the log for a read of versions that are there now: unless its store answers at once,
    or is a server that itself says what has changed, it is listed here."""
    if log.store.ahead() is None or log.store.server_log:
        return log
    return ListedLog(log, await log.recent_files())
