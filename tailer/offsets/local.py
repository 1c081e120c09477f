"""Offsets in a local file that survives crashes.

Written to a temporary file, synced, renamed over the old one, and the folder synced: whoever reads
it sees the old offset or the new one whole. A checksum tells damage, an epoch counts owners, and a
lock file held for the owner's lifetime keeps a second process out.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio.to_thread

from tailer.changes import Offset
from tailer.errors import OffsetError, TransientError

__all__ = ["LocalOffsetStore"]

_FORMAT = 1


class LocalOffsetStore:
    """The offset of feed ``name`` in the folder ``folder``."""

    def __init__(self, folder: Path, name: str) -> None:
        safe = re.sub(r"[^A-Za-z0-9._-]", lambda m: f"%{ord(m[0]):02X}", name)
        self.path = folder / f"{safe}.offset.json"
        self.name = name
        self.epoch = 0
        self._lock: int | None = None

    async def acquire(self) -> None:
        """See :class:`tailer.offsets.OffsetStore`."""
        await anyio.to_thread.run_sync(self._acquire)

    def _acquire(self) -> None:
        if self._lock is not None:
            return
        lock = self._open_lock()
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise OffsetError(
                f"another process holds the offset of feed {self.name!r}",
                path=str(self.path),
                hint="two daemons must not run one feed; stop the other one",
            ) from None
        self._lock = lock
        try:
            document = self._read()
        except OffsetError:
            document = None  # load() says so; whoever owns the offset may set it anew
        self.epoch = (document["epoch"] if document else 0) + 1

    def _open_lock(self) -> int:
        path = self.path.with_suffix(".lock")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as e:
            raise OffsetError(
                f"the offset of feed {self.name!r} can't be kept there ({e.strerror})",
                path=str(path.parent),
                hint="give this user a folder that it may write to as daemon.state",
            ) from None

    async def load(self) -> Offset | None:
        """See :class:`tailer.offsets.OffsetStore`."""
        document = await anyio.to_thread.run_sync(self._read)
        if document is None:
            return None
        try:
            return Offset.from_json(document["offset"])
        except OffsetError as e:
            e.at(path=str(self.path))
            raise

    def _read(self) -> dict[str, Any] | None:
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            document = json.loads(text)
            checksum = document.pop("checksum")
            epoch, known = document["epoch"], document["format"] == _FORMAT
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            raise self._damaged("it is not what was written") from None
        if checksum != _checksum(document) or not isinstance(epoch, int) or not known:
            raise self._damaged("its checksum does not fit")
        if document.get("feed") != self.name:
            raise self._damaged(f"it belongs to feed {document.get('feed')!r}")
        return document  # type: ignore[no-any-return]  # checked above

    def _damaged(self, what: str) -> OffsetError:
        return OffsetError(
            f"the offset file of feed {self.name!r} is damaged: {what}",
            path=str(self.path),
            hint="restore it, or set it anew with `tailer offsets set`",
        )

    async def save(self, offset: Offset) -> None:
        """See :class:`tailer.offsets.OffsetStore`."""
        try:
            await anyio.to_thread.run_sync(self._write, offset)
        except OSError as e:
            raise TransientError(f"{self.path}: {e.strerror}") from e

    def _write(self, offset: Offset) -> None:
        document: dict[str, Any] = {
            "format": _FORMAT,
            "feed": self.name,
            "epoch": self.epoch,
            "offset": offset.to_json(),
        }
        document["checksum"] = _checksum(document)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".tmp")
        with temporary.open("wb") as f:
            f.write(json.dumps(document).encode() + b"\n")
            f.flush()
            os.fsync(f.fileno())
        temporary.replace(self.path)
        self._sync_folder()

    def _sync_folder(self) -> None:
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    async def clear(self) -> None:
        """See :class:`tailer.offsets.OffsetStore`."""
        self.path.unlink(missing_ok=True)
        if self.path.parent.is_dir():
            await anyio.to_thread.run_sync(self._sync_folder)

    async def release(self) -> None:
        """See :class:`tailer.offsets.OffsetStore`."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _checksum(document: dict[str, Any]) -> str:
    return sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
