"""A SQL database as the target of feeds: what its dialect must say, and who writes what.

Each target has a row in ``_delta_tailer``: the feed that writes it, the epoch of the process that
claimed it last, the offset after its last write, and the columns that it has. Everything that a
write changes is in one transaction with that row, which only the last process to claim it can
change.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa

from sinks.shared.history import HistoryNames
from sinks.shared.merge import ColumnStep
from sinks.sql.names import NameRules
from sinks.sql.text import Room, ValueRefused, with_json
from tailer.changes import Offset
from tailer.errors import (
    ConfigError,
    OffsetError,
    RowsRefused,
    SinkRejected,
    TargetRefused,
    TransientError,
)
from tailer.sink import FaultTable

__all__ = ["CLAIMS", "Claim", "Database", "KeyTaken", "ValueRefused"]

#: The table with the claims.
CLAIMS = "_delta_tailer"
_FIELDS = ("feed", "epoch", "mode", "key", "offset", "columns", "rows")


class KeyTaken(RowsRefused):
    """A row that was to be added has the key of a row that is there."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What the database says of a target: ``key`` are the physical names of its key columns, and
    ``columns`` those that it has; both None before the first write. ``rows`` is how many rows a
    mirror has."""

    feed: str
    epoch: int
    mode: str
    key: list[str] | None = None
    offset: Offset | None = None
    columns: pa.Schema | None = None
    rows: int = 0


class Database(ABC):
    """A connection to one database, and its dialect. All methods block.

    ``location`` is what errors call it. Statements have ``?`` for values. Errors of the driver are
    raised as those of ``faults``.
    """

    location: str
    #: What the codes of the database's errors mean.
    faults: ClassVar[FaultTable]
    #: Tables are made with the key as primary key, so that no key is there twice.
    enforces_keys: ClassVar[bool] = True
    #: The table's columns change within transactions.
    ddl_in_transactions: ClassVar[bool] = True
    #: Whether two connections write rows of one table without one failing because of the other.
    has_row_locks: ClassVar[bool] = False
    #: What names it takes.
    names: ClassVar[NameRules]
    #: It does not tell names of columns apart that differ in case alone.
    folds_names: ClassVar[bool] = True
    #: The definition of a log's column that has the order of the events; empty: it has none.
    numbering: ClassVar[str] = ""
    #: Types of the columns of claims: names, texts of any length, numbers, bytes.
    claim_types: ClassVar[tuple[str, str, str, str]] = ("TEXT", "TEXT", "BIGINT", "BLOB")
    #: What a temporary table has to have besides its columns.
    scratch: ClassVar[str] = ""
    #: What locks the rows that a statement selects.
    lock: ClassVar[str] = ""
    #: What makes a table, and what ends a transaction: other statements in a rehearsal.
    creates: str = "CREATE TABLE"
    ends: tuple[str, str] = ("COMMIT", "ROLLBACK")
    #: A rehearsal makes tables as a feed does, with the same rights.
    makes_in_rehearsal: ClassVar[bool] = True
    #: The options of a table that say how its texts are kept and compared.
    texts: str = ""

    @abstractmethod
    def connect(self, *, read_only: bool = False) -> None:
        """Connect, if there is no connection."""

    def begin_at(self, *, written: bool) -> None:  # noqa: B027  # a server has none
        """Take whatever file there is, before it is opened for a feed. ``written``: the feed has
        written to it, so it has to be there."""

    def close(self) -> None:
        """Close the connection, if there is one."""
        self.abandon()

    @abstractmethod
    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run one statement; return its rows."""

    @abstractmethod
    def change_rows(self, statement: str, *values: Any) -> int:
        """Run one statement; return how many rows it has changed."""

    @abstractmethod
    def abandon(self) -> None:
        """Close a connection whose state is not known. Does not raise."""

    @abstractmethod
    def has_table(self, name: str) -> bool:
        """Return whether there is a table of this name."""

    @abstractmethod
    def list_columns(self, name: str) -> list[str]:
        """Return the names of a table's columns."""

    def check_schema(self, schema: pa.Schema) -> None:  # noqa: B027  # a dialect's
        """Raise :class:`TargetRefused` for an option that does not fit the columns of the newest
        version."""

    @abstractmethod
    def check_values(self, column: pa.Array) -> None:
        """Raise :class:`ValueRefused` for a type or a value that the database can't hold.
        ``column`` is one of :meth:`to_database_type`."""

    def find_rooms(self, target: str, key: Sequence[str], schema: pa.Schema) -> Mapping[str, Room]:  # noqa: ARG002  # a dialect's
        """Return which columns of a table have room for values of some length alone. ``schema`` has
        the columns that it has next."""
        return {}

    def to_database_type(self, name: str, column: pa.Array) -> pa.Array:  # noqa: ARG002  # a dialect's
        """Return the column ``name`` in the Arrow type in which it is kept: a variant as its JSON,
        and all else as it is."""
        return with_json(column)

    def to_database_schema(self, columns: Iterable[pa.Field]) -> pa.Schema:
        """Return columns with the types of :meth:`to_database_type`."""
        return pa.schema(
            [(f.name, self.to_database_type(f.name, pa.array([], f.type)).type) for f in columns]
        )

    @abstractmethod
    def format_type(self, data_type: pa.DataType) -> str:
        """Return the type of a column with values of :meth:`to_database_type`."""

    @abstractmethod
    def stage_rows(self, keys: pa.Table) -> AbstractContextManager[str]:
        """Provide rows as a relation within the transaction; return its quoted name."""

    def append(self, target: str, rows: pa.Table) -> None:
        """Add rows to a table. Raises :class:`KeyTaken` if it enforces its key."""
        self.insert_rows(self.quote_table(target), rows)

    @abstractmethod
    def insert_rows(self, relation: str, rows: pa.Table) -> None:
        """Add rows to a relation of this quoted name."""

    @abstractmethod
    def read_rows(self, query: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a query, in bounded memory, in the form of :meth:`make_comparable`.
        ``schema`` has the types of :meth:`to_database_type`."""

    def make_comparable(self, column: pa.Array, data_type: pa.DataType) -> pa.Array:  # noqa: ARG002
        """Return a column, as it is held or as it was read, in a form that equal values share.
        ``data_type`` is that of :meth:`to_database_type`."""
        return column

    def from_comparable(self, column: pa.Array, data_type: pa.DataType) -> pa.Array:
        """Return a key's column of :meth:`make_comparable` in the type that the database has."""
        return column.cast(data_type)

    def snapshot(self) -> AbstractContextManager[None]:
        """Provide a transaction in which all queries see the same."""
        return self.transaction()

    def begin(self) -> None:
        """Begin a transaction."""
        self.execute("BEGIN")

    def quote_name(self, name: str) -> str:
        """Return a name as an identifier."""
        return '"' + name.replace('"', '""') + '"'

    def quote_table(self, name: str) -> str:
        """Return a table's name as the statements have it."""
        return self.quote_name(name)

    def quote_names(self, names: Sequence[str]) -> str:
        """Return names as a list of identifiers."""
        return ", ".join(map(self.quote_name, names))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what is executed within, or none of it."""
        self.begin()
        try:
            yield
            self.execute(self.ends[0])
        except SinkRejected:
            self.execute(self.ends[1])
            raise
        except BaseException:
            self.abandon()
            raise

    def restart_transaction(self) -> None:
        """Undo the transaction so far, for a look at what was there."""
        self.execute(self.ends[1])
        self.begin()

    # The tables

    def format_creation(
        self, target: str, schema: pa.Schema, key: Sequence[str], number: str
    ) -> str:
        """Return the statement that makes a table. One without a key is a log, whose events have
        their order in the column ``number``, where the database has :attr:`numbering`."""
        columns = [self.format_column(field, key, schema) for field in schema]
        if key and self.enforces_keys:
            columns.append(f"PRIMARY KEY ({self.quote_names(key)})")
        elif not key and self.numbering:
            columns.insert(0, f"{self.quote_name(number)} {self.numbering}")
        return f"{self.creates} {self.quote_table(target)} ({', '.join(columns)})"

    def format_column(self, field: pa.Field, key: Sequence[str], schema: pa.Schema) -> str:  # noqa: ARG002  # where a type depends on the key
        """Return the definition of a column of a table with this key."""
        return f"{self.quote_name(field.name)} {self.format_type(field.type)}"

    def is_done(self, target: str, schema: pa.Schema) -> bool:  # noqa: ARG002  # a dialect's
        """Return whether a table is known to have these columns, where that is not part of the
        transaction of the rows."""
        return False

    def format_alterations(
        self,
        target: str,
        steps: Sequence[ColumnStep],
        schema: pa.Schema,  # noqa: ARG002  # the columns that it has then
    ) -> list[str]:
        """Return the statements that change the columns of a table to those of ``schema``."""
        return [
            f"ALTER TABLE {self.quote_table(target)} {self.format_alteration(step)}"
            for step in steps
        ]

    def format_alteration(self, step: ColumnStep) -> str:
        """Return a step as the end of a statement."""
        column, to = self.quote_name(step.column), step.field
        match step.kind:
            case "add":
                return f"ADD COLUMN {column} {self.format_type(to.type)}"
            case "drop":
                return f"DROP COLUMN {column}"
            case "rename":
                return f"RENAME COLUMN {column} TO {self.quote_name(to.name)}"
            case "retype":
                return f"ALTER COLUMN {column} SET DATA TYPE {self.format_type(to.type)}"

    def delete_rows(self, target: str, keys: str, key: Sequence[str]) -> int:
        """Delete the rows with the keys of a staged relation; return how many there were."""
        statement = f"DELETE FROM {self.quote_table(target)} AS t USING {keys} AS k WHERE "
        return self.change_rows(statement + self.format_key_match(key))

    def format_key_match(self, key: Sequence[str]) -> str:
        """Return the condition that ``t`` and ``k`` have the same key."""
        return " AND ".join(f"t.{n} = k.{n}" for n in map(self.quote_name, key))

    def end_rows(self, target: str, ends: str, key: Sequence[str], names: HistoryNames) -> int:
        """End the current rows of a history with the keys of a staged relation, which has the
        columns of the end; return how many there were."""
        sets = f"{self.quote_name(names.valid_to)} = k.{self.quote_name(names.valid_to)}, "
        sets += f"{self.quote_name(names.to_version)} = k.{self.quote_name(names.to_version)}"
        return self.change_rows(
            f"UPDATE {self.quote_table(target)} AS t SET {sets} FROM {ends} AS k "
            f"WHERE {self.format_open_match(key, names)}"
        )

    def format_open_match(self, key: Sequence[str], names: HistoryNames) -> str:
        """Return the condition that ``t`` is current and older, and has the key of ``k``."""
        began, ended = self.quote_name(names.from_version), self.quote_name(names.to_version)
        return f"{self.format_key_match(key)} AND t.{ended} IS NULL AND t.{began} < k.{ended}"

    def find_keys(
        self, target: str, keys: pa.Table, key: Sequence[str], *, there: bool, where: str = ""
    ) -> list[tuple[Any, ...]]:
        """Return up to three of the keys that are in the table, or that are not. ``where`` is what
        else its rows ``t`` are."""
        names = ", ".join(f"k.{self.quote_name(name)}" for name in key)
        with self.stage_rows(keys) as staged:
            return self.execute(
                f"SELECT {names} FROM {staged} AS k WHERE {'' if there else 'NOT '}EXISTS "
                f"(SELECT 1 FROM {self.quote_table(target)} AS t "
                f"WHERE {self.format_key_match(key)}{f' AND {where}' if where else ''}) LIMIT 3"
            )

    def try_rights(  # noqa: B027  # a file's are those of its folder
        self, target: str, key: Sequence[str], *, create: bool, evolve: bool, updates: bool
    ) -> None:
        """Raise the error of a right that a feed needs and its account lacks, as far as no
        rehearsal shows it. ``key`` is a mirror's; ``updates``: a history's rows are changed."""

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Undo what is executed within. The connection is closed. A file is another one."""
        try:
            yield
        finally:
            self.abandon()

    def idle_statements(self) -> list[str]:
        """Return a feed's statements about its claim that change nothing."""
        claims = self.quote_table(CLAIMS)
        return [
            f"INSERT INTO {claims} SELECT * FROM {claims} WHERE 1 = 0",
            f"UPDATE {claims} SET epoch = 0 WHERE 1 = 0",
        ]

    # Who writes what

    def find_claim(self, target: str, *, lock: str = "") -> Claim | None:
        """Return what the database says of a target, if anything."""
        rows = self.execute(
            f"SELECT {self.quote_names(_FIELDS)} FROM {self.quote_table(CLAIMS)} "
            f"WHERE target = ?{lock}",
            target,
        )
        if not rows:
            return None
        feed, epoch, mode, key, offset, columns, counted = rows[0]
        try:
            at = None if offset is None else Offset.from_json(json.loads(offset))
        except (ValueError, OffsetError) as e:
            raise TargetRefused(
                f"{self.location}: the offset of {target!r} is damaged ({e})"
            ) from e
        claimed_columns = None if columns is None else pa.ipc.read_schema(pa.py_buffer(columns))
        key = None if key is None else json.loads(key)
        return Claim(feed, epoch, mode, key, at, claimed_columns, counted or 0)

    def make_claims(self) -> None:
        """Make the table with the claims, if there is none."""
        name, text, number, data = self.claim_types
        if self.list_columns(CLAIMS):
            return
        key, offset, columns, rows = map(self.quote_name, ("key", "offset", "columns", "rows"))
        self.execute(
            f"{self.creates} IF NOT EXISTS {self.quote_table(CLAIMS)} (target {name} PRIMARY KEY, "
            f"feed {text} NOT NULL, epoch {number} NOT NULL, mode {text} NOT NULL, "
            f"{key} {text}, {offset} {text}, {columns} {data}, {rows} {number}) "
            f"{self.texts}".rstrip()
        )

    def claim(self, target: str, feed: str, mode: str, *, adopt: bool = False) -> Claim:
        """Claim a target for this process: from now on older ones can't write it. ``adopt`` takes
        an empty table that somebody else made.

        Raises :class:`SinkRejected` for a target of another feed or mode, or of somebody else.
        """
        try:
            self.make_claims()
            return self._take_claim(target, feed, mode, adopt=adopt)
        except KeyTaken as e:
            raise TransientError(f"{self.location}: {target!r} is claimed just now; {e}") from e

    def _take_claim(self, target: str, feed: str, mode: str, *, adopt: bool) -> Claim:
        claims = self.quote_table(CLAIMS)
        with self.transaction():
            claim = self.check_target(target, feed, mode, adopt=adopt, lock=self.lock)
            if claim is None:
                insert = f"INSERT INTO {claims} (target, feed, epoch, mode) VALUES (?, ?, 1, ?)"
                self.change_rows(insert, target, feed, mode)
                return Claim(feed, 1, mode)
            claimed = replace(claim, epoch=claim.epoch + 1)
            # As this release writes it, for the next write compares it.
            at = self.quote_name("offset")
            statement = f"UPDATE {claims} SET epoch = ?, {at} = ? WHERE target = ?"
            self.change_rows(statement, claimed.epoch, _format_offset(claimed.offset), target)
        return claimed

    def check_target(
        self, target: str, feed: str, mode: str, *, adopt: bool = False, lock: str = ""
    ) -> Claim | None:
        """Return what the database says of a target. Raises as of :meth:`claim`."""
        self.names.check_table(target)
        claim = self.find_claim(target, lock=lock) if self.has_table(CLAIMS) else None
        exists = self.has_table(target)
        if claim is None:
            if exists and (
                not adopt or self.execute(f"SELECT 1 FROM {self.quote_table(target)} LIMIT 1")
            ):
                made = "that is not empty" if adopt else "that no feed has made"
                raise TargetRefused(
                    f"{self.location} has a table {target!r} {made}; name another in the option "
                    "'table'"
                )
            return None
        self._check_owner(claim, target, feed, mode)
        if claim.columns is not None and not exists:
            raise TargetRefused(
                f"{self.location}: the table {target!r} was dropped; `tailer offsets reset` "
                "creates it again"
            )
        if claim.rows > 0 and not self.execute(f"SELECT 1 FROM {self.quote_table(target)} LIMIT 1"):
            raise TargetRefused(
                f"{self.location}: the table {target!r} was emptied, and a copy has all rows from "
                "the beginning on; restore it, or `tailer offsets reset` creates it again"
            )
        return claim

    def _check_owner(self, claim: Claim, target: str, feed: str, mode: str) -> None:
        """Raise :class:`SinkRejected` for a target of another feed or mode."""
        if claim.feed != feed:
            raise TargetRefused(
                f"{self.location}: the table {target!r} is written by the feed {claim.feed!r}; "
                "name another in the option 'table'"
            )
        if claim.mode != mode:
            raise TargetRefused(
                f"{self.location}: the table {target!r} is a {claim.mode} and not a {mode}; name "
                f"another in the option 'table', or set mode = \"{claim.mode}\" back, with which "
                "`tailer offsets reset` removes it"
            )

    def save_claim(self, target: str, before: Claim, claim: Claim) -> None:
        """Store a claim's offset, key, columns and rows, within a transaction, if the target is as
        ``before`` says.

        Raises :class:`ConfigError`, for which no row is parked, if a newer process has claimed it,
        and :class:`TransientError`, after which it is opened again, if it is not as this one has
        left it.
        """
        columns = None if claim.columns is None else claim.columns.serialize().to_pybytes()
        key = None if claim.key is None else json.dumps(claim.key)
        values = (_format_offset(claim.offset), key, columns, claim.rows, target, before.epoch)
        names = ("offset", "key", "columns", "rows")
        sets = ", ".join(f"{self.quote_name(name)} = ?" for name in names)
        at, same = self.quote_name("offset"), _format_offset(before.offset)
        where = f"target = ? AND epoch = ? AND {at} {'IS NULL' if same is None else '= ?'}"
        if before.rows > 0:
            where += f" AND EXISTS (SELECT 1 FROM {self.quote_table(target)})"
        statement = f"UPDATE {self.quote_table(CLAIMS)} SET {sets} WHERE {where}"
        if not self.change_rows(statement, *values, *(() if same is None else (same,))):
            raise self._make_conflict(target, before)

    def save_row_count(self, target: str, claim: Claim) -> None:
        """Store how many rows a claim has, after :meth:`save_claim`."""
        statement = (
            f"UPDATE {self.quote_table(CLAIMS)} SET {self.quote_name('rows')} = ? WHERE target = ?"
        )
        self.change_rows(statement, claim.rows, target)

    def check_unchanged(self, target: str, before: Claim) -> None:
        """Raise as :meth:`save_claim` does, without changing anything."""
        claim = self.find_claim(target) if self.has_table(CLAIMS) else None
        gone = before.columns is not None and not self.has_table(target)
        if gone or claim is None or (claim.epoch, claim.offset) != (before.epoch, before.offset):
            raise self._make_conflict(target, before)

    def _make_conflict(self, target: str, before: Claim) -> ConfigError | TransientError:
        claim = self.find_claim(target) if self.has_table(CLAIMS) else None
        if claim is not None and claim.epoch > before.epoch:
            return ConfigError(
                f"{self.location}: another process writes the table {target!r} now; stop one of "
                "them"
            )
        return TransientError(
            f"{self.location}: the table {target!r} or its offset is not as this feed left it: "
            "it was dropped, emptied or restored; the feed restarts from the state found there"
        )

    def forget(self, target: str, feed: str, mode: str, *, drop: bool) -> None:
        """Drop a target, or only its rows, and what the database says of it. Raises
        :class:`SinkRejected` for a target of another feed or mode."""
        if not self.has_table(CLAIMS):
            return
        with self.transaction():
            claim = self.find_claim(target, lock=self.lock)
            if claim is not None:
                self._check_owner(claim, target, feed, mode)
                if drop:
                    self.execute(f"DROP TABLE IF EXISTS {self.quote_table(target)}")
                elif self.has_table(target):
                    self.change_rows(f"DELETE FROM {self.quote_table(target)}")
                self.change_rows(f"DELETE FROM {self.quote_table(CLAIMS)} WHERE target = ?", target)


def _format_offset(offset: Offset | None) -> str | None:
    return None if offset is None else str(offset)
