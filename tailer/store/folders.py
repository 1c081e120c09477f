"""Watches on local folders, all of one process through one inotify instance.

A user has 128 instances by default, and many thousands of watches; one daemon may follow hundreds
of tables.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from weakref import WeakKeyDictionary

import anyio

from tailer.store import Watch

if TYPE_CHECKING:
    from asyncinotify import Inotify, Mask


class _Notifier:
    """The one inotify instance of an event loop, open while a folder is watched."""

    _all: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, _Notifier]] = WeakKeyDictionary()

    def __init__(self, inotify: Inotify, mask: type[Mask], loop: asyncio.AbstractEventLoop) -> None:
        self._inotify = inotify
        self._mask = mask
        self._loop = loop
        self._watches: dict[int, tuple[object, list[FolderWatch]]] = {}
        os.set_blocking(inotify.fd, False)
        loop.add_reader(inotify.fd, self._dispatch_events)

    @classmethod
    def of_this_loop(cls) -> _Notifier | None:
        """Return the instance; None if the system has no inotify, or no instance left."""
        loop = asyncio.get_running_loop()
        found = cls._all.get(loop)
        if found is None:
            try:
                from asyncinotify import Inotify, Mask  # Linux only, on demand

                found = cls._all[loop] = _Notifier(Inotify(), Mask, loop)
            except (ImportError, OSError, AttributeError):
                return None
        return found

    def add_watch(self, watch: FolderWatch) -> int:
        """Report changes to ``watch`` from now on. Raises OSError if the folder does not exist."""
        # A commit appears by rename, by hard link or by being written in place.
        of = self._mask
        mask = of.MOVED_TO | of.CREATE | of.CLOSE_WRITE | of.DELETE_SELF
        try:
            added = self._inotify.add_watch(watch.folder, mask)
        except OSError:
            self._close_if_unused()
            raise
        _, watches = self._watches.setdefault(added.wd, (added, []))
        watches.append(watch)
        return added.wd

    def remove_watch(self, number: int, watch: FolderWatch) -> None:
        """Stop reporting changes to ``watch``."""
        added, watches = self._watches[number]
        watches.remove(watch)
        if not watches:
            del self._watches[number]
            with suppress(OSError):  # the folder is gone, and its event is not read yet
                self._inotify.rm_watch(added)  # type: ignore[arg-type]  # it is asyncinotify's Watch
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if not self._watches and self._all.get(self._loop) is self:
            del self._all[self._loop]
            self._loop.remove_reader(self._inotify.fd)
            self._inotify.close()

    def _dispatch_events(self) -> None:
        while self._all.get(self._loop) is self:
            try:
                event = self._inotify.sync_get()
            except BlockingIOError:
                return
            if event is None:
                return
            if _is_temporary(event.name):
                continue
            number = event.watch.wd if event.watch is not None else None
            _, found = self._watches.get(number, (None, [])) if number is not None else (None, [])
            if self._mask.Q_OVERFLOW in event.mask:  # events were lost, of any folder
                found = [watch for _, watches in self._watches.values() for watch in watches]
            for watch in found:
                watch.note_change()
            if self._mask.IGNORED in event.mask and number in self._watches:
                # The folder is gone, and the watch with it; another folder may have its name.
                for watch in self._watches.pop(number)[1]:
                    watch.note_loss()


def _is_temporary(name: os.PathLike[str] | None) -> bool:
    """Return whether a file is one that its writer renames later, or links to, when it is whole.
    To look for a commit at each of them would delay the commit."""
    text = "" if name is None else os.fspath(name)
    return text.startswith(".") or text.endswith(".tmp")


class FolderWatch(Watch):
    """Waits for a folder to change: by inotify if the system has it, else for the full time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._changed = asyncio.Event()
        self._number: int | None = None
        self._notifier: _Notifier | None = None
        self._start_watch()

    def _start_watch(self) -> None:
        notifier = _Notifier.of_this_loop()
        if notifier is None:
            return
        try:
            self._number = notifier.add_watch(self)
        except OSError:  # no such folder, or no watch left: the caller's polling sees changes too
            return
        self._notifier = notifier

    def note_change(self) -> None:
        """Note that something happened in the folder."""
        self._changed.set()

    def note_loss(self) -> None:
        """Note that the folder is no longer watched."""
        self._number = self._notifier = None

    async def wait(self, seconds: float) -> None:
        if self._notifier is None:
            self._start_watch()
        if self._notifier is None:
            await anyio.sleep(seconds)
            return
        with anyio.move_on_after(seconds):
            await self._changed.wait()
        self._changed.clear()

    def close(self) -> None:
        """Stop watching."""
        if self._notifier is not None and self._number is not None:
            self._notifier.remove_watch(self._number, self)
        self.note_loss()
