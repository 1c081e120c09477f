"""Whether a path still names the file that was opened there."""

from __future__ import annotations

from pathlib import Path

from tailer.errors import TargetRefused, TransientError


class SameFile:
    """The file of a path. ``written``: the feed has written to it before, so it has to be there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: tuple[int, int] | None = None
        self.written = False

    def begin(self) -> None:
        """Take whatever file is there. Raises :class:`TargetRefused` if it has to be and is not."""
        self._known = None
        if self.written and not self._path.exists():
            raise TargetRefused(
                f"{self._path} is not there, and the feed has written to it; restore it, or begin "
                "again with `tailer offsets reset`"
            )

    def note_opened_file(self) -> None:
        """Note which file was opened."""
        self._known = self._find_identity()

    def check(self) -> None:
        """Raise :class:`TransientError`, after which it is opened anew, if the path names another
        file than the one that was opened, or none."""
        if self._known is not None and self._find_identity() != self._known:
            self._known = None
            raise TransientError(
                f"{self._path} was removed, or is another file now; the feed restarts from "
                "the state found there"
            )

    def _find_identity(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_dev, found.st_ino
