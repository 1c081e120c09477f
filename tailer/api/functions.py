"""The package's functions: ``tailer.read``, ``tail``, ``snapshot``, ``history``, and cursors.

They have the words, the defaults and the errors of the command line. All of them work without an
event loop and inside of one, in any thread, and in a process that was forked.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, TypeAlias

from tailer.api.arguments import (
    check_address,
    check_from,
    check_moment,
    check_options,
    check_whole,
)
from tailer.api.background import Background
from tailer.api.batches import Batch
from tailer.api.cursor import Cursor
from tailer.api.options import ReadOptions
from tailer.api.streams import Changes, Rows, Source, Tail
from tailer.changes import Offset
from tailer.log.history import HistoryEntry
from tailer.plan.rules import ChangeSource

__all__ = [
    "Batch",
    "Changes",
    "Cursor",
    "HistoryEntry",
    "Offset",
    "Rows",
    "Tail",
    "history",
    "read",
    "snapshot",
    "tail",
]

#: A version, or a time: aware, or in UTC.
Moment: TypeAlias = int | str | dt.datetime | dt.date
Table: TypeAlias = str | PathLike[str]


def read(  # noqa: PLR0913 - the options of the command
    table: Table,
    *,
    start: Moment | None = None,
    end: Moment | None = None,
    after: Cursor | Offset | str | None = None,
    where: str | None = None,
    select: str | Sequence[str] | None = None,
    key: str | Sequence[str] | None = None,
    change_source: ChangeSource = "auto",
    with_ids: bool = False,
    own_prefix: str | None = None,
    writer_timezone: str | None = None,
    page_checksums: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> Changes:
    """Return the changes of a range of versions, up to the newest one at the first use.

    Columns are the table's at the last version, then ``_change_type``, ``_commit_version`` and
    ``_commit_timestamp``.

    - ``table``: a path or an address, as for ``tailer read``.
    - ``start``: the first version, or a time; ``earliest`` (the default), ``latest`` (what comes
      after the newest), or ``snapshot``: all rows of the newest version, as inserts.
    - ``end``: the last version, or a time; by default the newest.
    - ``after``: a :class:`Cursor`, the offset of a batch, or its text: the read continues there. A
      cursor that was never used begins at ``start``.
    - ``where``: a condition in SQL: only the rows that meet it.
    - ``select``: a list as in SQL, as one text or several: names and expressions.
    - ``key``: columns by which deletes and inserts are paired into updates, where changes are
      derived.
    - ``change_source``: ``auto``, ``cdf`` (change data files) or ``derived``.
    - ``with_ids``: add ``_event_id``, ``_origin`` and ``_row_id``; ``own_prefix`` begins their
      names.
    - ``writer_timezone``: the time zone of partition timestamps without one; UTC by default.
    - ``page_checksums``: check the checksums that Parquet pages may have.
    - ``storage_options``: options of the store, also in the spelling of deltalake.

    Raises :class:`tailer.errors.ConfigError` for wrong arguments; those that the table has to be
    asked about at the first use, as all other errors.
    """
    options = ReadOptions.from_options(
        "tailer.read", where=where, select=select, key=key, change_source=change_source,
        with_ids=with_ids, own_prefix=own_prefix, writer_timezone=writer_timezone,
        page_checksums=page_checksums,
    )  # fmt: skip
    first = check_from(start, after)
    last = None if end is None else check_moment("end", end)
    return Changes(_make_source(table, storage_options, options), after, first, last)


def tail(  # noqa: PLR0913 - the options of the command
    table: Table,
    *,
    start: Moment | None = None,
    end: int | None = None,
    after: Cursor | Offset | str | None = None,
    where: str | None = None,
    select: str | Sequence[str] | None = None,
    key: str | Sequence[str] | None = None,
    change_source: ChangeSource = "auto",
    with_ids: bool = False,
    own_prefix: str | None = None,
    writer_timezone: str | None = None,
    page_checksums: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> Tail:
    """Follow a table: return its changes as they are committed, by ``for`` or ``async for``.

    ``start`` is ``latest`` by default, and ``earliest`` for a cursor that was never used; ``end``
    is the version after which it ends. Each batch has the schema of its versions. Errors that may
    pass are waited out, as the daemon does. The other arguments and the errors are those of
    :func:`read`.
    """
    options = ReadOptions.from_options(
        "tailer.tail", where=where, select=select, key=key, change_source=change_source,
        with_ids=with_ids, own_prefix=own_prefix, writer_timezone=writer_timezone,
        page_checksums=page_checksums,
    )  # fmt: skip
    last = None if end is None else check_whole("end", end)
    return Tail(
        _make_source(table, storage_options, options), after, check_from(start, after), last
    )


def snapshot(
    table: Table,
    version: Moment | None = None,
    *,
    where: str | None = None,
    select: str | Sequence[str] | None = None,
    writer_timezone: str | None = None,
    page_checksums: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> Rows:
    """Return the rows of a table at a version or a time, by default the newest at the first use.

    Columns are the table's. The arguments and the errors are those of :func:`read`.
    """
    options = ReadOptions.from_options(
        "tailer.snapshot", where=where, select=select, writer_timezone=writer_timezone,
        page_checksums=page_checksums,
    )  # fmt: skip
    at = None if version is None else check_moment("version", version)
    return Rows(_make_source(table, storage_options, options), at)


def history(
    table: Table,
    limit: int | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> list[HistoryEntry]:
    """Return the commits that the log still has, newest first, at most ``limit``.

    Raises :class:`tailer.errors.TableError` for a log without commits, or with damaged ones.
    """
    most = None if limit is None else check_whole("limit", limit)
    source = _make_source(table, storage_options)
    background = Background()
    try:
        return background.run(source.history())[:most]
    finally:
        background.close()


def _make_source(table: Any, storage_options: Any, options: ReadOptions | None = None) -> Source:
    address = check_address("table", table)
    return Source(address, check_options(storage_options), options or ReadOptions())
