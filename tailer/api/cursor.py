"""A saved place in a table's changes: read from it, and save it when the work is done."""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote

from tailer.api.arguments import check_address, check_options
from tailer.api.background import Background
from tailer.changes import Offset
from tailer.errors import ConfigError, OffsetError, OffsetHeld
from tailer.offsets import LEASE_S, OffsetStore
from tailer.offsets.local import LocalOffsetStore
from tailer.storage import is_local, open_offset_store, storage_of


class Cursor:
    """Where a read continues, kept in a file or in a daemon's state.

    ``address`` is a file, or the address of the state of a feed: ``s3://bucket/state/orders`` is
    the place of the feed ``orders`` of a daemon whose state is ``s3://bucket/state``. Only one
    process has it at a time. It is used in a ``with`` block (or ``async with``)::

        with Cursor("orders.cursor") as cursor:
            for batch in tailer.read("orders", after=cursor):
                ...

    A batch that was handed out counts as done. The place is saved when the block ends without an
    error, and by :meth:`save` before that; after an error the next read begins at the place that
    was saved last. A block that begins raises :class:`tailer.errors.OffsetHeld` while another
    process has the cursor, :class:`tailer.errors.OffsetError` if what was saved is damaged, and
    :class:`tailer.errors.ConfigError` for an address that can't be used.
    """

    def __init__(
        self, address: str | PathLike[str], *, storage_options: Mapping[str, Any] | None = None
    ) -> None:
        self.address = check_address("cursor", address)
        if not self.address.rstrip("/"):
            raise ConfigError(f"the cursor {address!r} is not the path of a file or an address")
        self._options = check_options(storage_options)
        self._store: OffsetStore | None = None
        #: The store while it is opened, held or released.
        self._opened: OffsetStore | None = None
        self._background: Background | None = None
        self._saved: Offset | None = None
        self._at: Offset | None = None

    @property
    def offset(self) -> Offset | None:
        """Return where the next read begins; None for a cursor that was never used."""
        return self._at

    def move(self, offset: Offset) -> None:
        """Let the next read begin at an offset, if that is not before the place. Raises
        :class:`ConfigError` outside of a block."""
        self.check()
        if self._at is None or offset.position > self._at.position:
            self._at = offset

    def check(self) -> None:
        """Raise :class:`ConfigError` for a cursor that is not in use."""
        if self._store is None:
            raise ConfigError(
                f"the cursor {self.address} is not open; "
                "read in its block: with tailer.Cursor(...) as cursor"
            )

    def save(self) -> None:
        """Save the place now: what was handed out does not come again. Raises the errors of
        :meth:`tailer.offsets.OffsetStore.save`."""
        self.check()
        assert self._background is not None
        self._background.run(self._save_place())

    def reset(self) -> None:
        """Forget the place: the next read begins as one of a new cursor."""
        self.check()
        assert self._background is not None
        self._background.run(self._clear_place())

    def __enter__(self) -> Self:
        self._begin_use()
        assert self._background is not None
        try:
            self._background.run(self._open_place())
        except BaseException:
            self._close_background()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None
    ) -> None:
        assert self._background is not None
        try:
            if kind is None:
                self._background.run(self._save_place())
        finally:
            self._close_background()

    async def __aenter__(self) -> Self:
        self._begin_use()
        assert self._background is not None
        try:
            await self._background.run_from_loop(self._open_place())
        except BaseException:
            await self._close_from_loop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None
    ) -> None:
        assert self._background is not None
        try:
            if kind is None:
                await self._background.run_from_loop(self._save_place())
        finally:
            await self._close_from_loop()

    def _begin_use(self) -> None:
        if self._background is not None:
            raise ConfigError(f"the cursor {self.address} is in use in this program already")
        self._background = Background(self._release_store)

    def _close_background(self) -> None:
        background, self._background, self._store = self._background, None, None
        if background is not None:
            background.close()

    async def _close_from_loop(self) -> None:
        background, self._background, self._store = self._background, None, None
        if background is not None:
            await background.close_from_loop()

    async def _release_store(self) -> None:
        if self._opened is not None:
            await self._opened.release()

    async def _open_place(self) -> None:
        self._opened = store = _open_store(self.address, self._options)
        try:
            await store.acquire()
        except OffsetHeld:
            raise
        except OffsetError as e:
            e.hint = "name a place that this user may write to"
            raise
        try:
            self._at = self._saved = await store.load()
        except OffsetError as e:
            e.hint = "to begin again, remove it"
            raise
        self._store = store

    async def _save_place(self) -> None:
        if self._store is not None and self._at is not None and self._at != self._saved:
            await self._store.save(self._at)
            self._saved = self._at

    async def _clear_place(self) -> None:
        if self._store is not None:
            await self._store.clear()
            self._at = self._saved = None


def _open_store(address: str, options: Mapping[str, Any]) -> OffsetStore:
    folder, _, name = address.rstrip("/").rpartition("/")
    if is_local(address):
        local = unquote(address[7:]) if address.startswith("file://") else address
        path = Path(local).expanduser()
        if path.is_dir():
            raise ConfigError(f"the cursor {address} is a folder; name a file in it")
        return LocalOffsetStore(path.parent, path.name, file=path.name)
    if folder.endswith(("/", ":")) or not name:
        raise ConfigError(f"the cursor {address} names no place in its storage; add a name")
    ours = storage_of(address).rename_options(options)
    return open_offset_store(folder, name, ours, lease_s=LEASE_S, standby=False)


def parse_after(after: Cursor | Offset | str | None) -> Offset | None:
    """Return the offset that a read continues from. Raises :class:`ConfigError`."""
    if isinstance(after, Cursor):
        after.check()
        return after.offset
    if after is None or isinstance(after, Offset):
        return after
    try:
        return Offset.from_json(json.loads(after))
    except (TypeError, ValueError, OffsetError):
        raise ConfigError(
            f"after is {after!r}, and must be a Cursor, the offset of a batch, or its text"
        ) from None
