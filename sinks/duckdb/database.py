"""One DuckDB file: connections, transactions, and the table in which it says who writes what.

Each target has a row in ``_delta_tailer``: the feed that writes it, the epoch of the process that
claimed it last, the offset behind its last write, and the columns that it has. Everything that a
write changes is in one transaction with that row, which only the last process to claim it can
change.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from tailer.changes import Offset
from tailer.errors import OffsetError, SinkRejected, TransientError
from tailer.files.durable import make_folder

__all__ = ["Claim", "Database", "quoted"]

_FEEDS = """
    CREATE TABLE IF NOT EXISTS _delta_tailer (
        target VARCHAR PRIMARY KEY, feed VARCHAR NOT NULL, epoch BIGINT NOT NULL,
        mode VARCHAR NOT NULL, "key" VARCHAR, "offset" VARCHAR, columns BLOB
    )
"""
_SELECT = 'SELECT feed, epoch, mode, "key", "offset", columns FROM _delta_tailer WHERE target = ?'
_INSERT = "INSERT INTO _delta_tailer (target, feed, epoch, mode) VALUES (?, ?, 1, ?)"
_CLAIM = "UPDATE _delta_tailer SET epoch = ? WHERE target = ?"
_MOVE = """
    UPDATE _delta_tailer SET "offset" = ?, "key" = ?, columns = ?
    WHERE target = ? AND epoch = ? RETURNING epoch
"""
_IS_THERE = """
    SELECT count(*) FROM information_schema.tables
    WHERE table_schema = 'main' AND lower(table_name) = lower(?)
"""
#: What DuckDB's messages contain for errors that do not pass by themselves.
_FOR_GOOD = ("Permission denied", "Read-only file system", "Is a directory", "not a valid DuckDB")


@dataclass(frozen=True, slots=True)
class Claim:
    """What the file says of a target: ``key`` are the physical names of its key columns, and
    ``columns`` those that it has; both None before the first write."""

    feed: str
    epoch: int
    mode: str
    key: list[str] | None = None
    offset: Offset | None = None
    columns: pa.Schema | None = None


def quoted(name: str) -> str:
    """Return a name as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


