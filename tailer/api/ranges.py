"""Which versions a read has: from its words to an offset and a last version."""

from __future__ import annotations

from msgspec import Struct

from tailer.delta.snapshot import Snapshot
from tailer.errors import ConfigError, TableError
from tailer.log.listed import ListedLog
from tailer.log.same_table import check_place
from tailer.log.starts import find_start_offset
from tailer.log.table import TableLog
from tailer.log.times import first_version, last_version
from tailer.offset import Offset


class Range(Struct, frozen=True):
    """From the offset ``first`` to the version of ``end``, inclusive; nothing if that is before."""

    first: Offset
    end: Snapshot

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to read."""
        return self.first.version > self.end.version


def check_range(first: int, last: int) -> None:
    """Raise :class:`ConfigError` if a range of versions ends before it starts."""
    if last < first:
        raise ConfigError(
            f"the range ends at version {last}, before it starts at {first}; exchange the two"
        )


async def find_range(log: TableLog, start: str | Offset, end: str | None) -> Range:
    """Return a bounded range.

    ``start`` is an offset that a read continues from, a version, a time, or ``earliest``,
    ``latest`` or ``snapshot``; ``end`` a version or a time, None for the newest version. Raises
    :class:`ConfigError` for a range that ends before it starts, :class:`TableError` for versions
    that do not exist.
    """
    first = start if isinstance(start, Offset) else await _find_first(log, start)
    last = None if end is None else await last_version(log, end)
    try:
        newest = await log.load_snapshot(last)
    except TableError:
        if last is not None:
            _check_newest(log, "ending", last, await log.latest_version())
        raise
    found = Range(first, newest)
    if found.is_empty and start == "snapshot":
        raise ConfigError(f"a snapshot is of the newest version, {first.version}; leave end out")
    if found.is_empty and isinstance(start, Offset):
        await check_place(log, first)
    elif found.is_empty and start != "latest":
        _check_newest(log, "starting", first.version, await log.latest_version())
        check_range(first.version, newest.version)
    return found


async def prefetch_range(log: TableLog, versions: Range) -> None:
    """Fetch what the read begins with, if the log is one that was listed once."""
    if isinstance(log, ListedLog) and not versions.first.snapshot:
        await log.prefetch_start(versions.first.version)


async def _find_first(log: TableLog, start: str) -> Offset:
    if start in ("earliest", "latest", "snapshot"):
        return await find_start_offset(log, start)
    return Offset(await first_version(log, start))


def _check_newest(log: TableLog, name: str, version: int, newest: int) -> None:
    """Raise :class:`TableError` if a version is later than the newest."""
    if version > newest:
        raise TableError(
            f"the {name} version is {version}, and the newest is {newest}",
            table=log.store.root,
            hint="ask for versions that exist",
        )
