"""A set of digests that may have more members than there is memory for."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import weakref
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager

from tailer.delta.digests import KEY_BYTES, split_digests
from tailer.errors import no_room, spilling

_CACHE_KIB = 4096


class DigestDatabase:
    """A set of digests in a database that vanishes when it is closed, or when the process ends."""

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        with spilling(folder), self._translate_full_disk():
            self._db = self._open_connection()
        self.close = weakref.finalize(self, self._db.close)

    def _open_connection(self) -> sqlite3.Connection:
        if self._folder is None:
            # It needs no file until it outgrows its cache; then it has an unnamed one in TMPDIR.
            path, file = "", -1
        else:
            file, path = tempfile.mkstemp(prefix="tailer-live-", dir=self._folder)
        try:
            db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            db.executescript(
                "PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF;"
                f"PRAGMA locking_mode = EXCLUSIVE; PRAGMA cache_size = -{_CACHE_KIB};"
                "CREATE TABLE live (key BLOB PRIMARY KEY) WITHOUT ROWID"
            )
        finally:
            if path:
                os.close(file)
                os.unlink(path)  # noqa: PTH108 - the database keeps it open
        return db

    @contextmanager
    def _translate_full_disk(self) -> Generator[None]:
        """Raise :class:`TransientError` when the disk is full."""
        try:
            yield
        except sqlite3.OperationalError as e:
            raise no_room(self._folder, str(e)) from e

    def insert_keys(self, keys: Iterable[bytes]) -> None:
        """Insert keys."""
        with self._translate_full_disk():
            self._db.execute("BEGIN")
            # Sorted, so that each page of the database is visited once.
            self._insert_keys(sorted(keys))
            self._db.execute("COMMIT")

    def apply_commit(self, added: bytes, removed: bytes) -> frozenset[bytes]:
        """Apply a commit, given as its concatenated added and removed keys.

        Return the added keys that were already present, and the removed keys that were not.
        """
        with self._translate_full_disk():
            self._db.execute("BEGIN")
            changed = self._db.total_changes
            self._db.executemany("DELETE FROM live WHERE key = ?", _list_parameters(removed))
            self._insert_keys(split_digests(added))
            changed = self._db.total_changes - changed
            if changed == (len(added) + len(removed)) // KEY_BYTES:
                self._db.execute("COMMIT")
                return frozenset()
            # Something is ineffective, which is rare: check key by key.
            self._db.execute("ROLLBACK")
            ineffective = {key for key in split_digests(added) if self._has_key(key)}
            ineffective |= {key for key in split_digests(removed) if not self._has_key(key)}
            self._db.execute("BEGIN")
            self._db.executemany("DELETE FROM live WHERE key = ?", _list_parameters(removed))
            self._insert_keys(split_digests(added))
            self._db.execute("COMMIT")
        return frozenset(ineffective)

    def _insert_keys(self, keys: Iterable[bytes]) -> None:
        self._db.executemany("INSERT OR IGNORE INTO live VALUES (?)", ((key,) for key in keys))

    def _has_key(self, key: bytes) -> bool:
        found = self._db.execute("SELECT 1 FROM live WHERE key = ?", (key,)).fetchone()
        return found is not None


def _list_parameters(keys: bytes) -> Iterator[tuple[bytes]]:
    return ((key,) for key in split_digests(keys))