class Database:
    """A DuckDB file, open for one process. All methods block."""

    def __init__(self, path: Path, memory_bytes_max: int, threads: int) -> None:
        self.path = path
        self._settings = {
            "memory_limit": f"{memory_bytes_max // 1_000_000}MB",
            "threads": str(threads),
            "autoinstall_known_extensions": "false",
        }
        self._connection: Any = None

    def connect(self, *, read_only: bool = False) -> None:
        """Open the file, if it is not open. Raises :class:`TransientError` if another process has
        it."""
        import duckdb

        if self._connection is not None:
            return
        with self.translated():
            if not read_only:
                make_folder(self.path.parent)
            self._connection = duckdb.connect(os.fspath(self.path), read_only=read_only)
            for name, value in self._settings.items():
                self._connection.execute(f"SET {name} = '{value}'")

    def close(self) -> None:
        """Close the file, so that other processes can open it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with self.translated():
                connection.close()

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run one statement; return its rows."""
        with self.translated():
            return list(self._connection.execute(statement, list(values)).fetchall())

    @contextmanager
    def registered(self, **tables: pa.Table) -> Iterator[None]:
        """Provide Arrow tables as views of these names."""
        with self.translated():
            for name, table in tables.items():
                self._connection.register(name, table)
        try:
            yield
        finally:
            if self._connection is not None:
                with self.translated():
                    for name in tables:
                        self._connection.unregister(name)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what is executed within, or none of it."""
        self.execute("BEGIN TRANSACTION")
        try:
            yield
            self.execute("COMMIT")
        except SinkRejected:
            self.execute("ROLLBACK")
            raise
        except BaseException:
            # What DuckDB could not write may leave it in a state in which it refuses all work.
            self._abandon()
            raise

    def start_again(self) -> None:
        """Undo the transaction so far, for a look at what was there."""
        self.execute("ROLLBACK")
        self.execute("BEGIN TRANSACTION")

    def _abandon(self) -> None:
        import duckdb

        connection, self._connection = self._connection, None
        try:
            connection.close()
        except duckdb.Error:
            return

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Translate DuckDB's errors into our own, around each use of it."""
        import duckdb

        try:
            yield
        except (duckdb.OperationalError, duckdb.InternalError, duckdb.FatalException, OSError) as e:
            reason = " ".join(str(e).split())
            if any(what in reason for what in _FOR_GOOD):
                raise SinkRejected(f"{self.path}: {reason}; check the path") from e
            if "lock on file" in reason:
                reason += "; another process has it open: close it there, or wait"
            raise TransientError(f"{self.path}: {reason}") from e
        except duckdb.Error as e:
            raise SinkRejected(f"{self.path}: {' '.join(str(e).split())}") from e

    # Who writes what

    def has_table(self, target: str) -> bool:
        """Return whether the file has a table of this name."""
        return bool(self.execute(_IS_THERE, target)[0][0])

    def found(self, target: str) -> Claim | None:
        """Return what the file says of a target, if anything."""
        if not self.has_table("_delta_tailer"):
            return None
        rows = self.execute(_SELECT, target)
        if not rows:
            return None
        feed, epoch, mode, key, offset, columns = rows[0]
        try:
            at = None if offset is None else Offset.from_json(json.loads(offset))
        except (ValueError, OffsetError) as e:
            raise SinkRejected(f"{self.path}: the offset of {target!r} is damaged ({e})") from e
        kept = None if columns is None else pa.ipc.read_schema(pa.py_buffer(columns))
        return Claim(feed, epoch, mode, None if key is None else json.loads(key), at, kept)

    def claim(self, target: str, feed: str, mode: str) -> Claim:
        """Claim a target for this process: from now on older ones can't write it.

        Raises :class:`SinkRejected` for a target of another feed or mode, or of somebody else.
        """
        with self.transaction():
            self.execute(_FEEDS)
            found = self.check(target, feed, mode)
            if found is None:
                self.execute(_INSERT, target, feed, mode)
                return Claim(feed, 1, mode)
            epoch = found.epoch + 1
            self.execute(_CLAIM, epoch, target)
        return Claim(feed, epoch, mode, found.key, found.offset, found.columns)

    def check(self, target: str, feed: str, mode: str) -> Claim | None:
        """Return what the file says of a target. Raises as of :meth:`claim`."""
        found = self.found(target)
        there = self.has_table(target)
        if found is None:
            if there:
                raise SinkRejected(
                    f"{self.path} has a table {target!r} that no feed has made; name another "
                    "in the option 'table'"
                )
            return None
        if found.feed != feed:
            raise SinkRejected(
                f"{self.path}: the table {target!r} is written by the feed {found.feed!r}; name "
                "another in the option 'table'"
            )
        if found.mode != mode:
            raise SinkRejected(
                f"{self.path}: the table {target!r} is a {found.mode} and not a {mode}; name "
                "another in the option 'table', or remove it by `tailer offsets reset`"
            )
        if found.columns is not None and not there:
            raise SinkRejected(
                f"{self.path}: the table {target!r} was dropped; `tailer offsets reset` makes it "
                "again"
            )
        return found

    def move(self, target: str, claim: Claim) -> None:
        """Store a claim's offset, key and columns, within a transaction. Raises
        :class:`SinkRejected` if a newer process has claimed the target."""
        columns = None if claim.columns is None else claim.columns.serialize().to_pybytes()
        key = None if claim.key is None else json.dumps(claim.key)
        offset = None if claim.offset is None else str(claim.offset)
        if not self.execute(_MOVE, offset, key, columns, target, claim.epoch):
            raise SinkRejected(
                f"{self.path}: another process writes the table {target!r} now; stop one of them"
            )

    def forget(self, target: str) -> None:
        """Drop a target and what the file says of it."""
        with self.transaction():
            if self.found(target) is not None:
                self.execute(f"DROP TABLE IF EXISTS {quoted(target)}")
                self.execute("DELETE FROM _delta_tailer WHERE target = ?", target)
