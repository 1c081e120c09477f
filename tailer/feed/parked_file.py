"""The file that a feed parks refused rows in: how full it is, and where it ends."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from tailer.errors import TargetRefused

_CHUNK_BYTES = 1024 * 1024


class ParkedFile(Struct):
    """A feed's file of parked rows, of at most about ``bytes_max``; it need not exist."""

    feed: str
    path: Path
    bytes_max: int
    #: Which file was counted, how far, and its lines so far.
    _inode: int = 0
    _counted: int = 0
    _rows: int = 0

    def check_room(self) -> None:
        """Raise :class:`TargetRefused` if the file has come to its limit."""
        size = self.path.stat().st_size if self.path.exists() else 0
        if size >= self.bytes_max:
            raise TargetRefused(
                f"the feed {self.feed!r} parks no more rows: {self.path} has {size} bytes, and its "
                f"limit, `park_bytes_max`, is {self.bytes_max}; deliver its rows with `tailer "
                "parked replay`, drop them with `tailer parked drop`, or raise the limit"
            )

    def measure(self) -> dict[str, int]:
        """Return the ``rows`` of the file, one that was parked again counted again, its ``bytes``,
        and ``bytes_max``. Blocking; reads what was added since the last call."""
        try:
            with self.path.open("rb") as file:
                inode = self.path.stat().st_ino
                if inode != self._inode or file.seek(0, 2) < self._counted:
                    self._inode, self._counted, self._rows = inode, 0, 0
                file.seek(self._counted)
                while chunk := file.read(_CHUNK_BYTES):
                    self._counted += len(chunk)
                    self._rows += chunk.count(b"\n")
        except FileNotFoundError:
            self._inode = self._counted = self._rows = 0
        return {"rows": self._rows, "bytes": self._counted, "bytes_max": self.bytes_max}
