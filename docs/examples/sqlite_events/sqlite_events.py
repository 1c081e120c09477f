"""A sink in fifty lines: every event once, in a table of an SQLite database."""

import json
import sqlite3

import anyio.to_thread

from tailer.changes import Offset
from tailer.errors import TargetRefused
from tailer.settings import REQUIRED, Setting
from tailer.sink import FaultTable, Sink, SinkTraits

TABLES = """
CREATE TABLE IF NOT EXISTS events (id PRIMARY KEY, kind, version, row);
CREATE TABLE IF NOT EXISTS feeds (name PRIMARY KEY, epoch DEFAULT 0, next);
"""


class SqliteEvents(Sink):
    """Each event once, as a row of an SQLite table."""

    settings = {"path": Setting("text", REQUIRED, "The database file.")}
    traits = SinkTraits(spans=True)
    faults = FaultTable(for_good="SQLITE_ERROR SQLITE_READONLY", rows="SQLITE_TOOBIG")

    def __init__(self, path):
        self.path, self.database = path, None

    @classmethod
    def from_options(cls, options, folder):
        return cls(folder / options["path"])

    async def open(self, feed):
        await self.aclose()
        self.database = db = sqlite3.connect(self.path, check_same_thread=False)
        db.executescript(TABLES)
        with db:  # a newer epoch fences an older process
            db.execute("INSERT OR IGNORE INTO feeds (name) VALUES (?)", (feed,))
            claim = "UPDATE feeds SET epoch = epoch + 1 WHERE name = ? RETURNING name, epoch, next"
            *self.claim, saved = db.execute(claim, (feed,)).fetchone()
        return Offset.from_json(json.loads(saved)) if saved else None

    async def write(self, batch):
        await anyio.to_thread.run_sync(self._write, batch)

    def _write(self, batch):
        kinds, versions, _ = (column.to_pylist() for column in batch.rows.columns[-3:])
        rows = (json.dumps(row, default=str) for row in batch.rows.to_pylist())
        events = zip(batch.event_ids().to_pylist(), kinds, versions, rows, strict=True)
        move = "UPDATE feeds SET next = ? WHERE name = ? AND epoch = ?"
        try:
            with self.database as db:  # events and offset in one transaction
                if not db.execute(move, (str(batch.next_offset), *self.claim)).rowcount:
                    raise TargetRefused(f"{self.path}: a newer process writes this feed")
                db.executemany("INSERT OR IGNORE INTO events VALUES (?, ?, ?, ?)", events)
        except sqlite3.Error as e:
            raise self.faults.error(e.sqlite_errorname, f"{self.path}: {e}") from e

    async def aclose(self):
        if self.database is not None:
            self.database.close()
        self.database = None
