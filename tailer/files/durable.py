"""Folders that survive a power cut.

A synced file is not safe before its folder is synced too: the name of a new file is an entry of its
folder, and so is that of a new folder.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["make_folder", "sync_folder"]


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents, and sync every folder that got an entry.

    Raises :class:`OSError`.
    """
    missing = []
    at = folder
    while not at.is_dir() and at != at.parent:
        missing.append(at)
        at = at.parent
    folder.mkdir(parents=True, exist_ok=True)
    for made in reversed(missing):
        sync_folder(made.parent)


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
