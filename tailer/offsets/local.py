"""Offsets in a local file that survives crashes.

The offset is written to a temporary file, synced, renamed over the old one, and the folder synced:
a reader sees either the old offset or the new one whole. A checksum detects damage, an epoch counts
owners, and a lock file, held for the owner's lifetime, keeps a second process out.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from tailer.changes import Offset
from tailer.errors import (
    OffsetError,
    OffsetHeld,
    TailerError,
    TransientError,
    may_heal,
    out_of_reach,
)
from tailer.files.durable import make_folder, make_private, open_private, sync_folder
from tailer.offsets import OffsetStore
from tailer.offsets.document import (
    FORMAT,
    decode_document,
    encode_document,
    make_document_name,
)
from tailer.offsets.lock_holder import find_lock_holder

_STANDBY_PAUSE_S = 0.5


class LocalOffsetStore(OffsetStore):
    """The offset of feed ``name`` in the folder ``folder``.

    With ``standby``, :meth:`acquire` waits while another process has it; without, it refuses.
    ``file`` is the name of the document, if it is not made from the feed's.
    """

    def __init__(
        self, folder: Path, name: str, *, standby: bool = False, file: str | None = None
    ) -> None:
        stem = file or f"{make_document_name(name)}.offset"
        self.path = folder / (file or f"{stem}.json")
        self._lock_path = folder / f"{stem}.lock"
        self._temporary = folder / f"{stem}.tmp"
        self.name = name
        self._standby = standby
        self._waiting_for: str | None = None
        self._holder = ""  # of the lock, when it was last refused; empty if unknown
        self.epoch = 0
        self._lock: int | None = None
        # The document's other content, as this owner last read or wrote it.
        self._offset: dict[str, Any] | None = None
        self._orders: dict[str, Any] = {}
        self._damage: OffsetError | None = None
        self._writing = anyio.Lock()

    async def acquire(self) -> None:
        try:
            while not await anyio.to_thread.run_sync(self._try_lock):
                if not self._standby:
                    who = self._holder or "another process"
                    raise OffsetHeld(who, self.name, path=str(self.path))
                self._waiting_for = f"{self._holder or 'another process'} on this machine"
                await anyio.sleep(_STANDBY_PAUSE_S)
        finally:
            self._waiting_for = None

    @property
    def waiting_for(self) -> str | None:
        return self._waiting_for

    def _try_lock(self) -> bool:
        if self._lock is not None:
            return True
        lock = self._open_lock()
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            try:
                self._check_holder(lock)
            finally:
                os.close(lock)
            return False
        except OSError as e:  # a file system without locks
            os.close(lock)
            raise self._make_lock_error(e) from None
        damage = None
        try:
            with suppress(FileNotFoundError):
                make_private(self.path)
            document = self._read_document()
        except OffsetError as e:
            # load() raises it; the owner of the offset may set it again.
            document, damage = None, e
        except OSError as e:
            os.close(lock)
            raise self._make_lock_error(e) from None
        except BaseException:
            os.close(lock)  # or a second attempt would own what it has not read
            raise
        self._lock, self._damage = lock, damage
        document = document or {}
        self.epoch = document.get("epoch", 0) + 1
        self._offset, self._orders = document.get("offset"), document.get("orders", {})
        return True

    def _open_lock(self) -> int:
        try:
            make_folder(self.path.parent, private=True)
            return open_private(self._lock_path, os.O_RDWR | os.O_CREAT)
        except OSError as e:
            raise self._make_lock_error(e) from None

    def _check_holder(self, lock: int) -> None:
        """Note who holds the lock; refuse to stand by for somebody who can't be a daemon."""
        holder = find_lock_holder(lock)
        if holder is not None and holder.strange:
            raise TransientError(
                f"{self._lock_path}: {holder} holds the lock of feed "
                f"{self.name!r}, but does not own it; end that process"
            )
        self._holder = "" if holder is None else str(holder)

    def _make_lock_error(self, e: OSError) -> TailerError:
        if may_heal(e):
            return out_of_reach(f"{self.path}: the offset's lock is unavailable", e)
        return OffsetError(
            f"the offset of feed {self.name!r} can't be kept there ({e.strerror})",
            path=str(self.path.parent),
            hint="set daemon.state to a folder that this user may write to",
        )

    async def load(self) -> Offset | None:
        document = await anyio.to_thread.run_sync(self._read_document)
        if document is None or document["offset"] is None:
            return None
        try:
            return Offset.from_json(document["offset"])
        except OffsetError as e:
            e.at(path=str(self.path))
            raise

    def _read_document(self) -> dict[str, Any] | None:
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as e:
            if may_heal(e):
                raise out_of_reach(f"{self.path}: the offset can't be read", e) from None
            raise OffsetError(
                f"the offset of feed {self.name!r} can't be read ({e.strerror})",
                path=str(self.path),
                hint="it must be a file that this user may read",
            ) from None
        return decode_document(text, self.name, str(self.path))

    async def save(self, offset: Offset) -> None:
        await self._save_document(offset.to_json(), None)

    async def load_orders(self) -> dict[str, Any]:
        if self._lock is not None:
            return self._orders
        document = await anyio.to_thread.run_sync(self._read_document)
        return {} if document is None else dict(document.get("orders", {}))

    async def save_orders(self, orders: dict[str, Any]) -> None:
        if self._damage is not None:
            raise self._damage  # or the file would be whole again, without an offset
        await self._save_document(None, orders)

    async def _save_document(
        self, offset: dict[str, Any] | None, orders: dict[str, Any] | None
    ) -> None:
        """Write the document with another offset or other orders; None: unchanged.

        What waits here while the offset is released must not overwrite the next owner's.
        """
        lock = self._lock
        async with self._writing:
            if self._lock != lock:
                raise TransientError(f"{self.path}: the offset was released before it was saved")
            offset = self._offset if offset is None else offset
            orders = self._orders if orders is None else orders
            try:
                await anyio.to_thread.run_sync(self._write_document, offset, orders)
            except OSError as e:
                raise TransientError(
                    f"{self.path}: the offset can't be saved ({e.strerror})"
                ) from e
            self._offset, self._orders, self._damage = offset, orders, None

    def _write_document(self, offset: dict[str, Any] | None, orders: dict[str, Any]) -> None:
        document: dict[str, Any] = {
            "format": FORMAT,
            "feed": self.name,
            "epoch": self.epoch,
            "offset": offset,
        }
        if orders:
            document["orders"] = orders
        make_folder(self.path.parent, private=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with os.fdopen(open_private(self._temporary, flags), "wb") as f:
            f.write(encode_document(document))
            f.flush()
            os.fsync(f.fileno())
        self._temporary.replace(self.path)
        sync_folder(self.path.parent)

    async def clear(self) -> None:
        try:
            await anyio.to_thread.run_sync(self._remove_document)
        except OSError as e:
            raise TransientError(f"{self.path}: the offset can't be removed ({e.strerror})") from e
        self._offset, self._orders, self._damage = None, {}, None

    def _remove_document(self) -> None:
        self.path.unlink(missing_ok=True)
        if self.path.parent.is_dir():
            sync_folder(self.path.parent)

    async def release(self) -> None:
        async with self._writing:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None
