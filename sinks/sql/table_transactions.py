"""What a feed writes to a SQL table, transaction by transaction: exactly once, decided without I/O.

:class:`TableTransactions` learns what the database says of the table and how each transaction
ended, and decides what to write next. It knows no connection, thread or clock.
:class:`sinks.sql.table_writer.TableWriter` carries its plans out.

The rules:

1. The claim comes first. It is one transaction of the database, which raises the epoch: from then
   on no older process can write, because each write compares the epoch.
2. Rows and the offset after them are in one transaction, whose first statement moves the offset,
   and only from where this process has left it. That statement is the fence.
3. If the answer to a commit is lost, the same batch may be planned again: where the first one was
   committed, the offset is another one by then, and nothing is written.

A worked example::

    claim(epoch 4, offset (7, 0))   state IDLE
    plan(version 7)        -> from epoch 4, offset (7, 0), to offset (8, 0), with its rows
    note_failure(lost answer)       state UNSURE
    plan(version 7)        -> the same; the database refuses it if it is there, for the offset is
                              (8, 0), and the feed opens the sink again

What must never happen: rows without the offset after them, or the other way round; a write that
does not compare the claim.

=============== ======= ============== =========== ============ ============
state           claim   plan           note_commit refused rows other error
=============== ======= ============== =========== ============ ============
NEW             IDLE                                            NEW
IDLE                    IN_TRANSACTION             IDLE         UNSURE
IN_TRANSACTION                         IDLE        IDLE         UNSURE
UNSURE                  IN_TRANSACTION             IDLE         UNSURE
=============== ======= ============== =========== ============ ============
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa

from sinks.shared.copy_sink import TableForm
from sinks.shared.history import HistoryMerge, check_move, fold_history
from sinks.shared.merge import (
    Merge,
    fold_batch,
    merge_columns,
    physical_name,
    rename_fields,
    respell_names,
    with_physical_names,
)
from sinks.sql.database import Claim
from tailer.changes import ChangeBatch, Offset
from tailer.errors import SinkRejected, TargetRefused

State = Literal["NEW", "IDLE", "IN_TRANSACTION", "UNSURE"]


@dataclass(frozen=True, slots=True)
class TableTransaction:
    """One transaction: the claim before and after it, and what is written besides.

    ``schema`` are the columns of the rows; None: only the offset moves. A mirror and a history get
    ``merge``, a log ``rows``. ``back_to`` is the first version whose changes a history forgets.
    """

    before: Claim
    after: Claim
    schema: pa.Schema | None = None
    rows: pa.RecordBatch | None = None
    merge: Merge | HistoryMerge | None = None
    back_to: int | None = None


class TableTarget(typing.Protocol):
    """The table, as a session needs it: the only part that blocks."""

    def claim(self) -> Claim:
        """Claim the table for this process, in one transaction: from now on older ones can't write
        it. Return what the database says of it now."""

    def run(self, transaction: TableTransaction) -> Claim:
        """Carry a transaction out; return the claim after it, which counts the rows.

        Raises :class:`ConfigError` if a newer process has claimed the table, and
        :class:`TransientError` if it is not as ``before`` says. After :class:`SinkRejected` it is
        rolled back, and after any other error its outcome is unknown.
        """


class TableTransactions:
    """The transactions of one session. ``rows_of`` makes a batch's rows those of the table
    of this ``form``; ``name`` is what errors call it."""

    def __init__(
        self,
        rows_of: Callable[[ChangeBatch], pa.RecordBatch],
        form: TableForm,
        *,
        name: str,
        folds_names: bool = False,
    ) -> None:
        self.state: State = "NEW"
        #: What is committed.
        self.committed_claim: Claim | None = None
        self._rows_of = rows_of
        self._name = name
        self._form = form
        self._history = form.history
        self._folds_names = folds_names

    def note_claim(self, claimed: Claim) -> None:
        """Take up what the database says after :meth:`TableTarget.claim`."""
        if self._history is not None and claimed.columns is not None:
            self._history.check_kept(claimed.columns.names, self._name)
        self.committed_claim, self.state = claimed, "IDLE"

    def plan_move(self, offset: Offset) -> TableTransaction:
        """Return the transaction that moves the offset alone; one that goes back takes a history
        with it."""
        before = self._begin_transaction()
        at, back_to = before.offset, None
        if self._history is not None and at is not None and before.columns is not None:
            check_move(at, offset, self._name)
            back_to = offset.version if offset.position < at.position else None
        return TableTransaction(before, replace(before, offset=offset), back_to=back_to)

    def plan(self, batch: ChangeBatch) -> TableTransaction:
        """Return the transaction that writes a batch. Raises :class:`SinkRejected` for rows that
        the table can't have."""
        before = self._begin_transaction()
        rows = self._rows_of(batch)
        own = {} if self._history is None else self._history.physical_names()
        schema = with_physical_names(batch, rows.schema, self._form.event_id, own)
        if self._history is not None and before.columns is not None:
            check_move(batch.offset, batch.next_offset, self._name)
        if self._form.is_log and before.columns is not None and self._folds_names:
            # A log keeps all columns: one that is renamed in case alone is the one that it has.
            rows = rows.rename_columns(respell_names(schema.names, before.columns.names))
            schema = rename_fields(schema, rows.schema.names)
        merge: Merge | HistoryMerge | None = None
        if batch.num_rows and not self._form.is_log:
            # Rows of a snapshot that is read while the copy is there replace what it has.
            at = before.offset
            again = batch.offset.snapshot and at is not None and not at.snapshot
            if self._history is None:
                merge = fold_batch(batch, rows, self._form.key, unchecked=again)
            else:
                merge = fold_history(batch, rows, self._form.key, self._history, unchecked=again)
        after = replace(
            self._add_key(before, schema),
            offset=batch.next_offset,
            columns=self._merge_columns(before, schema),
            rows=before.rows + (merge.growth if merge is not None else 0),
        )
        of_log = rows if self._form.is_log and batch.num_rows else None
        return TableTransaction(before, after, schema, of_log, merge)

    def note_commit(self, after: Claim) -> None:
        """Note that the planned transaction is committed."""
        if self.state != "IN_TRANSACTION":
            raise RuntimeError(f"note_commit in the state {self.state}")
        self.committed_claim, self.state = after, "IDLE"

    def note_failure(self, error: BaseException) -> None:
        """Note that the planned transaction failed: refused, or nobody knows."""
        if self.state != "NEW":
            self.state = "IDLE" if isinstance(error, SinkRejected) else "UNSURE"

    def _begin_transaction(self) -> Claim:
        if self.committed_claim is None:
            raise TargetRefused("the sink is not open")
        if self.state == "IN_TRANSACTION":
            raise RuntimeError("a transaction is planned while one is open")
        self.state = "IN_TRANSACTION"
        return self.committed_claim

    def _add_key(self, claim: Claim, schema: pa.Schema) -> Claim:
        """Return the claim with its key. Raises :class:`SinkRejected` if the copy has another."""
        if self._form.is_log:
            return claim
        physical = {field.name: physical_name(field) for field in schema}
        key = [physical.get(name, name) for name in self._form.key]
        if claim.key not in (None, key):
            raise TargetRefused(
                f"{self._name} has the key {claim.key} and not {key}; set the option 'key' back, "
                "or create it again with `tailer offsets reset`"
            )
        return replace(claim, key=key)

    def _merge_columns(self, claim: Claim, schema: pa.Schema) -> pa.Schema:
        """Return the columns that the table has after a write; a log keeps all that it had."""
        if not self._form.is_log or claim.columns is None:
            return schema
        return merge_columns(claim.columns, schema, folded=self._folds_names)


class TableSession:
    """The loop between what is planned and the table. Blocking; calls never overlap."""

    def __init__(self, target: TableTarget, transactions: TableTransactions) -> None:
        self.target = target
        self.transactions = transactions

    def open(self) -> Offset | None:
        """Claim the table; return the offset to resume from."""
        claimed = self.target.claim()
        self.transactions.note_claim(claimed)
        return claimed.offset

    def write(self, batch: ChangeBatch) -> None:
        """Write a batch; durable when this returns."""
        self._run_transaction(lambda: self.transactions.plan(batch))

    def move_offset(self, offset: Offset) -> None:
        """Save an offset alone."""
        self._run_transaction(lambda: self.transactions.plan_move(offset))

    def _run_transaction(self, plan: Callable[[], TableTransaction]) -> None:
        try:
            self.transactions.note_commit(self.target.run(plan()))
        except BaseException as e:
            self.transactions.note_failure(e)
            raise
