"""A sink that keeps a copy of a table (a mirror), or a log of its changes, in a SQL database.

Rows and offset are in one transaction, so each change is in the database exactly once. The merge
is written here for all databases; :class:`sinks.sql.database.Database` is what one of them says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, ClassVar

import anyio.to_thread
import pyarrow as pa

from sinks.shared.delivery import same_form
from sinks.shared.merge import (
    Merge,
    Step,
    columns_kept,
    merge_of,
    physical_name,
    renamed_fields,
    respelled,
    steps_between,
    with_physical_names,
)
from sinks.shared.own_prefix import OWN_PREFIX_SETTING, renamed
from sinks.sql.copy import SqlCopy
from sinks.sql.database import Claim, Database, KeyTaken, ValueRefused
from tailer.changes import COMMIT_VERSION, METADATA_FIELDS, ChangeBatch, Notice, Offset
from tailer.errors import RowsRefused, SinkRejected, TargetRefused
from tailer.faults import FaultTable
from tailer.settings import Setting
from tailer.sink import OWN_PREFIX, OwnNames, SinkTraits, fold_case

__all__ = ["TABLE_SETTINGS", "SqlSink"]

TABLE_SETTINGS: dict[str, Setting] = {
    "table": Setting("text", "", "The table to write.", unset="the feed's name"),
    "mode": Setting(
        "text", "mirror", "Keep a copy of the table, or a log of its change events.",
        choices=("mirror", "log"),
    ),
    "key": Setting(
        "texts", [], "Mode `mirror`: the columns that identify a row; without them, row ids do.",
    ),
    "own_prefix": OWN_PREFIX_SETTING,
    "create": Setting(
        "flag", True, "Create the table. If false, it must exist, empty and with the right "
        "columns.",
    ),
    "evolve": Setting(
        "flag", True, "Apply schema changes to the table. If false, stop and print the required "
        "SQL.",
    ),
}  # fmt: skip
#: The column of a mirror by row id, and those of a log: event ids, and the order of the events.
_ROW_ID, _EVENT_ID, _SEQ = "_row_id", "_event_id", "_seq"
_METADATA = tuple(field.name for field in METADATA_FIELDS)


class SqlSink:
    """A copy of a table, or a log of its changes, in a database, exactly once."""

    #: The sink's type.
    kind: ClassVar[str]
    #: The table's columns change within transactions.
    ddl_in_transactions: ClassVar[bool] = True

    def __init__(
        self,
        database: Database,
        *,
        table: str = "",
        mode: str = "mirror",
        key: Sequence[str] = (),
        own_prefix: str = OWN_PREFIX,
        create: bool = True,
        evolve: bool = True,
    ) -> None:
        self.table = table
        self.mode = mode
        self._is_log = mode == "log"
        self._by_row_id = mode == "mirror" and not key
        self._row_id, self._event_id, self._seq = (
            renamed(name, own_prefix) for name in (_ROW_ID, _EVENT_ID, _SEQ)
        )
        self.key = (self._row_id,) if self._by_row_id else tuple(key)
        self.create = create
        self.evolve = evolve
        own = [self._row_id] * self._by_row_id + [self._event_id] * self._is_log
        own += [self._seq] * (self._is_log and bool(database.numbering))
        self.traits = SinkTraits(
            key_columns=tuple(key),
            row_ids=self._by_row_id,
            runs=True,
            own=OwnNames(tuple(own), database.folds_names, _METADATA if self._is_log else ()),
            keeps_offset=True,
            copies=mode == "mirror",
        )
        self._database = database
        self._target = ""
        self._claim: Claim | None = None
        self._written_before = False

    @property
    def faults(self) -> FaultTable:
        """See :class:`tailer.sink.ListsFaults`."""
        return self._database.faults

    def check_columns(self, schema: pa.Schema) -> None:
        """See :class:`tailer.sink.ChecksColumns`."""
        own = self.traits.own
        self._database.names.check_columns([*schema.names, *own.names, *own.fixed])
        for name, column in zip(schema.names, schema.empty_table().columns, strict=True):
            try:
                self._database.check_values(self._database.held(column.combine_chunks()))
            except ValueRefused as e:
                raise self._unfit(name, e) from e

    def delivery(
        self, feed: str, kept: Mapping[str, Any] | None, at: Offset | None
    ) -> Mapping[str, Any]:
        """See :class:`tailer.sink.KnowsDelivery`. The database itself has the offset: it may be
        copied to another place, and then the table may have another name."""
        self._written_before = bool(kept)
        return same_form({"type": self.kind, "mode": self.mode}, kept, feed, at)

    async def open(self, feed: str) -> Offset | None:
        """Claim the table for this process; see :class:`tailer.sink.Sink`."""
        return await anyio.to_thread.run_sync(self._open, feed)

    def _open(self, feed: str) -> Offset | None:
        self._database.close()
        self._database.begin_at(written=self._written_before)
        self._target = self.table or feed
        try:
            self._database.connect()
            self._claim = self._database.claim(self._target, feed, self.mode, adopt=not self.create)
        except BaseException:
            self._database.close()
            raise
        return self._claim.offset

    @property
    def lacks_beginning(self) -> bool:
        """See :class:`tailer.sink.KeepsCopy`. A log may begin anywhere."""
        return self.mode == "mirror" and self._claim is not None and self._claim.epoch == 1

    async def rehearse(self, feed: str, schema: pa.Schema) -> None:
        """See :class:`tailer.sink.Rehearses`: the table is made, and that is undone."""
        await anyio.to_thread.run_sync(self._rehearse, feed, schema)

    def _rehearse(self, feed: str, schema: pa.Schema) -> None:
        database, target = self._database, self.table or feed
        database.names.check_table(target)
        try:
            database.connect()
            if self.create and not database.has_table(target):
                key = () if self._is_log else self.key
                database.rehearse(
                    database.creation(target, self._first_columns(schema), key, self._seq)
                )
        finally:
            database.close()

    def _first_columns(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns that the table is made with."""
        columns = [*schema, *METADATA_FIELDS] if self._is_log else [*schema]
        held = [(f.name, self._database.held(pa.array([], f.type)).type) for f in columns]
        held += [(self._row_id, pa.int64())] * self._by_row_id
        return pa.schema([*held, *[(self._event_id, pa.string())] * self._is_log])

    async def look(self, feed: str) -> Offset | None:
        """See :class:`tailer.sink.Looks`."""
        return await anyio.to_thread.run_sync(self._look, feed)

    def _look(self, feed: str) -> Offset | None:
        with self._reading():
            target, adopt = self.table or feed, not self.create
            found = self._database.check(target, feed, self.mode, adopt=adopt)
            return found.offset if found else None

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            self._database.connect(read_only=True)
            yield
        finally:
            self._database.close()

    async def set_offset(self, feed: str, offset: Offset | None) -> None:
        """See :class:`tailer.sink.KeepsProgress`. None drops the table, which belongs to the
        offset."""
        await anyio.to_thread.run_sync(self._set_offset, feed, offset)

    def _set_offset(self, feed: str, offset: Offset | None) -> None:
        target, database = self.table or feed, self._database
        try:
            database.connect()
            if offset is None:
                database.forget(target, feed, self.mode, drop=self.create)
            else:
                claim = database.claim(target, feed, self.mode, adopt=not self.create)
                if not self._is_log and claim.columns is None and offset.position > (0, 0):
                    raise TargetRefused(
                        f"{database.place}: there is no copy {target!r}, and one can't begin with "
                        f"version {offset.version}; restore it, or begin again with `tailer "
                        "offsets reset`"
                    )
                with database.transaction():
                    database.move(target, claim, replace(claim, offset=offset))
        finally:
            database.close()

    async def write(self, batch: ChangeBatch) -> None:
        """See :class:`tailer.sink.Sink`."""
        await anyio.to_thread.run_sync(self._write, batch)

    async def announce(self, notice: Notice) -> None:
        """Store a notice's offset; see :class:`tailer.sink.Announces`."""
        if notice.next_offset != notice.offset:
            await anyio.to_thread.run_sync(self._move, notice.next_offset)

    async def aclose(self) -> None:
        """See :class:`tailer.sink.Sink`."""
        self._claim = None
        await anyio.to_thread.run_sync(self._close)
        self._database.begin_at(written=False)

    def _close(self) -> None:
        self._database.close()

    @contextmanager
    def read_mirror(self, feed: str) -> Iterator[SqlCopy]:
        """See :class:`tailer.sink.ReadsMirror`."""
        target, database = self.table or feed, self._database
        if self.mode != "mirror":
            raise TargetRefused(f"{database.place}: the table {target!r} is a log and not a mirror")
        with self._reading(), database.snapshot():
            yield SqlCopy(database, target, database.check(target, feed, self.mode), self.key)

    # Writing

    def _claimed(self) -> Claim:
        if self._claim is None:
            raise TargetRefused("the sink is not open")
        self._database.connect()
        return self._claim

    def _move(self, offset: Offset) -> None:
        before = self._claimed()
        claim = replace(before, offset=offset)
        with self._left_as_it_was(before), self._database.transaction():
            self._database.move(self._target, before, claim)
        self._claim = claim

    def _write(self, batch: ChangeBatch) -> None:
        before = self._claimed()
        rows = self._rows(batch)
        ids = self._event_id if self._is_log else None
        schema = with_physical_names(batch, rows.schema, ids)
        if self._is_log and before.columns is not None and self._database.folds_names:
            # A log keeps all columns: one that is renamed in case alone is the one that it has.
            rows = rows.rename_columns(respelled(schema.names, before.columns.names))
            schema = renamed_fields(schema, rows.schema.names)
        merge = None
        if batch.num_rows and self.mode == "mirror":
            # Rows of a snapshot that is read while the copy is there replace what it has.
            at = before.offset
            again = batch.offset.snapshot and at is not None and not at.snapshot
            merge = merge_of(batch, rows, self.key, unchecked=again)
        claim = replace(self._with_key(before, schema), offset=batch.next_offset)
        claim = replace(claim, columns=self._columns(before, schema))
        if merge is not None:
            claim = replace(claim, rows=before.rows + merge.growth)
        with self._left_as_it_was(before):
            if not self.ddl_in_transactions:
                self._database.check_left(self._target, before)
                self._evolve(before, schema)
            with self._database.transaction():
                with _without_rows():
                    self._database.move(self._target, before, claim)  # first: it is the fence
                if self.ddl_in_transactions:
                    self._evolve(before, schema)
                if merge is not None:
                    claim = self._merge(merge, claim)
                elif batch.num_rows:
                    self._database.append(self._target, pa.table(rows))
                self._written(batch)
        self._claim = claim

    @contextmanager
    def _left_as_it_was(self, before: Claim) -> Iterator[None]:
        """Raise, instead of what a statement says of a table that is not there, that the target is
        not as this process has left it."""
        try:
            yield
        except SinkRejected:
            with suppress(SinkRejected):
                self._database.check_left(self._target, before)
            raise

    def _written(self, batch: ChangeBatch) -> None:
        """Do what else belongs to the transaction of a batch."""

    def _rows(self, batch: ChangeBatch) -> pa.RecordBatch:
        """Return a batch's rows as the table has them. Raises :class:`SinkRejected` for a type or a
        value that the database can't hold."""
        rows = batch.rows
        found = dict(zip(rows.schema.names, rows.columns, strict=True))
        if self._is_log:
            found[self._event_id] = batch.event_ids()
        else:
            found = dict(list(found.items())[: -len(METADATA_FIELDS)])
        held = {}
        for name, column in found.items():
            try:
                held[name] = self._database.held(column)
                self._database.check_values(held[name])
            except ValueRefused as e:
                raise self._unfit(name, e, batch) from e
        if self._by_row_id:
            ids = batch.row_ids
            if ids is None and batch.num_rows:
                raise TargetRefused(
                    f"version {batch.version} has no row ids; name key columns in the option "
                    "'key', or enable row tracking on the table and set change_source to derived"
                )
            held[self._row_id] = pa.array([], pa.int64()) if ids is None else ids
        found = pa.RecordBatch.from_pydict(held)
        self._check_lengths(found, batch)
        return found

    def _check_lengths(self, rows: pa.RecordBatch, batch: ChangeBatch) -> None:
        """Raise :class:`RowsRefused` for a value that its column has no room for."""
        key = () if self._is_log else self.key
        rooms = self._database.rooms(self._target, key, rows.schema) if batch.num_rows else {}
        for name in rows.schema.names:
            if name in rooms:
                try:
                    rooms[name].check(rows.column(name), self._database.names.database)
                except ValueRefused as e:
                    raise self._unfit(name, e, batch) from e

    def _unfit(self, name: str, e: ValueRefused, batch: ChangeBatch | None = None) -> SinkRejected:
        version = f"version {_version(batch, e.row)}: " if batch and e.row is not None else ""
        kind = RowsRefused if version else TargetRefused
        return kind(
            f"{version}the column {name!r} has {e}; exclude it with the feed's option 'columns', "
            "or exclude these rows with `where`"
        )

    def _with_key(self, claim: Claim, schema: pa.Schema) -> Claim:
        """Return the claim with its key. Raises :class:`SinkRejected` if the copy has another."""
        if self._is_log:
            return claim
        physical = {field.name: physical_name(field) for field in schema}
        key = [physical.get(name, name) for name in self.key]
        if claim.key not in (None, key):
            raise TargetRefused(
                f"{self._database.place}: the copy {self._target!r} has the key {claim.key} and "
                f"not {key}; set the option 'key' back, or create it again with `tailer offsets "
                "reset`"
            )
        return replace(claim, key=key)

    def _columns(self, claim: Claim, schema: pa.Schema) -> pa.Schema:
        """Return the columns that the table has after a write; a log keeps all that it had."""
        if self.mode == "mirror" or claim.columns is None:
            return schema
        return columns_kept(claim.columns, schema, folded=self._database.folds_names)

    def _evolve(self, claim: Claim, schema: pa.Schema) -> None:
        """Make the table, or change its columns, or see that somebody else did."""
        if claim.columns is not None and claim.columns.equals(schema, check_metadata=True):
            return
        database = self._database
        if not self.ddl_in_transactions and database.is_done(self._target, schema):
            return  # by a process that ended before its transaction
        if claim.columns is None:
            allowed, option = self.create, "create"
            key = () if self._is_log else self.key
            statements = [database.creation(self._target, schema, key, self._seq)]
        else:
            allowed, option = self.evolve, "evolve"
            folded = database.folds_names
            steps = steps_between(claim.columns, schema, keep=self._is_log, folded=folded)
            statements = database.alterations(self._target, steps, schema)
            if allowed:
                self._check_untaken(claim.columns, steps)
        if allowed:
            with _without_rows():
                for statement in statements:
                    database.execute(statement)
        elif {database.names.kept(n) for n in schema.names} - set(
            database.columns_of(self._target)
        ):
            raise TargetRefused(
                f"{database.place}: the table {self._target!r} lacks columns, and the option "
                f"{option!r} is false; run: {'; '.join(statements)}"
            )

    def _check_untaken(self, had: pa.Schema, steps: Sequence[Step]) -> None:
        """Raise :class:`TargetRefused` for a new name of a column that somebody else's has."""
        fold = fold_case if self._database.folds_names else str
        new = [step.field.name for step in steps if step.kind in ("add", "rename")]
        others = {fold(name) for name in self._database.columns_of(self._target)} if new else set()
        others -= {fold(self._database.names.kept(name)) for name in had.names}
        for name in new:
            if fold(name) in others:
                raise TargetRefused(
                    f"{self._database.place}: the table {self._target!r} has a column {name!r} "
                    "that is not the Delta table's; rename it or drop it there, or leave the Delta "
                    "table's out by the option 'columns' of the feed"
                )

    def _merge(self, merge: Merge, claim: Claim) -> Claim:
        """Delete the keys that leave, insert the rows that come, and hold the copy to its key.
        Return the claim, with the number of rows that the copy has then."""
        database, target, key = self._database, self._target, self.key
        deleted = 0
        if merge.present.num_rows:
            with database.staged(merge.present) as keys:
                deleted = database.delete(target, keys, key)
            if deleted < merge.present.num_rows and not merge.unchecked:
                database.start_again()
                lacks = database.which(target, merge.present, key, there=False)
                raise self._refused(
                    lacks,
                    "that the copy lacks; it must begin with all rows of the "
                    'table (from = "snapshot") and have one writer',
                )
        enforced = database.enforces_keys and self.create
        absent = merge.passing if enforced else merge.absent
        has = absent.num_rows and database.which(target, absent, key, there=True)
        if not has and merge.rows.num_rows:
            try:
                database.append(target, merge.rows)
            except KeyTaken:
                database.start_again()
                has = database.which(target, merge.absent, key, there=True)
                if not has:
                    raise
        if has:
            raise self._refused(
                has,
                "that the copy has already, so the key columns do not "
                "identify a row; choose others, or mirror by row id",
            )
        if not merge.unchecked:
            return claim
        counted = replace(claim, rows=claim.rows + merge.present.num_rows - deleted)
        database.count(target, counted)
        return counted

    def _refused(self, keys: Sequence[tuple[Any, ...]], what: str) -> SinkRejected:
        shown = ", ".join(str(dict(zip(self.key, key, strict=True))) for key in keys)
        again = "; `tailer offsets reset` creates the copy again"
        return RowsRefused(
            f"{self._database.place}, table {self._target!r}: a change is of a row with a key "
            f"{what}: {shown}{again}"
        )


@contextmanager
def _without_rows() -> Iterator[None]:
    """Guard statements that no row of the batch is in: what refuses them refuses no row."""
    try:
        yield
    except RowsRefused as e:
        raise TargetRefused(str(e)) from e


def _version(batch: ChangeBatch, row: int) -> int:
    version: int = batch.rows.column(COMMIT_VERSION)[row].as_py()
    return version
