"""Whether a followed table is still the same one: not moved away, replaced or restored."""

from __future__ import annotations

from dataclasses import replace

from msgspec import Struct

from tailer.changes import Offset
from tailer.delta.commit import Commit
from tailer.delta.segment import LogKind, commit_name
from tailer.delta.snapshot import Snapshot, TableState
from tailer.errors import DataLoss, OffsetError, TableError, TableReplaced, TransientError
from tailer.log.listing import versions_of
from tailer.log.table import TableLog
from tailer.store import LOG_DIR

__all__ = [
    "SameTable",
    "Witness",
    "check_offset",
    "check_place",
    "check_same",
    "check_there",
    "snapshot_for",
]


class Witness(Struct, frozen=True):
    """The file of a commit that has been seen."""

    name: str
    tag: str


async def check_there(log: TableLog, version: int) -> None:
    """Raise :class:`TransientError` if a table that existed has no version any more.

    It was moved away, or its file system is not mounted: then no other missing file proves
    anything. A deleted table is waited for as well, because it looks the same.
    """
    if not versions_of(await log.files()):
        raise TransientError(
            f"{log.store.root}, version {version}: the table is gone, its {LOG_DIR} has no commit; "
            "the feed waits until it is back: mount or restore it, or stop the feed"
        )


def check_offset(log: TableLog, offset: Offset, state: TableState) -> None:
    """Raise :class:`OffsetError` if the offset is of another table than this state."""
    if offset.table_id not in (None, state.table_id):
        raise OffsetError(
            f"the offset is of table {offset.table_id}, and the table there is {state.table_id}",
            table=log.store.root,
            hint="if it was replaced on purpose, reset the offset with `tailer offsets reset`",
        )


async def check_same(log: TableLog, offset: Offset) -> Offset:
    """Return the offset with the id of the table that is there. Raises :class:`OffsetError` if it
    is of another one. If the newest version can't be read, nothing is known."""
    try:
        state = (await log.snapshot()).state
    except TableError:
        return offset
    check_offset(log, offset, state)
    return replace(offset, table_id=state.table_id)


async def check_place(log: TableLog, offset: Offset) -> None:
    """Raise the error of an offset that can't be of the table that is there: its id is compared
    first, then whether the table has the versions before the offset.

    If the newest version can't be read, nothing is known.
    """
    try:
        newest = await log.snapshot()
    except TableError:
        return
    check_offset(log, offset, newest.state)
    begun = offset.version if offset.index or offset.snapshot else offset.version - 1
    if newest.version < begun and not log.store.server_log:
        raise _went_back(log, begun, newest.version)


async def snapshot_for(log: TableLog, offset: Offset, version: int) -> Snapshot:
    """Return the snapshot of a version that an offset needs.

    That the offset is another table's is found out before anything that follows from it.
    """
    try:
        snapshot = await log.snapshot(version)
    except TableError:
        if offset.table_id is not None:  # the table has existed
            await check_there(log, version)
            await check_place(log, offset)
        raise
    check_offset(log, offset, snapshot.state)
    return snapshot


def _went_back(log: TableLog, version: int, newest: int) -> TableReplaced:
    return TableReplaced(
        f"the table went back to version {newest}",
        table=log.store.root,
        version=version,
        hint="an older copy was restored; reset the offset with `tailer offsets reset`",
    )


