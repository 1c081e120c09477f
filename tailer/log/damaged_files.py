"""The ways to a version: files of the log that turn out to be damaged are gone round.

A snapshot can be built from any complete checkpoint and the commits or log compactions after it. A
damaged checkpoint is replaced by an older one or by the commits, a damaged compaction by the
commits that it covers. What no other file of the log replaces stays an error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from tailer.delta.segment import LogFile, LogSegment, find_segments
from tailer.errors import DataLoss, TableError, TransientError

T = TypeVar("T")


class Damaged(Exception):  # never leaves this package
    """Some files of a segment can't be used, for a reason; without files, no segment can."""

    def __init__(self, files: Sequence[LogFile], reason: TableError | TransientError) -> None:
        super().__init__(files, reason)
        self.names = {f.name for f in files}
        self.reason = reason


async def read_by_any_way(
    segment: LogSegment,
    list_files: Callable[[], Awaitable[Sequence[LogFile]]],
    read: Callable[[LogSegment], Awaitable[T]],
) -> T:
    """Read a version from its segment, or from another one if ``read`` raises :class:`Damaged`.

    The other segments are the cheapest of the listed files without those that are damaged. If none
    is left, raises the reason of the first damage.
    """
    files: Sequence[LogFile] | None = None
    names: set[str] = set()
    first: Damaged | None = None
    while True:
        try:
            return await read(segment)
        except Damaged as e:
            if not e.names:
                raise e.reason from None
            first = first or e
            names |= e.names
        if files is None:
            files = await list_files()
        try:
            segment = next(
                find_segments([f for f in files if f.name not in names], segment.version)
            )
        except DataLoss:
            raise first.reason from None
