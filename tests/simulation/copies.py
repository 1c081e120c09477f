"""Simulated copies of the table: a mirror that can be repaired, and a history of its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from sinks.shared.history import HistoryNames, fold_history
from tailer.changes import METADATA_FIELDS, ChangeBatch, Offset
from tailer.errors import TransientError
from tailer.sink import Sink, SinkTraits
from tests.simulation.baton import wait_for
from tests.simulation.judge import Delivered, HistoryRow
from tests.simulation.model import Row
from tests.simulation.sinks import (
    CopySink,
    InFlightSink,
    PlainSink,
    Target,
    TransactionalSink,
)

KEY = ("id",)
_NAMES = HistoryNames.with_prefix("_")


class MirrorSink(TransactionalSink):
    """A mirror by key in a database: rows and offset in one transaction."""

    traits = SinkTraits(spans=True, repaired_beside=True)

    def _stored(self, events: list[Delivered]) -> None:
        self.target.copy_rows(events)

    @contextmanager
    def read_mirror(self, feed: str) -> Iterator[Any]:  # noqa: ARG002  # one target, one feed
        """See :class:`tailer.sink.Sink`."""
        yield _Copy(self.target)

    @contextmanager
    def repair_mirror(self, feed: str) -> Iterator[Any]:  # noqa: ARG002
        """See :class:`tailer.sink.Sink`."""
        yield _Repair(self.target)


class FileMirrorSink(MirrorSink):
    """A mirror in a database that is a file: one connection writes it at a time."""

    traits = SinkTraits(spans=True)


class _Copy:
    """The mirror as it was at one moment."""

    key = KEY
    at = None

    def __init__(self, target: Target) -> None:
        self.offset = target.progress
        self._rows = list(target.rows.values())

    def as_held(self, name: str, column: pa.Array) -> pa.Array:  # noqa: ARG002
        """See :class:`tailer.sink.MirrorCopy`."""
        return column

    def rows(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """See :class:`tailer.sink.MirrorCopy`."""
        width = len(schema)
        whole = [(*row, *(None,) * width)[:width] for row in self._rows]
        columns = [pa.array([r[i] for r in whole], f.type) for i, f in enumerate(schema)]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


class _Repair:
    """Transactions that hold only while the feed has written nothing since."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.offset = target.progress

    def reload(self) -> bool:
        """See :class:`tailer.sink.MirrorRepair`."""
        before, self.offset = self.offset, self._target.progress
        return before != self.offset

    def replace(self, batch: ChangeBatch) -> None:
        """See :class:`tailer.sink.MirrorRepair`."""
        names = batch.rows.schema.names[: -len(METADATA_FIELDS)]
        columns = (batch.rows.column(name).to_pylist() for name in names)
        self._write({row[0]: row for row in zip(*columns, strict=True)})

    def remove(self, keys: pa.Table) -> None:
        """See :class:`tailer.sink.MirrorRepair`."""
        self._write(dict.fromkeys(keys.column(0).to_pylist()))

    def _write(self, rows: dict[object, Row | None]) -> None:
        target = self._target

        def written() -> None:
            if target.progress != self.offset:
                raise TransientError(f"{target.name}: the feed has written meanwhile")
            for key, row in rows.items():
                target.rows.pop(key, None)
                if row is not None:
                    target.rows[key] = row

        target.world.tell(f"{target.name} <- repair of {len(rows)} keys")
        wait_for(target.world.request, f"repair {target.name}", written)


class HistorySink(TransactionalSink):
    """A history in a database: a row for each version of a key, with the offset."""

    traits = SinkTraits(spans=True, keeps_versions=True)
    _batch: ChangeBatch | None = None

    async def write(self, batch: ChangeBatch) -> None:
        """See :class:`tailer.sink.Sink`."""
        self._batch = batch
        await super().write(batch)

    async def announce(self, notice: Any) -> None:
        """See :class:`tailer.sink.Sink`."""
        self._batch = None
        await super().announce(notice)

    def _stored(self, events: list[Delivered]) -> None:  # noqa: ARG002  # the batch has them
        target, batch = self.target, self._batch
        if batch is not None and batch.num_rows:
            again = batch.offset.snapshot and bool(target.history)
            rows = batch.rows.select(batch.rows.schema.names[: -len(METADATA_FIELDS)])
            for name, column in _NAMES.build_columns(batch).items():
                rows = rows.append_column(name, column)
            merge = fold_history(batch, rows, KEY, _NAMES, unchecked=again)
            if again:
                begun = {(r["id"], r["_from_version"]) for r in merge.rows.to_pylist()}
                target.history = [r for r in target.history if (r.key, r.begun) not in begun]
            for ended in merge.ended.to_pylist():
                checked = target.judge.has_all_rows and not again
                self._end(ended["id"], ended["_to_version"], checked=checked)
            for row in zip(*(c.to_pylist() for c in merge.rows.columns), strict=True):
                self._begin(row)
        target.judge.recorded(target.history)

    def _end(self, key: object, version: int, *, checked: bool) -> None:
        """End the current row of a key."""
        found = [r for r in self.target.history if r.key == key and r.ended is None]
        if checked and len(found) != 1:
            self.world.broken(f"P2: {len(found)} rows of {key} are current where one ends")
        for row in found:
            row.ended = version

    def _begin(self, row: tuple[Any, ...]) -> None:
        *values, _, _, begun, ended = row
        self.target.history.append(HistoryRow(tuple(values), begun, ended))

    def _go_back(self, offset: Offset) -> None:
        """Forget the versions from an offset's on."""
        kept = [r for r in self.target.history if r.begun < offset.version]
        for row in kept:
            if row.ended is not None and row.ended >= offset.version:
                row.ended = None
        self.target.history = kept


#: The sinks by their kinds.
SINKS: dict[str, Callable[[Target], Sink]] = {
    "plain": PlainSink,
    "transactional": TransactionalSink,
    "copy": CopySink,
    "in_flight": InFlightSink,
    "mirror": MirrorSink,
    "history": HistorySink,
}
