"""The URLs of shared files, by the locations under which the log knows them.

A snapshot may name a million files, each with a URL of a kilobyte, so they are kept in a database
on the disk. Each is stored with the request that gave it, which is repeated when the URL expires.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tailer.errors import no_room
from tailer.sharing.answers import SharedFile
from tailer.store.https import Link


@dataclass(frozen=True, slots=True)
class Origin:
    """The request that gave a URL.

    Its ``kind`` is ``changes`` or ``files`` of the versions ``first`` to ``last``, or the
    ``snapshot`` of version ``first``.
    """

    kind: str
    first: int
    last: int

    def __str__(self) -> str:
        return json.dumps([self.kind, self.first, self.last])

    @classmethod
    def from_text(cls, text: str) -> Origin:
        """Parse an origin from its text."""
        kind, first, last = json.loads(text)
        return cls(kind, first, last)


@contextmanager
def _translate_full_disk() -> Iterator[None]:
    """Raise :class:`TransientError` when the disk is full."""
    try:
        yield
    except sqlite3.OperationalError as e:
        raise no_room(None, str(e)) from e


class StoredLink(NamedTuple):
    """A file's URL, and the request that gave it."""

    link: Link
    origin: Origin


class LinkTable:
    """URLs on the disk. Its calls are short and block."""

    def __init__(self, file: Path) -> None:
        self._lock = threading.Lock()  # a worker thread writes while other threads look up
        self._db = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
        with _translate_full_disk():
            self._db.executescript(
                "PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF;"
                "CREATE TABLE links (location TEXT PRIMARY KEY, url TEXT NOT NULL, expires INTEGER,"
                " size INTEGER, origin TEXT NOT NULL, issued INTEGER NOT NULL) WITHOUT ROWID"
            )
        self.issue = 0

    def store_links(self, files: Iterable[SharedFile], origin: Origin) -> None:
        """Store the URLs of an answer; a newer one replaces an older one."""
        rows: list[tuple[object, ...]] = []
        for f in files:
            size = f.action.get("size")
            rows.append((f.location, f.url, f.expires_ms, size, str(origin), self.issue))
            if f.dv_location is not None:
                rows.append((f.dv_location, f.dv_url, f.expires_ms, None, str(origin), self.issue))
        with self._lock, _translate_full_disk():
            self._db.execute("BEGIN")
            try:
                self._db.executemany("INSERT OR REPLACE INTO links VALUES (?, ?, ?, ?, ?, ?)", rows)
            except BaseException:
                if self._db.in_transaction:  # a full disk has ended it already
                    self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def find_link(self, location: str) -> StoredLink:
        """Return a location's URL and its origin. Raises FileNotFoundError for an unknown one."""
        sql = "SELECT url, expires, size, issued, origin FROM links WHERE location = ?"
        with self._lock:
            row = self._db.execute(sql, (location,)).fetchone()
        if row is None:
            raise FileNotFoundError(location)
        url, expires_ms, size, issue, origin = row
        return StoredLink(Link(url, expires_ms, size, issue), Origin.from_text(origin))

    def __contains__(self, location: str) -> bool:
        with suppress(FileNotFoundError):
            return bool(self.find_link(location))
        return False

    def drop_links(self, origin: Origin) -> None:
        """Delete the URLs of a request, except those that a newer request gave again."""
        with self._lock, _translate_full_disk():
            self._db.execute("DELETE FROM links WHERE origin = ?", (str(origin),))

    def close(self) -> None:
        """Close the database."""
        self._db.close()
