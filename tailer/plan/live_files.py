"""The logical files in the table, kept up to date commit by commit.

A log may refer to one logical file any number of times ("Action Reconciliation"): a remove of a
file that is not in the table removes no row, and an add of a file that is in it adds none. A
commit's changes are therefore applied to the files of the version before it. Those are read once,
when the first commit needs them, and then follow the commits: a key of 16 bytes for each file, in
memory while they are few, else in a database that keeps the rest on the disk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import aclosing
from typing import TYPE_CHECKING, TypeAlias

from tailer.delta.add_fields import KEYS
from tailer.delta.commit import Commit
from tailer.delta.digests import KEY_BYTES, file_digest, split_digests
from tailer.errors import DataLoss, TransientError
from tailer.log.table import TableLog
from tailer.plan.rules import ChangeSource, needs_data_files
from tailer.process.threads import run_blocking

if TYPE_CHECKING:
    from tailer.plan.live_database import DigestDatabase

#: The digests of the files that a commit adds although they are in the table, or removes although
#: they are not (:func:`tailer.delta.digests.file_digest`).
Ineffective: TypeAlias = AbstractSet[bytes]

_LOADED_AT_ONCE = 20_000
#: Commits of more files than this are processed in a thread.
_FILES_INLINE_MAX = 200
#: So many keys take a few megabytes of memory.
_FEW = 32_768
#: The commits whose results are remembered: more than a feed reads ahead.
_REMEMBERED = 1024
_NONE: Ineffective = frozenset()


class LiveFiles:
    """The logical files of one table, at the version that its reader has reached.

    ``known`` are the ineffective actions by version as another process has found them; then
    nothing is read.
    """

    def __init__(self, known: Mapping[int, Ineffective] | None = None) -> None:
        self._known = known
        self._keys: _Keys | None = None
        self._at: tuple[int, str, str] | None = None  # version, its commit's tag, table id
        self._found: dict[tuple[int, str, str], Ineffective] = {}  # the last ones, of the same keys

    async def apply_commit(
        self, log: TableLog, commit: Commit, source: ChangeSource, spill_folder: str | None = None
    ) -> Ineffective:
        """Apply a commit. Return its file actions that change nothing, each as its digest.

        Commits come in order. A commit out of order costs a read of the whole snapshot before it,
        unless it is one of the last ones, which a feed repeats after a failure. If the changes of a
        commit in ``source`` do not come from its files, nothing is read, and the files are only
        kept up to date. If the version before can't be built any more, no action counts as
        ineffective.
        """
        if self._known is not None:
            return self._known.get(commit.version, frozenset())
        reached = commit.version, commit.tag, commit.after.table_id
        found = self._found.get(reached)
        if found is not None:
            return found
        if self._keys is None or not self._leads_to(commit):
            self.forget_files()
            if log.store.server_log:
                return frozenset()  # the server's answers already are the changes
            wanted = needs_data_files(commit, source)
            if not wanted or not await self._load_files(log, commit, spill_folder):
                return frozenset()
        keys, self._at = self._keys, None
        assert keys is not None
        header = commit.header
        if len(header.added) + len(header.removed) > _FILES_INLINE_MAX * KEY_BYTES:
            ineffective = await run_blocking(keys.apply_commit, header.added, header.removed)
        else:
            ineffective = keys.apply_commit(header.added, header.removed)
        self._at = reached
        if len(self._found) >= _REMEMBERED:
            self._found.pop(next(iter(self._found)))
        self._found[reached] = ineffective
        return ineffective

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

    def ineffective_in(self, version: int) -> Ineffective:
        """Return the result of :meth:`apply_commit` for one of the last versions."""
        return next((m for at, m in self._found.items() if at[0] == version), frozenset())

    async def _load_files(self, log: TableLog, commit: Commit, spill_folder: str | None) -> bool:
        """Load the files of the version before a commit; return False if it can't be built any
        more. Raises :class:`TransientError` if another table is there meanwhile."""
        keys, version = _Keys(spill_folder), commit.version - 1
        if version >= 0:
            try:
                snapshot = await log.load_snapshot(version)
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
                        await run_blocking(keys.insert_keys, found)
                        found = []
            keys.insert_keys(found)
        self._keys = keys
        return True

    def forget_files(self) -> None:
        """Drop all files: the next commit that needs them reads them again."""
        if self._keys is not None:
            self._keys.close()
        self._keys, self._at, self._found = None, None, {}


class _Keys:
    """A set of digests: in memory while they are few, else in a database."""

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._few: set[bytes] = set()
        self._many: DigestDatabase | None = None

    def close(self) -> None:
        """Drop all."""
        if self._many is not None:
            self._many.close()

    def insert_keys(self, keys: Sequence[bytes]) -> None:
        """Insert the keys of files in the table."""
        if self._many is None:
            if len(self._few) + len(keys) <= _FEW:
                self._few.update(keys)
                return
            self._move_to_database()
        assert self._many is not None
        self._many.insert_keys(keys)

    def apply_commit(self, added: bytes, removed: bytes) -> Ineffective:
        """Apply a commit, given as its concatenated added and removed keys.

        Return the added keys that were already present, and the removed keys that were not.
        """
        if self._many is not None:
            return self._many.apply_commit(added, removed)
        few, coming, leaving = self._few, set(split_digests(added)), set(split_digests(removed))
        ineffective: set[bytes] = leaving - few
        if ineffective or not few.isdisjoint(coming - leaving):
            ineffective |= coming & few
        few -= leaving
        few |= coming
        if len(few) > _FEW:
            self._move_to_database()
        # Almost every commit's result is the empty one, and many feeds remember a thousand each.
        return frozenset(ineffective) if ineffective else _NONE

    def _move_to_database(self) -> None:
        from tailer.plan.live_database import DigestDatabase  # loads on demand, with its engine

        many = DigestDatabase(self._folder)
        many.insert_keys(self._few)
        self._many, self._few = many, set()
