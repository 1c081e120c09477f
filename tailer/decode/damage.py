"""The error for a data file that pyarrow can't read."""

from __future__ import annotations

import pyarrow as pa

from tailer.changes import ChangeFile
from tailer.errors import CorruptLog, TailerError, UnsupportedTable, may_heal, out_of_reach

__all__ = ["UNREADABLE", "unreadable"]

#: What pyarrow raises where a file is damaged.
UNREADABLE = (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError)


def unreadable(file: ChangeFile, e: Exception) -> TailerError:
    """The error for a data file that pyarrow can't read: one of ``UNREADABLE``."""
    if may_heal(e):  # a disk that is away is no damage
        return out_of_reach(f"version {file.version}, {file.path}: the file can't be read", e)
    reason = next(iter(str(e).splitlines()), "no reason given")
    if "crypt" in reason:  # as in "encrypted metadata" and "cannot decrypt"
        return UnsupportedTable(
            "the data file is encrypted, and Parquet's encryption is not read",
            version=file.version,
            path=file.path,
            hint="rewrite it without encryption, or skip this version",
        )
    return CorruptLog(
        f"the data file can't be read ({reason})",
        version=file.version,
        path=file.path,
        hint="restore it from a backup, or skip this version",
    )
