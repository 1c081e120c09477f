"""A table of an open format that a feed writes: who writes it, how far it is, and commits that say
so.

Rows and offset are in one commit, so each change is in the table exactly once. A process that finds
another number in the table than that of its last commit has been replaced.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sinks.shared.history import HistoryMerge, HistoryNames
from sinks.shared.merge import ColumnStep
from tailer.changes import Offset
from tailer.errors import ConfigError, TargetRefused, TransientError

#: The name under which a commit has what it says.
INFO = "delta-tailer"


@dataclass(frozen=True, slots=True)
class TableClaim:
    """What a commit says: ``number`` grows with each, ``physical`` are the columns' names in the
    source's files, ``key`` those of the key columns. ``repairing``: rows that somebody else has
    changed are being set right, and some may be wrong still."""

    number: int
    mode: str
    offset: Offset | None
    key: list[str] | None = None
    physical: Mapping[str, str] = field(default_factory=dict)
    repairing: bool = False

    def advance(self, **changes: Any) -> TableClaim:
        """Return the claim of the next commit."""
        return replace(self, number=self.number + 1, **changes)


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """``steps`` lead from the table's columns to others, ``new``, both of
    :func:`~sinks.shared.merge.with_physical_names`, for the rows of a ``version``. ``keep``: a log
    keeps all that it has."""

    old: pa.Schema
    version: pa.Schema
    new: pa.Schema
    steps: Sequence[ColumnStep]
    keep: bool


class TargetTable(ABC):
    """One target table. All methods block, and raise the errors of a sink."""

    #: How people call it, which begins each sentence.
    address: str
    #: What the last commit of ours says; None if there is no table.
    claim: TableClaim | None
    #: The option that names it.
    option: str

    @abstractmethod
    def translate_errors(self) -> AbstractContextManager[None]:
        """Raise the package's errors as those of a sink."""

    @abstractmethod
    def load(self, feed: str, mode: str, *, as_it_is: bool = False) -> TableClaim | None:
        """Read what the table says of the feed; None if there is no table. Raises
        :class:`TargetRefused` for a table that this feed and mode did not make, and, unless it is
        to be read ``as_it_is``, for rows that somebody else has changed."""

    @abstractmethod
    def refresh(self) -> None:
        """Read the commits of others. Raises :class:`ConfigError` if one of them has the table,
        and :class:`TransientError`, after which it is opened again, if it is another table."""

    @abstractmethod
    def find_schema(self) -> pa.Schema:
        """Return the table's columns."""

    def convert_rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows with the types that the table has for theirs."""
        return rows

    @abstractmethod
    def scan(
        self, columns: Sequence[str] | None = None, where: pc.Expression | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows that meet a condition, some batches in memory at a time."""

    @abstractmethod
    def find_keys(
        self, asked: pa.Table, where: pc.Expression | None = None, columns: Sequence[str] = ()
    ) -> pa.Table:
        """Return those of the asked keys that the table has, each as often as it is there, and
        maybe some that have only their first column in common with one of them. ``columns`` are
        those of ``where``, which its rows have to meet."""

    @abstractmethod
    def create_table(self, schema: pa.Schema, claim: TableClaim) -> None:
        """Create the table, without rows."""

    @abstractmethod
    def change_columns(self, change: ColumnChange, claim: TableClaim) -> None:
        """Give the table other columns, in one commit."""

    @abstractmethod
    def append_rows(self, rows: pa.Table, claim: TableClaim) -> None:
        """Append rows, maybe none, in one commit."""

    @abstractmethod
    def merge_rows(
        self, leaving: pa.Table, rows: pa.Table, key: list[str], claim: TableClaim
    ) -> None:
        """Delete the rows of the keys that leave, and write rows in the place of those of their
        keys, in one commit."""

    def merge_history(
        self, merge: HistoryMerge, names: HistoryNames, key: list[str], claim: TableClaim
    ) -> None:
        """End the current rows of keys, and add those that begin, in one commit. Only for tables
        with the mode ``history``."""
        raise NotImplementedError

    def take_back(self, version: int, names: HistoryNames, claim: TableClaim) -> None:
        """Forget what a history has of a version and all later ones, in one commit."""
        raise NotImplementedError

    # What is said of it

    def make_replaced_error(self) -> ConfigError:
        """Return what is said to a process whose table another one writes."""
        return ConfigError(
            f"{self.address}: another process writes this table now; stop one of them"
        )

    def make_other_table_error(self) -> TransientError:
        """Return what is said of a table that is not the one that was opened."""
        return TransientError(
            f"{self.address} was removed, or replaced by another table; it is opened again"
        )

    def make_stranger_error(self, feed: str) -> TargetRefused:
        """Return what is said of a table that says nothing of the feed."""
        return TargetRefused(
            f"{self.address} is a table that the feed {feed!r} has not made, or what it said of "
            f"itself was removed; name another one in the option {self.option!r}"
        )

    def check_mode(self, claim: TableClaim, mode: str) -> None:
        """Raise :class:`TargetRefused` for a table of another mode."""
        if claim.mode != mode:
            raise TargetRefused(
                f"{self.address} is a {claim.mode} and not a {mode}; name another one in the "
                f"option {self.option!r}"
            )

    def make_changed_error(self, version: Any, mode: str) -> TargetRefused:
        """Return what is said of a copy whose rows a commit of somebody else has changed."""
        remedy = (
            "`tailer verify CONFIG FEED --repair` makes it so again"
            if mode == "mirror"
            else "remove it, then `tailer offsets reset` creates the history again"
        )
        return TargetRefused(
            f"{self.address}: version {version} of the copy changed its rows and was written by "
            f"somebody else, so it is no longer the table's copy; {remedy}"
        )


def has_exact_bounds(data_type: pa.DataType) -> bool:
    """Return whether files' statistics are exact for a type with every writer."""
    types = pa.types
    return bool(
        types.is_integer(data_type) or types.is_date(data_type) or types.is_string(data_type)
    )


def cast_columns(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of a schema, with its types."""
    columns = [batch.column(field.name).cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def filter_keys(batches: Iterator[pa.RecordBatch], asked: pa.Table) -> pa.Table:
    """Return the keys among these whose first column has a value of an asked one."""
    types, first = asked.schema, asked.column_names[0]
    wanted, found = pc.unique(asked[first]), []
    for batch in batches:
        keys = cast_columns(batch, types)
        keys = keys.filter(pc.is_in(keys.column(first), value_set=wanted))
        if keys.num_rows:
            found.append(keys)
    return pa.Table.from_batches(found, schema=types)
