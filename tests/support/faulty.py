"""Doubles that fail on a script: for faults that the real thing will not show on demand.

They wrap a real store, sink or offset store and ask a function before every call::

    faults = Script({"write": [None, TransientError("reset")]})   # the second write fails
    sink = FaultySink(JsonlSink(path), faults)
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import pyarrow as pa

from tailer.changes import ChangeBatch, Notice, Offset
from tailer.offsets import OffsetStore
from tailer.sink import Sink
from tailer.store import FileStatus, Store, Watch


class Script:
    """Which calls fail. ``errors`` maps a method's name to what its calls raise, in their order;
    None, and all calls after the list's end, succeed. ``calls`` lists the calls that were made."""

    def __init__(self, errors: Mapping[str, Sequence[BaseException | None]]) -> None:
        self._errors = {name: list(errors) for name, errors in errors.items()}
        self.calls: list[tuple[str, str]] = []

    def __call__(self, method: str, argument: object = "") -> None:
        """Note a call; raise what the script has for it."""
        self.calls.append((method, str(argument)))
        errors = self._errors.get(method)
        error = errors.pop(0) if errors else None
        if error is not None:
            raise error


class FaultyStore(Store):
    """A store whose calls fail as the script says: list, stat, read, open."""

    def __init__(self, inner: Store, script: Script) -> None:
        self._inner = inner
        self.script = script
        self.atomic, self.check_s = inner.atomic, inner.check_s

    @property
    def root(self) -> str:
        """See :class:`tailer.store.Store`."""
        return self._inner.root

    async def list(self, folder: str, start_after: str = "") -> AsyncGenerator[FileStatus, None]:
        """See :class:`tailer.store.Store`."""
        self.script("list", folder)
        async for status in self._inner.list(folder, start_after):
            yield status

    async def stat(self, location: str) -> FileStatus:
        """See :class:`tailer.store.Store`."""
        self.script("stat", location)
        return await self._inner.stat(location)

    async def read(
        self, location: str, offset: int = 0, length: int | None = None
    ) -> tuple[bytes, FileStatus]:
        """See :class:`tailer.store.Store`."""
        self.script("read", location)
        return await self._inner.read(location, offset, length)

    async def open(self, location: str, size: int | None) -> pa.NativeFile:
        """See :class:`tailer.store.Store`."""
        self.script("open", location)
        return await self._inner.open(location, size)

    def watch(self, folder: str) -> AbstractAsyncContextManager[Watch]:
        """See :class:`tailer.store.Store`."""
        return self._inner.watch(folder)

    async def aclose(self) -> None:
        """See :class:`tailer.store.Store`."""
        await self._inner.aclose()


class FaultySink(Sink):
    """A sink whose calls fail as the script says: open, write, announce; ``written`` fails *after*
    the real write, as an acknowledgement that was lost."""

    def __init__(self, inner: Sink, script: Script) -> None:
        self._inner = inner
        self.script = script
        self.traits = inner.traits

    async def open(self, feed: str) -> Offset | None:
        """See :class:`tailer.sink.Sink`."""
        self.script("open", feed)
        return await self._inner.open(feed)

    async def write(self, batch: ChangeBatch) -> None:
        """See :class:`tailer.sink.Sink`."""
        self.script("write", batch.offset)
        await self._inner.write(batch)
        self.script("written", batch.offset)

    async def announce(self, notice: Notice) -> None:
        """See :class:`tailer.sink.Sink`."""
        self.script("announce", notice.kind)
        await self._inner.announce(notice)

    async def aclose(self) -> None:
        """See :class:`tailer.sink.Sink`."""
        self.script("aclose")
        await self._inner.aclose()


class FaultyOffsetStore(OffsetStore):
    """An offset store whose calls fail as the script says: acquire, load, save, clear."""

    def __init__(self, inner: OffsetStore, script: Script) -> None:
        self._inner = inner
        self.script = script

    async def acquire(self) -> None:
        """See :class:`tailer.offsets.OffsetStore`."""
        self.script("acquire")
        await self._inner.acquire()

    async def check(self) -> None:
        """See :class:`tailer.offsets.OffsetStore`; not in the script."""
        await self._inner.check()

    @property
    def waiting_for(self) -> str | None:
        """Return the inner store's answer."""
        return self._inner.waiting_for

    async def load(self) -> Offset | None:
        """See :class:`tailer.offsets.OffsetStore`."""
        self.script("load")
        return await self._inner.load()

    async def save(self, offset: Offset) -> None:
        """See :class:`tailer.offsets.OffsetStore`."""
        self.script("save", offset)
        await self._inner.save(offset)

    async def clear(self) -> None:
        """See :class:`tailer.offsets.OffsetStore`."""
        self.script("clear")
        await self._inner.clear()

    async def load_orders(self) -> dict[str, Any]:
        """See :class:`tailer.offsets.OffsetStore`; not in the script."""
        return await self._inner.load_orders()

    async def save_orders(self, orders: dict[str, Any]) -> None:
        """See :class:`tailer.offsets.OffsetStore`."""
        self.script("save_orders", orders)
        await self._inner.save_orders(orders)

    async def release(self) -> None:
        """See :class:`tailer.offsets.OffsetStore`."""
        self.script("release")
        await self._inner.release()
