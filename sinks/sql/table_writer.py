"""Carries the transactions of a table out, in a SQL database: the fence, the columns, the rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from sinks.shared.copy_sink import TableForm
from sinks.shared.history import HistoryMerge, refuse_emptied
from sinks.shared.merge import ColumnStep, Merge, find_steps
from sinks.sql.database import Claim, Database, KeyTaken
from sinks.sql.hand_made import check_kept
from sinks.sql.table_transactions import TableTransaction
from tailer.errors import RowsRefused, SinkRejected, TargetRefused
from tailer.sink import fold_case


@dataclass(slots=True)
class TableWriter:
    """See :class:`sinks.sql.table_transactions.TableTarget`."""

    database: Database
    target: str
    feed: str
    form: TableForm
    create: bool
    evolve: bool

    def claim(self) -> Claim:
        return self.database.claim(self.target, self.feed, self.form.mode, adopt=not self.create)

    def run(self, transaction: TableTransaction) -> Claim:
        database, before, after = self.database, transaction.before, transaction.after
        schema = transaction.schema
        database.connect()
        with self._check_unchanged(before):
            if schema is not None:
                self._check_hand_made(before, schema)
            if schema is not None and not database.ddl_in_transactions:
                database.check_unchanged(self.target, before)
                self._evolve_columns(before, schema)
            with database.transaction():
                with _without_rows():
                    database.save_claim(self.target, before, after)  # first: it is the fence
                if schema is not None and database.ddl_in_transactions:
                    self._evolve_columns(before, schema)
                if isinstance(transaction.merge, HistoryMerge):
                    after = self._merge_history(transaction.merge, after)
                elif transaction.merge is not None:
                    after = self._merge_rows(transaction.merge, after)
                elif transaction.rows is not None:
                    database.append(self.target, pa.table(transaction.rows))
                if transaction.back_to is not None:
                    after = self._take_back(transaction.back_to, after)
        return after

    def replace_rows(self, claim: Claim, keys: pa.Table, rows: pa.Table | None) -> Claim:
        """Remove the rows of these keys, and add others, in one transaction that leaves the claim
        as it is but for the number of its rows; return it. Raises as :meth:`Database.save_claim`
        does if it is another one."""
        database = self.database
        database.connect()
        with database.transaction():
            with _without_rows():
                database.save_claim(self.target, claim, claim)  # first: it is the fence
            with database.stage_rows(keys) as staged:
                self._check_told_apart(keys, staged)
                left = claim.rows - database.delete_rows(self.target, staged, self.form.key)
            if rows is not None:
                database.append(self.target, rows)
                left += rows.num_rows
            return self._count_rows(replace(claim, rows=left))

    def _check_told_apart(self, keys: pa.Table, staged: str) -> None:
        """Raise if a row that would leave has none of these keys, which are staged: a table that
        somebody else has made may take two keys for one."""
        database, key = self.database, keys.column_names
        names = ", ".join(f"t.{database.quote_name(name)}" for name in key)
        there = f"{self.database.quote_table(self.target)} AS t ON {database.format_key_match(key)}"
        query = f"SELECT {names} FROM {staged} AS k JOIN {there}"
        columns = (keys[f.name].combine_chunks() for f in keys.schema)
        held = [_list_values(database.make_comparable(column, column.type)) for column in columns]
        asked = set(zip(*held, strict=True))
        for batch in list(database.read_rows(query, keys.schema)):
            found = zip(*(_list_values(column) for column in batch.columns), strict=True)
            if other := next((each for each in found if each not in asked), None):
                raise TargetRefused(
                    f"{database.location}, table {self.target!r}: the columns {list(key)} take two "
                    f"values for one, as by a collation without case, and a repair would lose the "
                    f"row {dict(zip(key, other, strict=True))}; give them a collation that tells "
                    "all values apart"
                )

    @contextmanager
    def _check_unchanged(self, before: Claim) -> Iterator[None]:
        """Raise, instead of what a statement says of a table that is not there, that the target is
        not as this process has left it."""
        try:
            yield
        except SinkRejected:
            with suppress(SinkRejected):
                self.database.check_unchanged(self.target, before)
            raise

    def _check_hand_made(self, claim: Claim, schema: pa.Schema) -> None:
        """Raise :class:`TargetRefused` for a column that somebody else has made, and that keeps
        other values than it is given."""
        had = claim.columns
        if self.create if had is None else self.evolve or had.equals(schema):
            return
        known, there = set(had or ()), self.database.list_columns(self.target)
        truncate = self.database.names.truncate_name
        new = [f for f in schema if f not in known and truncate(f.name) in there]
        check_kept(self.database, self.target, new)

    def _evolve_columns(self, claim: Claim, schema: pa.Schema) -> None:
        """Make the table, or change its columns, or see that somebody else did."""
        if claim.columns is not None and claim.columns.equals(schema, check_metadata=True):
            return
        database = self.database
        if not database.ddl_in_transactions and database.is_done(self.target, schema):
            return  # by a process that ended before its transaction
        if claim.columns is None:
            allowed, option = self.create, "create"
            key, seq = self.form.primary_key, self.form.seq
            statements = [database.format_creation(self.target, schema, key, seq)]
        else:
            allowed, option = self.evolve, "evolve"
            folded = database.folds_names
            steps = find_steps(claim.columns, schema, keep=self.form.is_log, folded=folded)
            statements = database.format_alterations(self.target, steps, schema)
            if allowed:
                self._check_untaken(claim.columns, steps)
        if allowed:
            with _without_rows():
                for statement in statements:
                    database.execute(statement)
        elif {database.names.truncate_name(n) for n in schema.names} - set(
            database.list_columns(self.target)
        ):
            raise TargetRefused(
                f"{database.location}: the table {self.target!r} lacks columns, and the option "
                f"{option!r} is false; run: {'; '.join(statements)}"
            )

    def _check_untaken(self, had: pa.Schema, steps: Sequence[ColumnStep]) -> None:
        """Raise :class:`TargetRefused` for a new name of a column that somebody else's has."""
        fold = fold_case if self.database.folds_names else str
        new = [step.field.name for step in steps if step.kind in ("add", "rename")]
        others = {fold(name) for name in self.database.list_columns(self.target)} if new else set()
        others -= {fold(self.database.names.truncate_name(name)) for name in had.names}
        for name in new:
            if fold(name) in others:
                raise TargetRefused(
                    f"{self.database.location}: the table {self.target!r} has a column {name!r} "
                    "that is not the Delta table's; rename it or drop it there, or exclude the "
                    "Delta table's with the feed's option 'select'"
                )

    def _merge_rows(self, merge: Merge, claim: Claim) -> Claim:
        """Delete the keys that leave, insert the rows that come, and hold the copy to its key.
        Return the claim, with the number of rows that the copy has then."""
        database, target, key = self.database, self.target, self.form.key
        deleted = 0
        if merge.present.num_rows:
            with database.stage_rows(merge.present) as keys:
                deleted = database.delete_rows(target, keys, key)
            self._check_count(deleted, merge.present, unchecked=merge.unchecked)
        enforced = database.enforces_keys and self.create
        self._add_rows(merge.rows, merge.absent, merge.passing if enforced else merge.absent)
        if not merge.unchecked:
            return claim
        return self._count_rows(replace(claim, rows=claim.rows + merge.present.num_rows - deleted))

    def _merge_history(self, merge: HistoryMerge, claim: Claim) -> Claim:
        """End the current rows of the keys that leave, and add those that begin."""
        database, target, key = self.database, self.target, self.form.key
        names, primary_key, replaced = self.form.history, self.form.primary_key, 0
        assert names is not None, "a history has columns of its own"
        if merge.unchecked:
            with database.stage_rows(merge.rows.select(list(primary_key))) as begun:
                replaced = database.delete_rows(target, begun, primary_key)
        ended = 0
        if merge.ended.num_rows:
            with database.stage_rows(merge.ended) as ends:
                ended = database.end_rows(target, ends, key, names)
        open_rows = f"t.{database.quote_name(names.to_version)} IS NULL"
        keys = merge.ended.select(list(key))
        self._check_count(ended, keys, unchecked=merge.unchecked, where=open_rows)
        # Of a first snapshot all rows begin with one version: the primary key holds them.
        enforced = merge.first and database.enforces_keys and self.create
        checked = merge.absent.slice(0, 0) if enforced else merge.absent
        self._add_rows(merge.rows, merge.absent, checked, where=open_rows)
        if not merge.unchecked:
            return claim
        return self._count_rows(
            replace(claim, rows=claim.rows + merge.ended.num_rows - ended - replaced)
        )

    def _add_rows(
        self, rows: pa.Table, absent: pa.Table, checked: pa.Table, *, where: str = ""
    ) -> None:
        """Add rows, and refuse keys of ``absent`` that are there: ``checked`` are those that the
        primary key does not hold. ``where`` is what else the rows are that have such a key."""
        database, target, key = self.database, self.target, self.form.key
        has = checked.num_rows and database.find_keys(target, checked, key, there=True, where=where)
        if not has and rows.num_rows:
            try:
                database.append(target, rows)
            except KeyTaken:
                database.restart_transaction()
                has = database.find_keys(target, absent, key, there=True, where=where)
                if not has:
                    raise
        if has:
            raise self._refuse_present(has)

    def _take_back(self, version: int, claim: Claim) -> Claim:
        """Forget what a history has of a version and all later ones."""
        database, names = self.database, self.form.history
        assert names is not None, "only a history goes back by itself"
        table = database.quote_table(self.target)
        valid_to, first, last = map(
            database.quote_name, (names.valid_to, names.from_version, names.to_version)
        )
        ((least,),) = database.execute(f"SELECT min({first}) FROM {table}")
        if least is not None and least >= version:
            raise refuse_emptied(f"{database.location}, table {self.target!r}", version)
        database.change_rows(f"DELETE FROM {table} WHERE {first} >= ?", version)
        database.change_rows(
            f"UPDATE {table} SET {valid_to} = NULL, {last} = NULL WHERE {last} >= ?", version
        )
        ((rows,),) = database.execute(f"SELECT count(*) FROM {table} WHERE {last} IS NULL")
        return self._count_rows(replace(claim, rows=rows))

    def _count_rows(self, claim: Claim) -> Claim:
        self.database.save_row_count(self.target, claim)
        return claim

    def _check_count(self, found: int, keys: pa.Table, *, unchecked: bool, where: str = "") -> None:
        """Raise if keys are not those of a row each. A table that somebody else has made may take
        two keys for one, and the rows of both would leave."""
        if found == keys.num_rows or (unchecked and found < keys.num_rows):
            return
        database = self.database
        database.restart_transaction()
        lacking = database.find_keys(self.target, keys, self.form.key, there=False, where=where)
        if lacking:
            raise self._refuse_lacking(lacking)
        raise TargetRefused(
            f"{database.location}, table {self.target!r}: {keys.num_rows} keys that leave would "
            f"remove {found} rows: somebody has doubled rows, which `tailer verify CONFIG "
            f"{self.feed} --repair` sets right, or the columns {list(self.form.key)} take two "
            "values for one, as by a collation without case, or a trigger interferes"
        )

    def _refuse_lacking(self, keys: Sequence[tuple[Any, ...]]) -> SinkRejected:
        return self._make_refusal(
            keys,
            "that the copy lacks; it must begin with all rows of the "
            'table (from = "snapshot") and have one writer',
            f"verify CONFIG {self.feed} --repair` sets right what somebody changed"
            if self.form.history is None
            else "offsets reset` creates the history again",
        )

    def _refuse_present(self, keys: Sequence[tuple[Any, ...]]) -> SinkRejected:
        return self._make_refusal(
            keys,
            "that the copy has already, so the key columns do not "
            "identify a row; choose others, or mirror by row id",
            "offsets reset` creates the copy again",
        )

    def _make_refusal(
        self, keys: Sequence[tuple[Any, ...]], what: str, remedy: str
    ) -> SinkRejected:
        shown = ", ".join(str(dict(zip(self.form.key, key, strict=True))) for key in keys)
        return RowsRefused(
            f"{self.database.location}, table {self.target!r}: a change is of a row with a key "
            f"{what}: {shown}; `tailer {remedy}"
        )


@contextmanager
def _without_rows() -> Iterator[None]:
    """Guard statements that no row of the batch is in: what refuses them refuses no row."""
    try:
        yield
    except RowsRefused as e:
        raise TargetRefused(str(e)) from e


def _list_values(column: pa.Array) -> list[Any]:
    """Return the values of a key column; times as texts, since Python lacks some of them."""
    plain = column.cast(pa.string()) if pa.types.is_temporal(column.type) else column
    return list(plain.to_pylist())