class SameTable:
    """Checks of one table. The witness is the commit before the next one."""

    def __init__(self, log: TableLog) -> None:
        self.log = log

    async def state_at(self, start: Offset) -> TableState | None:
        """Return the state before an offset's version.

        Raises :class:`OffsetError` for another table.
        """
        try:
            state = await self.log.state_before(start.version)
        except TableError:
            if start.table_id is not None:  # the table has existed
                await check_there(self.log, start.version)
                await check_place(self.log, start)
            raise
        if state is not None:
            check_offset(self.log, start, state)
        if start.index and not self.log.store.server_log:
            await self._check_begun(start.version)
        return state

    async def _check_begun(self, version: int) -> None:
        """Check that a version is there of which a part was delivered."""
        if await self.log.has_commit(version):
            return
        newest = max(versions_of(await self.log.files()), default=-1)
        if newest < version:
            await check_there(self.log, version)
            raise _went_back(self.log, version, newest)

    async def witness(self, version: int) -> Witness | None:
        """Return the commit of a version as a witness; None if there is no such file (any more).

        A sharing server is not asked for a version before the first one that is read: it may not
        share that one's changes, and its answers name the table.
        """
        if version < 0 or self.log.store.server_log:
            return None
        name = commit_name(version)
        listed = next((file for file in self.log.listed if file.name == name), None)
        if listed is not None and listed.tag:
            return Witness(name, listed.tag)
        try:
            return Witness(name, (await self.log.store.stat(f"{LOG_DIR}/{name}")).tag)
        except FileNotFoundError:
            return None

    async def unchanged(self, witness: Commit | Witness) -> bool:
        """Return whether a commit is still the very same file."""
        try:
            return (await self.log.store.stat(f"{LOG_DIR}/{witness.name}")).tag == witness.tag
        except FileNotFoundError:
            return False

    async def check_listed(self, at: Offset, witness: Witness | None) -> None:
        """Check, after the files of the offset's version were listed, that they are of its table.

        ``witness`` was seen before the version's state was read. Raises :class:`OffsetError` if
        another table has come in between.
        """
        if self.log.store.server_log:
            return  # its server names the table
        if witness is None or not await self.unchanged(witness):
            await check_same(self.log, at)

    async def check_waiting(
        self, version: int, witness: Commit | Witness | None, table_id: str | None = None
    ) -> None:
        """Check, while ``version`` does not exist, that it is only not written yet.

        ``table_id`` is the followed table's; None for one that may become another. A listing alone
        proves no loss: some stores' listings lag behind.
        """
        files = await self.log.files(f"{version:020d}")
        newer = [v for v in versions_of(files) if v > version]
        if newer:
            try:
                await self.log.store.stat(f"{LOG_DIR}/{commit_name(version)}")
            except FileNotFoundError:
                if any(f.version == version and f.kind is LogKind.COMMIT for f in files):
                    raise TransientError(
                        f"{self.log.store.root}: version {version} is listed and can't be read"
                    ) from None
                raise DataLoss(
                    f"the commit is missing, though version {min(newer)} exists",
                    table=self.log.store.root,
                    version=version,
                    path=commit_name(version),
                    hint="the log was cleaned up or a file was lost; start at a newer version, "
                    "or with a snapshot",
                ) from None
        elif witness is None or not await self.unchanged(witness):
            await check_there(self.log, version)
            if table_id is not None:
                await self._check_still(version, table_id)
            newest = max(versions_of(await self.log.files()), default=-1)
            if newest < version - 1 and not await self.log.has_commit(version - 1):
                raise _went_back(self.log, version, newest)

    async def _check_still(self, version: int, table_id: str) -> None:
        """Check that the newest version, if it can be read, is of the table with that id."""
        try:
            now = (await self.log.snapshot()).state.table_id
        except TableError:
            return
        if now != table_id:
            raise self._replaced(version, table_id, now)

    async def check_table(self, commit: Commit, state: TableState | None) -> None:
        """Check that this is still the followed table, after the commit before has changed.

        A new table under the old path may well have more versions than the old one, and its commits
        need not name their table; only its snapshot does.
        """
        try:
            now = (await self.log.snapshot(commit.version)).state
        except DataLoss as e:
            raise TableReplaced(
                "the commit before this one has changed or is gone, and this version's snapshot "
                "can't be built to see whose it is",
                table=self.log.store.root,
                version=commit.version,
                hint="reset the offset with `tailer offsets reset`, or start with a snapshot",
            ) from e
        if state is not None and now.table_id != state.table_id:
            raise self._replaced(commit.version, state.table_id, now.table_id)

    def check_id(self, commit: Commit, table_id: str | None) -> None:
        """Check that a commit does not replace the table by one with another id."""
        if table_id is not None and commit.after.table_id != table_id:
            raise self._replaced(commit.version, table_id, commit.after.table_id)

    def _replaced(self, version: int, was: str, now: str) -> TableReplaced:
        return TableReplaced(
            f"the table was replaced by another one: its id was {was} and is {now}",
            table=self.log.store.root,
            version=version,
            hint="reset the offset with `tailer offsets reset` to follow the new table",
        )
