"""A sink that keeps a copy of a table (a mirror), its history, or a log of its changes, in a SQL
database.

Rows and offset are in one transaction, so each change is in the database exactly once. The merge
is written here for all databases; :class:`sinks.sql.database.Database` is what one of them says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import anyio.to_thread
import pyarrow as pa

from sinks.shared.copy_sink import CopySink, TableForm
from sinks.shared.options import make_table_settings
from sinks.sql.copies import SqlCopy, SqlRepair
from sinks.sql.database import Claim, Database
from sinks.sql.rehearsal import rehearse_feed
from sinks.sql.table_rows import TableRows
from sinks.sql.table_transactions import TableSession, TableTransactions
from sinks.sql.table_writer import TableWriter
from tailer.changes import ChangeBatch, Offset
from tailer.errors import TargetRefused
from tailer.settings import Setting
from tailer.sink import OWN_PREFIX

TABLE_SETTINGS: dict[str, Setting] = {
    "table": Setting("text", "", "The table to write.", unset="the feed's name"),
    **make_table_settings(("mirror", "history", "log")),
    "create": Setting(
        "flag", True, "Create the table. If false, it must exist, empty and with the right "
        "columns.", advanced=True,
    ),
    "evolve": Setting(
        "flag", True, "Apply schema changes to the table. If false, stop and print the required "
        "SQL.", advanced=True,
    ),
}  # fmt: skip


class SqlSink(CopySink):
    """A copy of a table, or a log of its changes, in a database, exactly once."""

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
        super().__init__(TableForm.with_prefix(mode, key, own_prefix))
        self.table = table
        self.create = create
        self.evolve = evolve
        self.traits = self._form.make_traits(
            folded=database.folds_names, numbered=bool(database.numbering),
            repaired_beside=database.has_row_locks,
        )  # fmt: skip
        self.faults = database.faults
        self._database = database
        self._target = ""
        self._session: TableSession | None = None
        self._written_before = False

    def check_columns(self, schema: pa.Schema) -> None:
        self._make_rows("").check_columns(schema)

    def check_record_form(
        self, feed: str, saved: Mapping[str, Any] | None, at: Offset | None
    ) -> Mapping[str, Any]:
        self._written_before = bool(saved)
        return super().check_record_form(feed, saved, at)

    def _open_table(self, feed: str) -> Offset | None:
        self._database.close()
        self._database.begin_at(written=self._written_before)
        self._target = self.table or feed
        session = self._session = self._make_session(feed)
        try:
            self._database.connect()
            return session.open()
        except BaseException:
            self._database.close()
            raise

    def _make_writer(self, feed: str) -> TableWriter:
        return TableWriter(
            self._database,
            self.table or feed,
            feed,
            self._form,
            create=self.create,
            evolve=self.evolve,
        )

    def _make_session(self, feed: str) -> TableSession:
        target = self.table or feed
        transactions = TableTransactions(
            self._make_rows(target).build_rows,
            self._form,
            name=f"{self._database.location}: the copy {target!r}",
            folds_names=self._database.folds_names,
        )
        return TableSession(self._make_writer(feed), transactions)

    def _make_rows(self, target: str) -> TableRows:
        return TableRows(self._database, target, self._form, self.traits.own)

    @property
    def lacks_beginning(self) -> bool:  # type: ignore[override]
        """Whether a copy has just begun; a log may begin anywhere."""
        claim = None if self._session is None else self._session.transactions.committed_claim
        return not self._form.is_log and claim is not None and claim.epoch == 1

    async def rehearse(self, feed: str, schema: pa.Schema) -> None:
        """Do what a feed does, and undo it."""
        await anyio.to_thread.run_sync(self._rehearse_feed, feed, schema)

    def _rehearse_feed(self, feed: str, schema: pa.Schema) -> None:
        database, target = self._database, self.table or feed
        database.names.check_table(target)
        database.check_schema(schema)
        try:
            database.connect()
            writer = self._make_writer(feed)
            rehearse_feed(writer, self._make_rows(target).first_columns(schema))
        finally:
            database.close()

    def _look_at_table(self, feed: str) -> Offset | None:
        with self._open_for_reading():
            found = self._check_target(feed, adopt=not self.create)
            return found.offset if found else None

    def _check_target(self, feed: str, *, adopt: bool = False) -> Claim | None:
        """Return what the database says of the table. Raises as of :meth:`Database.check_target`,
        and for a history that has other columns."""
        target, database = self.table or feed, self._database
        claim = database.check_target(target, feed, self._form.mode, adopt=adopt)
        if self._history is not None and claim is not None and claim.columns is not None:
            self._history.check_kept(claim.columns.names, f"{database.location}, table {target!r}")
        return claim

    @contextmanager
    def _open_for_reading(self) -> Iterator[None]:
        try:
            self._database.connect(read_only=True)
            yield
        finally:
            self._database.close()

    def _set_offset(self, feed: str, offset: Offset | None) -> None:
        target, database = self.table or feed, self._database
        try:
            database.connect()
            if offset is None:
                database.forget(target, feed, self._form.mode, drop=self.create)
            else:
                session = self._make_session(feed)
                session.open()
                claim = session.transactions.committed_claim
                lacks = claim is None or claim.columns is None
                if not self._form.is_log and lacks and offset.position > (0, 0):
                    raise TargetRefused(
                        f"{database.location}: there is no copy {target!r}, and a copy can't start "
                        f"at version {offset.version}; restore it, or start over with `tailer "
                        "offsets reset`"
                    )
                session.move_offset(offset)
        finally:
            database.close()

    async def aclose(self) -> None:
        self._session = None
        await anyio.to_thread.run_sync(self._close_database)
        self._database.begin_at(written=False)

    def _close_database(self) -> None:
        self._database.close()

    @contextmanager
    def read_mirror(self, feed: str) -> Iterator[SqlCopy]:
        target, database = self.table or feed, self._database
        if self._form.is_log:
            raise TargetRefused(
                f"{database.location}: the table {target!r} is a log and not a mirror"
            )
        with self._open_for_reading(), database.snapshot():
            yield SqlCopy(database, target, self._check_target(feed), self._form)

    @contextmanager
    def repair_mirror(self, feed: str) -> Iterator[SqlRepair]:
        if self._form.mode != "mirror":
            raise TargetRefused(
                f"{self._database.location}: only a mirror is repaired, and {self.table or feed!r} "
                f"is a {self._form.mode}; `tailer offsets reset` creates it again"
            )
        try:
            yield SqlRepair(self._make_writer(feed), self._make_rows(self.table or feed))
        finally:
            self._database.close()

    # Writing

    def _require_session(self) -> TableSession:
        if self._session is None:
            raise TargetRefused("the sink is not open")
        self._database.connect()
        return self._session

    def _move_offset(self, offset: Offset) -> None:
        self._require_session().move_offset(offset)

    def _write_batch(self, batch: ChangeBatch) -> None:
        self._require_session().write(batch)
