"""Files and folders that survive a power cut, and those for their owner alone.

A synced file is not safe before its folder is synced too: the name of a new file is an entry of its
folder, and so is that of a new folder. What is private has its mode whatever the process's umask,
and whatever an earlier version or a restored backup gave it.
"""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path


def make_folder(folder: Path, *, private: bool = False) -> None:
    """Create a folder and its missing parents, and sync every folder that got an entry.

    ``private``: what is created is for its owner alone; the mode of a folder that exists is its
    operator's. Raises :class:`OSError`.
    """
    missing = []
    at = folder
    while not at.is_dir() and at != at.parent:
        missing.append(at)
        at = at.parent
    for made in reversed(missing):
        made.mkdir(mode=0o700 if private else 0o777, exist_ok=True)
        if private:
            made.chmod(0o700)  # the umask may have taken bits that the owner needs
        sync_folder(made.parent)


def open_private(path: Path, flags: int) -> int:
    """Open a file, which is for its owner alone from then on. Raises :class:`OSError`."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode) and stat.S_IMODE(mode) != 0o600:
        with suppress(PermissionError):  # only its owner and root may
            os.fchmod(descriptor, 0o600)
    return descriptor


def create_private(path: Path) -> int:
    """Open a file to append to it. One that is created is for its owner alone; one that exists
    keeps its mode. Raises :class:`OSError`."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def make_private(path: Path) -> None:
    """Take a file from everybody but its owner. Raises :class:`OSError` if there is none."""
    os.close(open_private(path, os.O_RDONLY))


def is_everyones(folder: Path) -> bool:
    """Return whether every user may rename and remove the files of a folder."""
    try:
        mode = folder.stat().st_mode
    except OSError:
        return False
    return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX


def sync_folder(folder: Path) -> None:
    """Write the entries of a folder to the disk. Raises :class:`OSError`."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        os.sync()  # a folder may be writable and not readable
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def try_place(path: Path) -> None:
    """Try whether a file could be written, or a folder made, at a path, without leaving anything.

    A file without a name is written to the folder that would hold it or its first missing parent.
    Raises :class:`OSError`.
    """
    if path.exists() and not path.is_dir():
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        path = path.parent
    folder = path
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    # On file systems that have files without a name, it is one.
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        file.write(bytes(4096))
        os.fsync(file.fileno())  # a full disk may say so only now
