"""A sink that keeps a copy of a table (a mirror), its history, or a log of its changes, in a table
that it writes in threads."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import anyio.to_thread
import pyarrow as pa

from sinks.shared.history import HistoryNames
from sinks.shared.record_form import check_record_form
from tailer.changes import METADATA_FIELDS, ChangeBatch, Notice, Offset
from tailer.errors import TargetRefused
from tailer.sink import OwnNames, Sink, SinkTraits
from tailer.sink.own_names import add_prefix


@dataclass(frozen=True, slots=True)
class TableForm:
    """What a table is, a log, or a mirror or a history with this ``key``; and the columns of our
    own: a log's event ids, and ``seq``, the order of its events; the ids of the rows of a mirror by
    row id; those of a history."""

    mode: str
    key: tuple[str, ...] = ()
    event_id: str | None = None
    row_id: str | None = None
    seq: str = "_seq"
    history: HistoryNames | None = None

    @classmethod
    def with_prefix(cls, mode: str, key: Sequence[str], prefix: str) -> TableForm:
        """Return the form of a table by its options."""
        event_id, row_id, seq = (add_prefix(n, prefix) for n in ("_event_id", "_row_id", "_seq"))
        if mode == "log":
            return cls(mode, event_id=event_id, seq=seq)
        history = HistoryNames.with_prefix(prefix) if mode == "history" else None
        if key:
            return cls(mode, tuple(key), history=history)
        return cls(mode, (row_id,), row_id=row_id, history=history)

    @property
    def is_log(self) -> bool:
        """Whether the table has all events, and no row is identified by a key."""
        return self.mode == "log"

    @property
    def primary_key(self) -> tuple[str, ...]:
        """The columns that no two rows have the same values in."""
        return self.key if self.history is None else (*self.key, self.history.from_version)

    def list_own_names(self, *, numbered: bool) -> tuple[str, ...]:
        """Return the columns of our own; ``numbered``: the database numbers the events of a log."""
        own = [name for name in (self.row_id, self.event_id) if name is not None]
        own += self.history.list_names() if self.history is not None else ()
        return (*own, self.seq) if self.is_log and numbered else tuple(own)

    def make_traits(
        self, *, folded: bool, numbered: bool = False, repaired_beside: bool = False
    ) -> SinkTraits:
        """Return the traits of a sink with such a table; ``folded`` as of :class:`OwnNames`."""
        fixed = tuple(field.name for field in METADATA_FIELDS) if self.is_log else ()
        return SinkTraits(
            key_columns=() if self.row_id is not None else self.key,
            row_ids=self.row_id is not None,
            spans=True,
            own=OwnNames(self.list_own_names(numbered=numbered), folded, fixed),
            keeps_offset=True,
            copies=not self.is_log,
            keeps_versions=self.history is not None,
            repaired_beside=repaired_beside,
        )


class CopySink(Sink):
    """A copy of a table, its history or a log, exactly once: the target itself has the offset."""

    #: What the form of its records says it is: the sink's type.
    kind: ClassVar[str]

    def __init__(self, form: TableForm) -> None:
        self._form = form
        self._history = form.history

    def check_record_form(
        self, feed: str, saved: Mapping[str, Any] | None, at: Offset | None
    ) -> Mapping[str, Any]:
        """Return the form. The target may be moved, and then have another name."""
        return check_record_form({"type": self.kind, "mode": self._form.mode}, saved, feed, at)

    async def open(self, feed: str) -> Offset | None:
        """Claim the table for this process."""
        return await anyio.to_thread.run_sync(self._open_table, feed)

    @abstractmethod
    def _open_table(self, feed: str) -> Offset | None: ...

    async def look(self, feed: str) -> Offset | None:
        return await anyio.to_thread.run_sync(self._look_at_table, feed)

    @abstractmethod
    def _look_at_table(self, feed: str) -> Offset | None: ...

    async def set_offset(self, feed: str, offset: Offset | None) -> None:
        """Overwrite the offset; None: the table, which belongs to it, must go."""
        await anyio.to_thread.run_sync(self._set_offset, feed, offset)

    @abstractmethod
    def _set_offset(self, feed: str, offset: Offset | None) -> None: ...

    async def write(self, batch: ChangeBatch) -> None:
        await anyio.to_thread.run_sync(self._write_batch, batch)

    @abstractmethod
    def _write_batch(self, batch: ChangeBatch) -> None: ...

    async def announce(self, notice: Notice) -> None:
        """Store a notice's offset."""
        if notice.next_offset != notice.offset:
            await anyio.to_thread.run_sync(self._move_offset, notice.next_offset)

    @abstractmethod
    def _move_offset(self, offset: Offset) -> None: ...


def require_row_ids(batch: ChangeBatch) -> pa.Array:
    """Return a batch's row ids. Raises :class:`TargetRefused` for rows without them."""
    ids = batch.row_ids
    if ids is None and batch.num_rows:
        raise TargetRefused(
            f"version {batch.version} has no row ids; name key columns in the option 'key', or "
            "enable row tracking on the table and set change_source to derived"
        )
    return pa.array([], pa.int64()) if ids is None else ids
