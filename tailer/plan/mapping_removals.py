"""Column mapping that was removed from a table, and perhaps added again: in which versions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import aclosing

from tailer.changes import Offset
from tailer.decode.naming import Removal, find_removal
from tailer.delta.features import supports_feature
from tailer.delta.snapshot import TableState
from tailer.delta.types import StructType, all_fields
from tailer.log.follow import FollowOptions, follow_commits
from tailer.log.table import TableLog

#: The physical name that writers give a column created under a mapping.
_GENERATED = r"col-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"


async def find_mapping_removals(
    log: TableLog, first: int, last: int, end: TableState, before: TableState | None = None
) -> tuple[Removal, ...]:
    """Return the commits of versions ``first`` to ``last`` that removed a column mapping, in order.

    ``end`` is the state at ``last``, ``before`` the one ahead of ``first``, if it is known. The
    commits are only read if these two don't rule a removal out. Raises the errors of reading the
    commits.
    """
    if first > last or not _was_mapped(end):
        return ()
    before = before or await log.state_before(first)
    if before is not None and _has_same_mapping(before, end):
        return ()
    found = []
    options = FollowOptions(same_table=False)
    async with aclosing(follow_commits(log, Offset(first), last, options)) as commits:
        async for commit in commits:
            was = commit.before
            if was is not None and (each := find_removal(commit.version, was, commit.after)):
                found.append(each)
    return tuple(found)


class KnownRemovals:
    """The removals between a query's schema and the versions it reads, whose range grows.

    Each commit is read once. ``target`` is the schema's state with its version.
    """

    def __init__(self, log: TableLog, target: tuple[TableState, int]) -> None:
        self._log = log
        self._end, self._high = target
        self._low = self._high + 1
        self._found: tuple[Removal, ...] = ()

    async def find_removals(self, first: int, last: int, end: TableState) -> tuple[Removal, ...]:
        """Return the removals of versions ``first`` to ``last``, and from there to the target.

        ``end`` is the state at ``last``. May return more.
        """
        if first < self._low:
            before = await find_mapping_removals(self._log, first, self._high, self._end)
            self._low, self._found = first, before
        if last > self._high:
            after = await find_mapping_removals(self._log, self._high + 1, last, end, self._end)
            self._high, self._end, self._found = last, end, (*self._found, *after)
        return self._found


def _was_mapped(state: TableState) -> bool:
    """Return whether the table has or may have had a mapping.

    Removing a mapping leaves its mode, or its feature, or, if the feature is dropped too, the one
    that protects the log from before that.
    """
    return "delta.columnMapping.mode" in state.metadata.configuration or any(
        supports_feature(state.protocol, feature)
        for feature in ("columnMapping", "checkpointProtection")
    )


def _has_same_mapping(before: TableState, after: TableState) -> bool:
    """Return whether one mapping certainly reaches from one state to the other.

    A new mapping uses the columns' names as physical ones. So a generated name that is in both
    states was there all the time.
    """
    if "none" in (before.mapping, after.mapping):
        return False
    known = set(_list_columns(before.schema))
    return any(
        column in known and re.fullmatch(_GENERATED, column[1])
        for column in _list_columns(after.schema)
    )


def _list_columns(schema: StructType) -> Iterator[tuple[int | None, str]]:
    """Return the id and physical name of each column, nested ones too."""
    return ((field.field_id, field.physical_name) for field in all_fields(schema))
