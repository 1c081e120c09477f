"""The error for a data file that pyarrow can't read."""

from __future__ import annotations

from tailer.changes import ChangeFile
from tailer.delta.damaged_bytes import UNREADABLE, library_reason, shows_damage
from tailer.errors import (
    CorruptLog,
    TailerError,
    TransientError,
    UnsupportedTable,
    may_heal,
    out_of_reach,
)

__all__ = ["MAY_BE_SOUND", "UNREADABLE", "make_unreadable_error"]


#: What to do about a file that the library can't read, and that is not shown to be damaged.
MAY_BE_SOUND = (
    "the file may well be sound: if DuckDB or Spark reads it, rewrite it with that one and report "
    "this; if no reader does, skip this version"
)


def make_unreadable_error(file: ChangeFile, e: Exception) -> TailerError:
    """Return the error for a data file that pyarrow can't read: one of ``UNREADABLE``.

    The file is called damaged only where its bytes are proved wrong.
    """
    if may_heal(e):  # an unavailable disk is not damage
        return out_of_reach(f"version {file.version}, {file.path}: the file can't be read", e)
    if isinstance(e, OSError) and e.errno is not None:
        return TransientError(
            f"version {file.version}, {file.path}: the data file can't be read now "
            f"({e.strerror or e}); check the disk or the network that it lies on"
        )
    reason = library_reason(e)
    if "crypt" in reason:  # as in "encrypted metadata" and "cannot decrypt"
        what = "the data file is encrypted, and Parquet's encryption is not read"
        hint = "rewrite it without encryption, or skip this version"
    elif shows_damage(e):
        return CorruptLog(
            f"the data file can't be read {reason}",
            version=file.version,
            path=file.path,
            hint="restore it from a backup, or skip this version",
        )
    elif isinstance(e, MemoryError):
        what = f"the memory of this process does not suffice for the data file {reason}"
        hint = "give it more memory, or lower batch_bytes_max"
    else:
        what = f"the library that reads Parquet can't read the data file {reason}"
        hint = MAY_BE_SOUND
    return UnsupportedTable(what, version=file.version, path=file.path, hint=hint)
