"""What a process keeps on the disk for a while: folders that end with it, however it ends.

A process that is killed leaves its folders behind. The next one removes those that nobody holds any
more. A lock tells which are held, so it does not matter whose process numbers are whose.
"""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["ReadAgain", "SpillFolder", "sweep"]

_LOCK = "lock"
_PREFIX = "tailer-"


class SpillFolder:
    """A new folder below ``parent`` (None: the system's temporary folder), for its owner alone."""

    def __init__(self, prefix: str, parent: str | Path | None = None) -> None:
        parent = Path(parent or tempfile.gettempdir())
        sweep(parent, prefix)
        # It has its name only once it is locked, or another process could take it for left over.
        made = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}new-", dir=parent))
        self._lock = _locked(made / _LOCK)
        self.folder = made.rename(parent / f"{prefix}{uuid.uuid4().hex}")

    def close(self) -> None:
        """Remove it with all that is in it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


class ReadAgain(io.RawIOBase):
    """A file that has no name any more, read from its beginning, beside all others who do."""

    def __init__(self, file: Any) -> None:
        super().__init__()
        self._file = file
        self._at = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """The next bytes."""
        count = os.preadv(self._file.fileno(), [buffer], self._at)
        self._at += count
        return count


def sweep(parent: str | Path | None = None, prefix: str = _PREFIX) -> None:
    """Remove the folders of processes that have ended. Those of other users are left alone."""
    with suppress(OSError):
        for folder in Path(parent or tempfile.gettempdir()).glob(f"{prefix}*"):
            _remove_if_left(folder)


def _remove_if_left(folder: Path) -> None:
    if folder.is_symlink() or not (folder / _LOCK).is_file():
        return
    descriptor = _locked(folder / _LOCK)
    if descriptor is not None:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


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
