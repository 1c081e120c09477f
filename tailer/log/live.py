"""The logical files in the table, kept up to date commit by commit.

A log may refer to one logical file any number of times ("Action Reconciliation"): a remove of a
file that is not in the table removes no row, and an add of a file that is in it adds none. A
commit's changes are therefore applied to the files of the version before it. Those are read once,
when the first commit needs them, and then follow the commits: a key of 16 bytes for each file, in a
database that keeps a few megabytes in memory and the rest on the disk.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import weakref
from collections.abc import Generator, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import aclosing, contextmanager
from typing import TypeAlias

from tailer.decode.plan import ChangeSource, counts_files
from tailer.delta.add_fields import KEYS
from tailer.delta.commit import Commit
from tailer.delta.digests import KEY_BYTES, file_digest
from tailer.errors import DataLoss, TransientError, no_room, spilling
from tailer.log.table import TableLog
from tailer.store import ChangeSourced
from tailer.threads import blocking

__all__ = ["LiveFiles", "Moot"]

#: The digests of the files that a commit adds although they are in the table, or removes although
#: they are not (:func:`tailer.delta.commit.file_digest`).
Moot: TypeAlias = AbstractSet[bytes]

_LOADED_AT_ONCE = 20_000
#: Commits of more files than this are processed in a thread.
_FILES_INLINE_MAX = 200
_CACHE_KIB = 4096
#: The commits whose results are remembered: more than a feed reads ahead.
_REMEMBERED = 1024


class LiveFiles:
    """The logical files of one table, at the version that its reader has reached.

    ``told`` are the moot actions by version as another process has found them; then nothing is
    read.
    """

    def __init__(self, told: Mapping[int, Moot] | None = None) -> None:
        self._told = told
        self._keys: _Keys | None = None
        self._at: tuple[int, str, str] | None = None  # version, its commit's tag, table id
        self._found: dict[tuple[int, str, str], Moot] = {}  # the last ones, of the same keys

    async def moot(
        self, log: TableLog, commit: Commit, source: ChangeSource, spill_folder: str | None = None
    ) -> Moot:
        """Return the file actions of a commit that change nothing, each as its digest.

        Commits come in order. A commit out of order costs a read of the whole snapshot before it,
        unless it is one of the last ones, which a feed repeats after a failure. If the changes of a
        commit in ``source`` do not come from its files, nothing is read, and the files are only
        kept up to date. If the version before can't be built any more, no action counts as moot.
        """
        if self._told is not None:
            return self._told.get(commit.version, frozenset())
        reached = commit.version, commit.tag, commit.after.table_id
        found = self._found.get(reached)
        if found is not None:
            return found
        if self._keys is None or not self._leads_to(commit):
            self.forget()
            if isinstance(log.store, ChangeSourced):
                return frozenset()  # the server's answers already are the changes
            wanted = counts_files(commit, source)
            if not wanted or not await self._load(log, commit, spill_folder):
                return frozenset()
        keys, self._at = self._keys, None
        assert keys is not None
        header = commit.header
        if len(header.added) + len(header.removed) > _FILES_INLINE_MAX * KEY_BYTES:
            moot = await blocking(keys.follow, header.added, header.removed)
        else:
            moot = keys.follow(header.added, header.removed)
        self._at = reached
        if len(self._found) >= _REMEMBERED:
            self._found.pop(next(iter(self._found)))
        self._found[reached] = moot
        return moot

    def _leads_to(self, commit: Commit) -> bool:
        """Return whether these are the files of the version before, in the same table."""
        if self._at is None or commit.before is None:
            return False
        version, _, table_id = self._at
        return (version, table_id) == (commit.version - 1, commit.before.table_id)

    @property
    def version(self) -> int | None:
        """The version whose files these are; None before any were read."""
        return None if self._at is None else self._at[0]

    def known(self, version: int) -> Moot:
        """Return the result of :meth:`moot` for a version, if it is one of the last ones."""
        return next((m for at, m in self._found.items() if at[0] == version), frozenset())

    async def _load(self, log: TableLog, commit: Commit, spill_folder: str | None) -> bool:
        """Load the files of the version before a commit; return False if it can't be built any
        more. Raises :class:`TransientError` if another table is there meanwhile."""
        keys, version = _Keys(spill_folder), commit.version - 1
        if version >= 0:
            try:
                snapshot = await log.snapshot(version)
            except DataLoss:
                keys.close()
                return False
            if commit.before is not None and snapshot.state.table_id != commit.before.table_id:
                keys.close()
                raise TransientError(
                    f"{log.store.root}, version {version}: another table is there than before"
                )
            found: list[bytes] = []
            async with aclosing(log.live_files(snapshot, KEYS)) as files:
                async for add in files:
                    found.append(file_digest(add))
                    if len(found) == _LOADED_AT_ONCE:
                        await blocking(keys.load, found)
                        found = []
            keys.load(found)
        self._keys = keys
        return True

    def forget(self) -> None:
        """Drop all files: the next commit that needs them reads them again."""
        if self._keys is not None:
            self._keys.close()
        self._keys, self._at, self._found = None, None, {}


class _Keys:
    """A set of digests in a database that vanishes when it is closed, or when the process ends."""

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        with spilling(folder), self._writing():
            self._db = self._opened()
        self.close = weakref.finalize(self, self._db.close)

    def _opened(self) -> sqlite3.Connection:
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
    def _writing(self) -> Generator[None]:
        """Raise :class:`TransientError` when the disk is full."""
        try:
            yield
        except sqlite3.OperationalError as e:
            raise no_room(self._folder, str(e)) from e

    def load(self, keys: Iterable[bytes]) -> None:
        """Insert the keys of files in the table."""
        with self._writing():
            self._db.execute("BEGIN")
            # Sorted, so that each page of the database is visited once.
            self._insert(sorted(keys))
            self._db.execute("COMMIT")

    def follow(self, added: bytes, removed: bytes) -> Moot:
        """Apply a commit, given as its concatenated added and removed keys.

        Return the added keys that were already present, and the removed keys that were not.
        """
        with self._writing():
            self._db.execute("BEGIN")
            changed = self._db.total_changes
            self._db.executemany("DELETE FROM live WHERE key = ?", _each(removed))
            self._insert(_split(added))
            changed = self._db.total_changes - changed
            if changed == (len(added) + len(removed)) // KEY_BYTES:
                self._db.execute("COMMIT")
                return frozenset()
            # Something is moot, which is rare: check key by key.
            self._db.execute("ROLLBACK")
            moot = {key for key in _split(added) if self._has(key)}
            moot |= {key for key in _split(removed) if not self._has(key)}
            self._db.execute("BEGIN")
            self._db.executemany("DELETE FROM live WHERE key = ?", _each(removed))
            self._insert(_split(added))
            self._db.execute("COMMIT")
        return frozenset(moot)

    def _insert(self, keys: Iterable[bytes]) -> None:
        self._db.executemany("INSERT OR IGNORE INTO live VALUES (?)", ((key,) for key in keys))

    def _has(self, key: bytes) -> bool:
        found = self._db.execute("SELECT 1 FROM live WHERE key = ?", (key,)).fetchone()
        return found is not None


def _split(keys: bytes) -> Iterator[bytes]:
    return (keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES))


def _each(keys: bytes) -> Iterator[tuple[bytes]]:
    return ((key,) for key in _split(keys))
