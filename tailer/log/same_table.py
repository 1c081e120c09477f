"""Whether a followed table is still the same one: not moved away, replaced or restored."""

from __future__ import annotations

from msgspec import structs

from tailer.delta.segment import format_commit_name
from tailer.delta.snapshot import Snapshot, TableState
from tailer.errors import OffsetError, TableError
from tailer.log.cursor import make_table_away_error, make_went_back_error
from tailer.log.listing import list_versions
from tailer.log.table import TableLog
from tailer.offset import Offset


async def check_table_exists(log: TableLog, version: int) -> None:
    """Raise :class:`TransientError` if a table that existed has no version any more."""
    if not list_versions(await log.list_files()):
        raise make_table_away_error(log.store.root, version)


def check_offset(log: TableLog, offset: Offset, state: TableState) -> None:
    """Raise :class:`OffsetError` if the offset is of another table than this state."""
    if offset.table_id not in (None, state.table_id):
        raise OffsetError(
            f"the offset is of table {offset.table_id}, and the table there is {state.table_id}",
            table=log.store.root,
            hint="if it was replaced on purpose, reset the offset with `tailer offsets reset`",
        )


async def confirm_table(log: TableLog, offset: Offset) -> Offset:
    """Return the offset with the id of the table that is there. Raises :class:`OffsetError` if it
    is of another one. If the newest version can't be read, nothing is known."""
    try:
        state = (await log.load_snapshot()).state
    except TableError:
        return offset
    check_offset(log, offset, state)
    return structs.replace(offset, table_id=state.table_id)


async def check_place(log: TableLog, offset: Offset) -> None:
    """Raise the error of an offset that can't be of the table that is there: its id is compared
    first, then whether the table has the versions before the offset.

    If the newest version can't be read, nothing is known.
    """
    try:
        newest = await log.load_snapshot()
    except TableError:
        return
    check_offset(log, offset, newest.state)
    begun = offset.version if offset.is_begun or offset.snapshot else offset.version - 1
    if newest.version < begun and not log.store.server_log:
        raise make_went_back_error(log.store.root, begun, newest.version)
    if newest.version >= offset.version - 1:
        await check_last_commit(log, offset)


async def snapshot_for(log: TableLog, offset: Offset, version: int) -> Snapshot:
    """Return the snapshot of a version that an offset needs.

    That the offset is another table's is found out before anything that follows from it.
    """
    try:
        snapshot = await log.load_snapshot(version)
    except TableError:
        if offset.table_id is not None:  # the table has existed
            await check_table_exists(log, version)
            await check_place(log, offset)
        raise
    check_offset(log, offset, snapshot.state)
    return snapshot


async def load_state_before(log: TableLog, start: Offset) -> TableState | None:
    """Return the state before an offset's version, None for version 0.

    Raises :class:`OffsetError` for another table.
    """
    try:
        state = await log.state_before(start.version)
    except TableError:
        if start.table_id is not None:  # the table has existed
            await check_table_exists(log, start.version)
            await check_place(log, start)
        raise
    if state is not None:
        check_offset(log, start, state)
        await check_last_commit(log, start)
    return state


async def check_last_commit(log: TableLog, at: Offset) -> None:
    """Raise :class:`OffsetError` if the version before an offset is not the commit that was read: a
    table that was put back from an older copy keeps its id, and goes on from there."""
    version = at.version - 1
    if at.commit_id is not None and await log.find_commit_id(version) not in (None, at.commit_id):
        raise OffsetError(
            "the commit there is another one than the one that was read",
            table=log.store.root,
            version=version,
            hint="the table was put back from an older copy, and has other versions since: reset "
            "the offset with `tailer offsets reset`, and write the table again",
        )


async def find_commit_tag(log: TableLog, version: int) -> str | None:
    """Return the tag of a version's commit, to compare it later; None without such a file.

    A sharing server is not asked for a version before the first one that is read: it may not share
    that one's changes, and its answers name the table.
    """
    if version < 0 or log.store.server_log:
        return None
    name = format_commit_name(version)
    listed = next((file.tag for file in log.listed if file.name == name), None)
    return listed or await log.find_tag(name)


async def check_listed(log: TableLog, at: Offset, version: int, tag: str | None) -> None:
    """Check, after the files of a version were listed, that they are of the offset's table.

    ``tag`` is that of the version's commit, seen before its state was read. Raises
    :class:`OffsetError` if another table has come in between.
    """
    if log.store.server_log:
        return  # its server names the table
    if tag is None or await log.find_tag(format_commit_name(version)) != tag:
        await confirm_table(log, at)
