"""Reading a copy in a table of an open format back, and setting its rows right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from sinks.formats.json import variant_text
from sinks.shared.history import HistoryNames
from sinks.shared.target_table import TableClaim, TargetTable, cast_columns
from tailer.changes import ChangeBatch, Offset, is_arrow_variant
from tailer.errors import TargetRefused


class TableCopy:
    """See :class:`tailer.sink.MirrorCopy`. A version of the table does not change."""

    def __init__(
        self,
        target: TargetTable,
        claim: TableClaim | None,
        key: tuple[str, ...],
        history: HistoryNames | None = None,
    ) -> None:
        self.offset = None if claim is None else claim.offset
        self.key = key
        self.at: int | None = None
        self._target = None if claim is None else target
        self._history = history

    def as_held(self, name: str, column: pa.Array) -> pa.Array:  # noqa: ARG002  # the same for all
        return variant_text(column) if is_arrow_variant(column.type) else column

    def rows(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        held = [self.as_held(f.name, pa.array([], f.type)).type for f in schema]
        types = pa.schema(list(zip(schema.names, held, strict=True)))
        if self._target is not None:
            where = None if self._history is None else _is_valid(self._history, self.at)
            for batch in self._target.scan(schema.names, where):
                yield cast_columns(batch, types)


def _is_valid(names: HistoryNames, version: int | None) -> pc.Expression:
    """Return the condition that a history's row is of a version; None is the newest."""
    first, last = pc.field(names.from_version), pc.field(names.to_version)
    if version is None:
        return last.is_null()
    return (first <= version) & (last.is_null() | (last > version))


class TableRepair:
    """See :class:`tailer.sink.MirrorRepair`. The commits say what the feed's last one says, so that
    the feed takes them for its own; and what somebody else has written before them is settled with
    the last one."""

    def __init__(
        self,
        target: TargetTable,
        key: Sequence[str],
        rows_of: Callable[[ChangeBatch], pa.RecordBatch],
        load: Callable[[], TableClaim | None],
    ) -> None:
        self._target = target
        self._load = load
        self._key = list(key)
        self._rows_of = rows_of
        self._claim = self._find_claim()
        self._has_written = False

    @property
    def offset(self) -> Offset | None:
        return self._claim.offset

    def reload(self) -> bool:
        before, self._claim = self._claim, self._find_claim()
        return self._claim != before

    def replace(self, batch: ChangeBatch) -> None:
        rows = pa.table(self._rows_of(batch))
        keys = rows.select(self._key)
        if self._has_twice(keys):  # a merge would make both rows of a key the new one
            self.remove(keys)
        self._merge_rows(keys, rows)

    def remove(self, keys: pa.Table) -> None:
        self._merge_rows(keys, self._target.find_schema().empty_table())

    def finish(self) -> None:
        """Say that the rows are right."""
        if self._has_written:
            self._target.append_rows(self._target.find_schema().empty_table(), self._claim)

    def _merge_rows(self, leaving: pa.Table, rows: pa.Table) -> None:
        self._has_written = True
        claim = replace(self._claim, repairing=True)
        self._target.merge_rows(leaving, rows, self._key, claim)

    def _has_twice(self, keys: pa.Table) -> bool:
        had = self._target.find_keys(keys)
        counts = had.group_by(self._key).aggregate([([], "count_all")])
        return bool(counts.num_rows < had.num_rows)

    def _find_claim(self) -> TableClaim:
        claim = self._load()
        if claim is None:
            raise TargetRefused(f"{self._target.address}: there is no copy to be repaired")
        return claim
