"""The DuckDB sink: a copy of a table (a mirror), or a log of its changes, in one DuckDB file.

DuckDB locks a file for one process; the sink closes it while no batch comes, so that other programs
can read it.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any

from sinks.duckdb.database import DuckdbFile
from sinks.sql.files import FileSink
from sinks.sql.sink import TABLE_SETTINGS
from sinks.sql.table_transactions import TableSession
from tailer.changes import ChangeBatch, Offset
from tailer.errors import TailerError
from tailer.settings import REQUIRED, Setting

SETTINGS: dict[str, Setting] = {
    "path": Setting("text", REQUIRED, "The DuckDB file."),
    **TABLE_SETTINGS,
}

#: To close and open the file takes as long as to write thousands of rows: in a backlog the next
#: batch finds it open, and a feed that never rests closes it every second.
_LINGER_S = 0.1
_OPEN_S_MAX = 1.0


class DuckdbSink(FileSink):
    """A copy of a table, or a log of its changes, in a DuckDB file, exactly once."""

    settings = SETTINGS
    kind = "duckdb"
    file_class = DuckdbFile
    _file: DuckdbFile

    def __init__(self, file: DuckdbFile, **table: Any) -> None:
        super().__init__(file, **table)
        self._waiting = 0
        self._opened_at = 0.0
        # The file is closed by a timer's thread, if no batch comes before.
        self._lock = threading.RLock()
        self._timer: threading.Timer | None = None

    def prepare(self, batch: ChangeBatch) -> None:  # noqa: ARG002  # that there is one is enough
        """Note that a batch waits."""
        self._waiting += 1

    def _open_table(self, feed: str) -> Offset | None:
        with self._lock:
            self._waiting = 0
            offset = super()._open_table(feed)
            self._close_when_idle(at_once=True)
            return offset

    def _look_at_table(self, feed: str) -> Offset | None:
        with self._lock:
            return super()._look_at_table(feed)

    def _set_offset(self, feed: str, offset: Offset | None) -> None:
        with self._lock:
            super()._set_offset(feed, offset)

    def _require_session(self) -> TableSession:
        if not self._file.is_open:
            self._opened_at = time.monotonic()
        return super()._require_session()

    def _write_batch(self, batch: ChangeBatch) -> None:
        with self._lock:
            self._waiting = max(0, self._waiting - 1)
            super()._write_batch(batch)
            self._close_when_idle()

    def _move_offset(self, offset: Offset) -> None:
        with self._lock:
            super()._move_offset(offset)
            self._close_when_idle()

    def _close_database(self) -> None:
        with self._lock:
            self._close_when_idle(at_once=True)
            # The file of a daemon that has ended is complete by itself. If another process has it
            # open, nothing is lost: DuckDB reads the log beside it.
            with suppress(TailerError):
                self._file.write_log_into_file()

    def _close_when_idle(self, *, at_once: bool = False) -> None:
        """Close the file now, or soon, if no batch waits."""
        if self._timer is not None:
            self._timer.cancel()
        if self._waiting:
            return
        if at_once or time.monotonic() > self._opened_at + _OPEN_S_MAX:
            self._database.close()
            return
        self._timer = threading.Timer(_LINGER_S, self._close_idle)
        self._timer.daemon = True
        self._timer.start()

    def _close_idle(self) -> None:
        # What is written is safe; if the file can't be closed, the next batch says so.
        with self._lock, suppress(TailerError):
            if not self._waiting:
                self._database.close()
