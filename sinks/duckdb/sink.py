"""The DuckDB sink: a copy of a table (a mirror), or a log of its changes, in one DuckDB file.

DuckDB locks a file for one process; the sink closes it while no batch waits, so that other
programs can read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sinks.duckdb.database import DuckdbFile
from sinks.sql.sink import TABLE_SETTINGS, SqlSink
from tailer.changes import ChangeBatch, Offset
from tailer.settings import REQUIRED, Setting

__all__ = ["SETTINGS", "DuckdbSink"]

SETTINGS: dict[str, Setting] = {
    "path": Setting("text", REQUIRED, "The DuckDB file."),
    **TABLE_SETTINGS,
    "release": Setting(
        "flag", True, "Close the file while no batch waits, so that other programs can read it.",
    ),
    "memory_bytes_max": Setting(
        "whole", 512 * 1024**2, "Memory that DuckDB uses for the file.", unit="bytes",
        least=64 * 1024**2,
    ),
    "threads": Setting("whole", 2, "Threads that DuckDB uses."),
}  # fmt: skip


class DuckdbSink(SqlSink):
    """A copy of a table, or a log of its changes, in a DuckDB file, exactly once."""

    settings = SETTINGS

    def __init__(self, file: DuckdbFile, *, release: bool = True, **table: Any) -> None:
        super().__init__(file, **table)
        self.release = release
        self._path = file.path
        self._waiting = 0

    @classmethod
    def from_options(cls, options: Mapping[str, Any], folder: Path) -> DuckdbSink:
        """Create the sink. Options: :data:`SETTINGS`."""
        more = dict(options)
        path = folder / more.pop("path")
        file = DuckdbFile(path, more.pop("memory_bytes_max"), more.pop("threads"))
        return cls(file, **more)

    def prepare(self, batch: ChangeBatch) -> None:  # noqa: ARG002  # that there is one is enough
        """Note that a batch waits; see :class:`tailer.sink.Prepares`."""
        self._waiting += 1

    def _open(self, feed: str) -> Offset | None:
        self._waiting = 0
        offset = super()._open(feed)
        self._let_go()
        return offset

    def _look(self, feed: str) -> Offset | None:
        return super()._look(feed) if self._path.exists() else None

    def _write(self, batch: ChangeBatch) -> None:
        self._waiting = max(0, self._waiting - 1)
        super()._write(batch)
        self._let_go()

    def _move(self, offset: Offset) -> None:
        super()._move(offset)
        self._let_go()

    def _let_go(self) -> None:
        if self.release and not self._waiting:
            self._database.close()
