"""A folder for what a process keeps on the disk while it runs.

It goes with the process, also with one that was killed: whoever makes the next one removes those
that nobody holds any more. Which are held is told by a lock, so it does not matter whose process
numbers are whose.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import uuid
from pathlib import Path

__all__ = ["Scratch"]

_LOCK = "lock"


class Scratch:
    """A new folder below ``parent`` (None: the system's temporary folder), for its owner alone."""

    def __init__(self, prefix: str, parent: Path | None = None) -> None:
        parent = parent or Path(tempfile.gettempdir())
        _sweep(parent, prefix)
        # It has its name only once it is locked, or another process could take it for left over.
        made = Path(tempfile.mkdtemp(prefix=".tailer-new-", dir=parent))
        self._lock = _locked(made / _LOCK)
        self.folder = made.rename(parent / f"{prefix}{uuid.uuid4().hex}")

    def close(self) -> None:
        """Remove it with all that is in it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _locked(file: Path) -> int | None:
    """The descriptor of a file that is now locked; None if another process holds it."""
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _sweep(parent: Path, prefix: str) -> None:
    """Remove the folders that nobody holds. Those of other users are left alone."""
    for folder in parent.glob(f"{prefix}*"):
        if folder.is_symlink() or not (folder / _LOCK).is_file():
            continue
        descriptor = _locked(folder / _LOCK)
        if descriptor is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)
