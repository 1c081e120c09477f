"""Temporary folders of a process, which are removed after it ends, in any way.

A process that is killed leaves its folders behind. The next process removes those that no process
holds any more. A lock shows which are held, so process numbers do not matter.
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

_LOCK = "lock"
_PREFIX = "tailer-"


class SpillFolder:
    """A new folder below ``parent`` (None: the system's temporary folder), for its owner alone."""

    def __init__(self, prefix: str, parent: str | Path | None = None) -> None:
        parent = Path(parent or tempfile.gettempdir())
        sweep_folders(parent, prefix)
        # It gets its name only after it is locked, or another process could take it for abandoned.
        made = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}new-", dir=parent))
        self._lock = _lock_file(made / _LOCK)
        self.folder = made.rename(parent / f"{prefix}{uuid.uuid4().hex}")

    def close(self) -> None:
        """Remove the folder with its content."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


class ReadAgain(io.RawIOBase):
    """A file without a name, read from its beginning, independently of other readers."""

    def __init__(self, file: Any) -> None:
        super().__init__()
        self._file = file
        self._at = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Read the next bytes into ``buffer``, and return their number."""
        count = os.preadv(self._file.fileno(), [buffer], self._at)
        self._at += count
        return count


class SpillFile:
    """A file without a name, which is closed when it and its readers are no longer referenced."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile()  # noqa: SIM115  # closed below

    def __del__(self) -> None:
        file = getattr(self, "file", None)
        if file is not None:
            file.close()

    def reopen(self) -> ReadAgain:
        """Return a reader from the beginning on, which the spool outlives."""
        return ReadAgain(self.file)


def sweep_folders(parent: str | Path | None = None, prefix: str = _PREFIX) -> None:
    """Remove the folders of processes that have ended. Those of other users are left alone."""
    folder = Path(parent or tempfile.gettempdir())
    with suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208  # no path for each of thousands
            if name.startswith(prefix):
                _remove_if_left(folder / name)


def _remove_if_left(folder: Path) -> None:
    if folder.is_symlink() or not (folder / _LOCK).is_file():
        return
    descriptor = _lock_file(folder / _LOCK)
    if descriptor is not None:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _lock_file(file: Path) -> int | None:
    """Lock a file, and return its descriptor; None if another process holds the lock."""
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
