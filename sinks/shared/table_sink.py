"""A copy of a table (a mirror), its history, or a log of its changes, in a table of an open format.

Rows and offset are in one commit, so each change is in the table exactly once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from sinks.shared.change_rows import change_rows, data_rows
from sinks.shared.copy_sink import CopySink, TableForm, require_row_ids
from sinks.shared.history import HistoryMerge, check_move, fold_history
from sinks.shared.merge import (
    PHYSICAL,
    Merge,
    find_steps,
    fold_batch,
    merge_columns,
    physical_name,
    rename_fields,
    respell_names,
    with_physical_names,
)
from sinks.shared.table_copy import TableCopy, TableRepair
from sinks.shared.target_table import ColumnChange, TableClaim, TargetTable
from tailer.changes import ChangeBatch, Offset
from tailer.errors import RowsRefused, SinkRejected, TargetRefused
from tailer.sink import OWN_PREFIX


class TableSink(CopySink):
    """A copy of a table, or a log of its changes, in a table of an open format, exactly once."""

    def __init__(
        self,
        target: TargetTable,
        *,
        mode: str = "mirror",
        key: tuple[str, ...] = (),
        own_prefix: str = OWN_PREFIX,
    ) -> None:
        super().__init__(TableForm.with_prefix(mode, key, own_prefix))
        self.mode = mode
        self.key = self._form.key
        self.traits = self._form.make_traits(folded=True)
        self._target = target
        self._is_open = False

    def _open_table(self, feed: str) -> Offset | None:
        claim = self._load_claim(feed)
        self._is_open = True
        if claim is None:
            return None
        self._target.append_rows(self._make_no_rows(), claim.advance())
        return claim.offset

    def _load_claim(self, feed: str, *, as_it_is: bool = False) -> TableClaim | None:
        claim = self._target.load(feed, self.mode, as_it_is=as_it_is)
        if self._history is not None and claim is not None:
            self._history.check_kept(claim.physical, self._target.address)
        return claim

    def _look_at_table(self, feed: str) -> Offset | None:
        claim = self._load_claim(feed)
        return claim.offset if claim else None

    def _set_offset(self, feed: str, offset: Offset | None) -> None:
        """Overwrite the offset. The table itself is removed by its owner."""
        claim = self._load_claim(feed)
        if claim is None:
            if offset is not None and self.mode != "log" and offset.position > (0, 0):
                raise TargetRefused(
                    f"{self._target.address}: there is no copy, and a copy can't start at version "
                    f"{offset.version}; restore it, or start over with `tailer offsets reset`"
                )
            return
        if offset is None:
            raise TargetRefused(
                f"{self._target.address} is there, and its rows belong to its offset; remove the "
                "table, then reset the offset again"
            )
        moved, at = claim.advance(offset=offset), claim.offset
        if self._history is not None:
            check_move(at, offset, self._target.address)
        if self._history is not None and at is not None and offset.position < at.position:
            self._target.take_back(offset.version, self._history, moved)
        else:
            self._target.append_rows(self._make_no_rows(), moved)

    async def aclose(self) -> None:
        self._is_open = False

    @contextmanager
    def read_mirror(self, feed: str) -> Iterator[TableCopy]:
        """Provide the copy. A version of the table does not change."""
        if self.mode == "log":
            raise TargetRefused(f"{self._target.address} is a log and not a mirror")
        claim = self._load_claim(feed, as_it_is=True)
        yield TableCopy(self._target, claim, self.key, self._history)

    @contextmanager
    def repair_mirror(self, feed: str) -> Iterator[TableRepair]:
        if self.mode != "mirror":
            raise TargetRefused(
                f"{self._target.address}: only a mirror is repaired, and this is a {self.mode}; "
                "remove it, then `tailer offsets reset` creates it again"
            )
        load = partial(self._target.load, feed, self.mode, as_it_is=True)
        repair = TableRepair(self._target, self.key, self.build_rows, load)
        yield repair
        repair.finish()

    # Writing

    def _refresh_claim(self) -> TableClaim | None:
        if not self._is_open:
            raise TargetRefused("the sink is not open")
        if self._target.claim is not None:
            self._target.refresh()
        return self._target.claim

    def _make_no_rows(self) -> pa.Table:
        return self._target.find_schema().empty_table()

    def _move_offset(self, offset: Offset) -> None:
        claim = self._refresh_claim()
        if self._history is not None and claim is not None:
            check_move(claim.offset, offset, self._target.address)
        if claim is not None:  # else the first batch stores one
            self._target.append_rows(self._make_no_rows(), claim.advance(offset=offset))

    def _write_batch(self, batch: ChangeBatch) -> None:
        claim = self._refresh_claim()
        rows = self.build_rows(batch)
        ours = {} if self._history is None else self._history.physical_names()
        schema = with_physical_names(batch, rows.schema, self._form.event_id, ours)
        if self._history is not None and claim is not None:
            check_move(batch.offset, batch.next_offset, self._target.address)
        if self.mode == "log" and claim is not None:
            # A log keeps all columns: one that is renamed in case alone is the one that it has.
            rows = rows.rename_columns(
                respell_names(schema.names, self._target.find_schema().names)
            )
            schema = rename_fields(schema, rows.schema.names)
        merge: Merge | HistoryMerge | None = None
        if batch.num_rows and self.mode != "log":
            had = claim.offset if claim else None
            again = batch.offset.snapshot and had is not None and not had.snapshot
            if self._history is None:
                merge = fold_batch(batch, rows, self.key, unchecked=again)
            else:
                merge = fold_history(batch, rows, self.key, self._history, unchecked=again)
        claim = self._evolve_columns(claim, batch, schema)
        claim = claim.advance(offset=batch.next_offset)
        if merge is None:
            self._target.append_rows(pa.table(rows), claim)
        elif isinstance(merge, HistoryMerge):
            self._merge_history(merge, claim)
        else:
            self._merge_rows(merge, claim)

    def build_rows(self, batch: ChangeBatch) -> pa.RecordBatch:
        """Return a batch's rows as the table has them."""
        event_id, row_id = self._form.event_id, self._form.row_id
        rows = data_rows(batch) if event_id is None else change_rows(batch, event_id)
        self.check_columns(rows.schema)
        if row_id is not None:
            rows = rows.append_column(row_id, require_row_ids(batch))
        if self._history is not None:
            for name, column in self._history.build_columns(batch).items():
                rows = rows.append_column(name, column)
        return self._target.convert_rows(rows)

    def _evolve_columns(
        self, claim: TableClaim | None, batch: ChangeBatch, schema: pa.Schema
    ) -> TableClaim:
        """Make the table have a batch's columns, and return its claim."""
        physical = {field.name: physical_name(field) for field in schema}
        key = [physical.get(n, n) for n in self.key] if self.mode != "log" else None
        if claim is None:
            begun = TableClaim(1, self.mode, batch.offset, key, physical)
            self._target.create_table(schema.remove_metadata(), begun)
            return begun
        if claim.key != key:
            raise TargetRefused(
                f"{self._target.address}: the copy has the key {claim.key} and not {key}; set the "
                "option 'key' back, or remove the table and reset the offset"
            )
        table, keep = self._target.find_schema(), self.mode == "log"
        old = pa.schema(
            table.field(name).with_metadata({PHYSICAL: of_files})
            for name, of_files in claim.physical.items()  # those of the last version come first
            if name in table.names
        )
        steps = find_steps(old, schema, keep=keep, folded=True)
        whole = merge_columns(old, schema, folded=True) if keep else schema
        claim = replace(claim, physical={field.name: physical_name(field) for field in whole})
        if not steps:
            return claim
        moved = claim.advance()
        self._target.change_columns(ColumnChange(old, schema, whole, steps, keep), moved)
        return moved

    def _merge_rows(self, merge: Merge, claim: TableClaim) -> None:
        if not merge.unchecked:
            self._check_keys(merge.present, merge.absent)
        if not merge.present.num_rows:
            self._target.append_rows(merge.rows, claim)
            return
        self._target.merge_rows(merge.present, merge.rows, list(self.key), claim)

    def _merge_history(self, merge: HistoryMerge, claim: TableClaim) -> None:
        assert self._history is not None, "a history has columns of its own"
        if not merge.unchecked:
            self._check_keys(merge.ended.select(list(self.key)), merge.absent)
        if merge.ended.num_rows:
            self._target.merge_history(merge, self._history, list(self.key), claim)
        else:
            self._target.append_rows(merge.rows, claim)

    def _check_keys(self, present: pa.Table, absent: pa.Table) -> None:
        """Raise :class:`SinkRejected` if a key that leaves is not there, or one that comes is."""
        key, where = list(self.key), None
        columns = [] if self._history is None else [self._history.to_version]
        if self._history is not None:
            where = pc.field(self._history.to_version).is_null()
        had = self._target.find_keys(pa.concat_tables([present, absent]), where, columns)
        lacks = present.join(had, key, join_type="left anti")
        has = absent.join(had, key, join_type="left semi")
        if lacks.num_rows:
            raise self._make_refusal(
                lacks, "that the copy lacks; it must begin with all rows of the table "
                '(from = "snapshot") and have one writer',
            )  # fmt: skip
        if has.num_rows:
            raise self._make_refusal(
                has, "that the copy has already, so the key columns do not identify a row; choose "
                "others, or mirror by row id",
            )  # fmt: skip

    def _make_refusal(self, keys: pa.Table, what: str) -> SinkRejected:
        shown = ", ".join(map(str, keys.slice(0, 3).to_pylist()))
        return RowsRefused(
            f"{self._target.address}: a change is of a row with a key {what}: {shown}; remove the "
            "table and reset the offset to make the copy again"
        )
