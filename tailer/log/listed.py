"""The log of a table as it was listed once, for short reads of stores that answer slowly."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from tailer.delta.segment import LogFile, format_commit_name
from tailer.delta.snapshot import Snapshot
from tailer.errors import TailerError, TransientError
from tailer.log.json_files import JsonFiles
from tailer.log.table import TableLog


class ListedLog(TableLog):
    """A log whose files are ``listed``, from the last checkpoint on or all.

    It shows the table as it was then: its small files are read once, and only as they were listed.
    """

    def __init__(self, log: TableLog, listed: Sequence[LogFile]) -> None:
        super().__init__(log.store, torn_commit_max_s=log.torn_commit_max_s)
        self.listed = listed
        tags = {file.name: file.tag for file in listed if file.tag}
        self._json = JsonFiles(log.store, log.torn_commit_max_s, tags)
        self._snapshots: dict[int, Snapshot] = {}

    async def recent_files(self) -> list[LogFile]:
        """Return the files that were listed, without a look at the store."""
        return [*self.listed] if self.listed else await super().recent_files()

    async def load_snapshot(self, version: int | None = None) -> Snapshot:
        """Return a snapshot, which is kept. Files that are gone by now are listed again once."""
        if version in self._snapshots:
            return self._snapshots[version]
        try:
            snapshot = await super().load_snapshot(version)
        except TransientError:
            if not self.listed:
                raise
            self.listed = ()  # one of its files may be gone
            snapshot = await super().load_snapshot(version)
        if self.listed:
            self._snapshots[snapshot.version] = snapshot
        return snapshot

    async def prefetch_start(self, version: int) -> None:
        """Prefetch what a read from a version on begins with: the state before it, its commit, and
        then the file before, so that all is of one table.

        Errors are ignored here; the read itself will raise them.
        """
        if any(file.name == format_commit_name(version - 1) for file in self.listed):
            with suppress(TailerError, FileNotFoundError):
                await self.state_before(version)
                await self._json.prefetch_commit(version)


async def list_once(log: TableLog) -> TableLog:
    """Return the log for a read of versions that are there now: its store is asked once for the
    listing and for each small file, unless it is a server that itself says what has changed."""
    return log if log.store.server_log else ListedLog(log, await log.recent_files())
