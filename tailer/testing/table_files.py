"""Where a :class:`~tailer.testing.table.TableBuilder` puts what it writes."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Protocol

__all__ = ["FolderFiles", "TableFiles"]


class TableFiles(Protocol):
    """The files of one table by location: a path from the table's root."""

    def put(
        self, location: str, data: bytes, *, mtime_ms: int | None = None, new: bool = False
    ) -> None:
        """Write a file as a whole. With ``new`` raises FileExistsError if it exists."""

    def read(self, location: str) -> bytes:
        """Return a file's bytes."""

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder."""

    def remove(self, location: str) -> None:
        """Remove a file, if it is there."""

    def uri(self, location: str) -> str:
        """Return the absolute URI of a location."""


class FolderFiles:
    """Files in a local folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(
        self, location: str, data: bytes, *, mtime_ms: int | None = None, new: bool = False
    ) -> None:
        """See :class:`TableFiles`. A file that is ``new`` appears whole."""
        path = self.folder / location
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_name(f".{uuid.uuid4()}.tmp") if new else path
        written.write_bytes(data)
        if mtime_ms is not None:
            os.utime(written, ns=(mtime_ms * 1_000_000,) * 2)
        if new:
            try:
                os.link(written, path)
            finally:
                written.unlink()

    def read(self, location: str) -> bytes:
        """See :class:`TableFiles`."""
        return (self.folder / location).read_bytes()

    def names(self, folder: str) -> list[str]:
        """See :class:`TableFiles`."""
        return [path.name for path in (self.folder / folder).iterdir()]

    def remove(self, location: str) -> None:
        """See :class:`TableFiles`."""
        (self.folder / location).unlink(missing_ok=True)

    def uri(self, location: str) -> str:
        """See :class:`TableFiles`."""
        return (self.folder / location).absolute().as_uri()
