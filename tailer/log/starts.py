"""Where a feed starts: a version, a time, or one of a few words."""

from __future__ import annotations

from msgspec import structs

from tailer.delta.snapshot import TableState
from tailer.errors import ConfigError, DataLoss, TableError
from tailer.log.table import TableLog
from tailer.log.times import first_version, is_moment, is_version
from tailer.offset import Offset

#: Where a feed can start, for messages.
STARTS = "latest, earliest, snapshot, a version or a time like 2026-01-31T12:00:00Z"


def check_start(start: str) -> None:
    """Raise :class:`ConfigError` if ``start`` is invalid for any table."""
    if start not in ("latest", "earliest", "snapshot") and not is_moment(start):
        raise ConfigError(f"the start is {start!r}, and must be {STARTS}")


async def find_start_offset(log: TableLog, start: str) -> Offset:
    """Return the first offset of a feed that starts at ``start``.

    ``latest``: the next commit after the newest one. ``earliest``: the first commit whose changes
    can be read, inclusive. ``snapshot``: all rows of the newest version, then what follows it. A
    version or time is inclusive: the changes of that version come first.
    """
    check_start(start)
    match start:
        case "latest":
            return Offset(await log.latest_version() + 1)
        case "earliest":
            return Offset(await log.earliest_version())
        case "snapshot":
            return Offset(await log.latest_version(), snapshot=True)
    version = await first_version(log, start)
    if is_version(start):
        newest = await log.latest_version()
        if version > newest + 1:
            raise TableError(
                f"the start is version {version}, and the newest is {newest}",
                table=log.store.root,
                hint="start at latest to wait for the next version",
            )
    return Offset(version)


async def find_start_to_keep(log: TableLog, start: str) -> Offset:
    """Return :func:`find_start_offset` with the id of the current table.

    A feed that resumes from it later can then detect another table.
    """
    offset = await find_start_offset(log, start)
    try:
        if offset.snapshot or not offset.version:
            state: TableState | None = (await log.load_snapshot(offset.version)).state
        else:
            state = await log.state_before(offset.version)
    except DataLoss:  # the feed's policy decides how to handle it
        return offset
    return structs.replace(offset, table_id=state.table_id if state else None)
