"""The error for a data file that pyarrow can't read."""

from __future__ import annotations

import pyarrow as pa

from tailer.changes import ChangeFile
from tailer.errors import CorruptLog

__all__ = ["UNREADABLE", "unreadable"]

#: What pyarrow raises where a file is damaged.
UNREADABLE = (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError)


def unreadable(file: ChangeFile, e: Exception) -> CorruptLog:
    """The error for a data file that pyarrow can't read: one of ``UNREADABLE``."""
    return CorruptLog(
        f"the data file can't be read ({next(iter(str(e).splitlines()), 'no reason given')})",
        version=file.version,
        path=file.path,
        hint="restore it from a backup, or skip this version",
    )
