"""The DuckDB databases of the comparisons, each used by one at a time, and again by the next."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from msgspec import structs

from tailer.decode.options import DiffOptions
from tailer.errors import spilling
from tailer.files.spill import SpillFolder

__all__ = ["DATABASES", "Databases", "PrivateDatabase", "keep_databases"]

#: The most idle databases that are kept.
_IDLE_MAX = 2


class PrivateDatabase:
    """A private DuckDB, which one :class:`~tailer.compare.engine.Engine` at a time uses."""

    def __init__(self, options: DiffOptions) -> None:
        import duckdb

        self.options = options
        self.pid = os.getpid()
        with spilling(options.spill_folder):
            self._spill = SpillFolder("tailer-diff-", options.spill_folder)
        self.connection: Any = duckdb.connect(
            config={
                "threads": options.threads,
                "memory_limit": f"{options.memory_bytes_max // 1_000_000}MB",
                "temp_directory": str(self._spill.folder),
                "preserve_insertion_order": False,
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
            }
        )
        # In a process without a file, as of `python -c`, DuckDB would print a bar among the rows.
        self.connection.execute("SET enable_progress_bar = false")

    def can_spill(self) -> bool:
        """Return whether its folder is still there: others clean temporary folders too."""
        return self._spill.folder.is_dir()

    def close(self) -> None:
        """Close it, and remove its folder."""
        self.connection.close()
        self._spill.close()


class Databases:
    """The databases that no engine uses, for the next ones: to begin one takes longer than to
    compare a small version. Some are kept as long as any reader is active, however many there are;
    each comparison has all of a database's memory for itself.

    Readers and comparisons are in several threads: each step is one operation of a set or a deque.
    """

    def __init__(self) -> None:
        self._readers: set[object] = set()
        self._idle: deque[PrivateDatabase] = deque()
        self._of_parent: list[PrivateDatabase] = []

    def take_database(self, options: DiffOptions) -> PrivateDatabase:
        """Return an idle database with these bounds, or a new one."""
        bounds = structs.replace(options, keep_bytes_max=0, bucket=None)
        for _ in range(_IDLE_MAX):
            database = self._pop()
            if database is None:
                break
            if database.options == bounds:
                return database
            self._idle.appendleft(database)
        return PrivateDatabase(bounds)

    def give_back(self, database: PrivateDatabase) -> None:
        """Keep a database that is no longer used, or close it."""
        if not self._readers or len(self._idle) >= _IDLE_MAX:
            database.close()
            return
        self._idle.append(database)
        if not self._readers:  # the last one has gone since
            self._close_idle()

    @contextmanager
    def keep_idle(self) -> Iterator[None]:
        """Keep idle databases within the block; the last such block closes them."""
        reader = object()
        self._readers.add(reader)
        try:
            yield
        finally:
            self._readers.discard(reader)
            if not self._readers:
                self._close_idle()

    def _close_idle(self) -> None:
        while (database := self._pop()) is not None:
            database.close()

    def _pop(self) -> PrivateDatabase | None:
        """Return an idle database that can be used. A child keeps those of its parent as they are:
        it lacks their threads, and to close one would wait for them."""
        while True:
            try:
                database = self._idle.pop()
            except IndexError:
                return None
            if database.pid != os.getpid():
                self._of_parent.append(database)
            elif database.can_spill():
                return database
            else:
                database.close()


#: Those of this process.
DATABASES = Databases()
keep_databases = DATABASES.keep_idle
