"""A mirror in a Delta table whose rows are set right, for `tailer verify --repair`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from sinks.delta.copy import find_keys
from sinks.delta.table import Claim, TargetTable
from tailer.changes import ChangeBatch, Offset
from tailer.errors import TargetRefused


class DeltaRepair:
    """See :class:`tailer.sink.MirrorRepair`. The commits say what the feed's last one says, so that
    the feed takes them for its own; and what somebody else has written before them is settled."""

    def __init__(
        self,
        target: TargetTable,
        key: Sequence[str],
        rows_of: Callable[[ChangeBatch], pa.RecordBatch],
        load: Callable[[], Claim | None],
    ) -> None:
        self._target = target
        self._load = load
        self._key = list(key)
        self._rows_of = rows_of
        self._claim = self._find_claim()

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
        self._target.merge_rows(keys, rows, self._key, self._claim)

    def remove(self, keys: pa.Table) -> None:
        none = self._target.find_schema().empty_table()
        self._target.merge_rows(keys, none, self._key, self._claim)

    def _has_twice(self, keys: pa.Table) -> bool:
        whole = self._target.find_schema()
        schema = pa.schema([whole.field(name) for name in self._key])
        with self._target.translate_errors():
            had = find_keys(self._target.table, schema, keys)
        counts = had.group_by(self._key).aggregate([([], "count_all")])
        return bool(counts.num_rows < had.num_rows)

    def _find_claim(self) -> Claim:
        claim = self._load()
        if claim is None:
            raise TargetRefused(f"{self._target.address}: there is no copy to be repaired")
        return claim
