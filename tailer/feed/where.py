"""Conditions on partitions: which files of a table a feed, or a snapshot, is asked for.

A partition column may have been renamed, or its type widened, between the version that is read and
the newest one. A condition is written for the table as it is now, so it means the same everywhere:
names are those of the newest version that is known, or, where that has no such column, of the
file's own; and values are compared in the newest version's type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from msgspec import Struct

from tailer.changes import ChangeFile
from tailer.delta.comparisons import Comparison, IsNull, Node, Not, NotUnderstood, Parser
from tailer.delta.partitions import partition_scalar, partition_text
from tailer.delta.snapshot import TableState
from tailer.delta.types import DataType, PrimitiveType, StructField
from tailer.errors import ConfigError, CorruptLog, TableError

#: How a partition's value compares with the literals.
_COMPARISONS: dict[str, Callable[[Any, list[Any]], bool]] = {
    "=": lambda value, literals: bool(value == literals[0]),
    "<>": lambda value, literals: bool(value != literals[0]),
    "<": lambda value, literals: bool(value < literals[0]),
    "<=": lambda value, literals: bool(value <= literals[0]),
    ">": lambda value, literals: bool(value > literals[0]),
    ">=": lambda value, literals: bool(value >= literals[0]),
    "in": lambda value, literals: value in literals,
}


class _Term(Struct, frozen=True):
    """One comparison of a partition column, perhaps negated."""

    test: Comparison | IsNull
    negated: bool

    @classmethod
    def of(cls, node: Node) -> _Term:
        """Return a term for what the parser gives for one comparison."""
        test = node.child if isinstance(node, Not) else node
        assert isinstance(test, Comparison | IsNull)
        return cls(test, negated=isinstance(node, Not))

    def holds(self, file: ChangeFile, columns: PartitionColumns) -> bool:
        """Return whether the comparison is true for the rows of a file."""
        own, kind = columns.find(self.test.column, file)
        try:
            text = partition_text(
                file.partition_values,
                file.state.physical_name(own),
                own.name,
                absent_is_null=file.change_type is None,
            )
            value, kind = _value(text, own.type, kind, columns.zone)
        except TableError as e:
            raise e.at(version=file.version, path=file.path) from None
        if isinstance(self.test, IsNull):
            return (value is None) is not self.negated
        if value is None:
            return False  # as in SQL: a comparison with null is never true
        try:
            literals = self.literals(kind, columns.zone)
        except ConfigError as e:
            raise TableError(f"`where` {e}", version=file.version) from None
        return _COMPARISONS[self.test.op](value, literals) is not self.negated

    def literals(self, kind: DataType, zone: str) -> list[Any]:
        """Return the values, in the column's type. Raises :class:`ConfigError` for one that does
        not fit it."""
        found = []
        for literal in self.test.literals if isinstance(self.test, Comparison) else ():
            try:
                found.append(_key(partition_scalar(literal.text, kind, zone)))
            except TableError:
                name = kind.name if isinstance(kind, PrimitiveType) else "text"
                raise ConfigError(
                    f"compares {self.test.column!r} with {literal.text!r}, "
                    f"which is not a valid {name}"
                ) from None
        return found


def _value(text: str | None, own: DataType, newest: DataType, zone: str) -> tuple[Any, DataType]:
    """Return a partition's value to compare with, and its type: the newest one, or the file's own
    if the value has none in that (the column was replaced by another)."""
    try:
        return _key(partition_scalar(text, newest, zone)), newest
    except CorruptLog:
        if own == newest:
            raise
    return _key(partition_scalar(text, own, zone)), own


def _key(value: pa.Scalar) -> Any:
    """Return a value that compares with others of its type; times as numbers."""
    kind = value.type
    return value.value if pa.types.is_temporal(kind) else value.as_py()


class Where(Struct, frozen=True):
    """A conjunction of comparisons of partition columns; ``text`` is the configured text."""

    text: str
    terms: tuple[_Term, ...]

    def wants(self, file: ChangeFile, columns: PartitionColumns) -> bool:
        """Return whether rows of this file's partition are selected.

        Raises :class:`TableError` for a column that is not a partition column.
        """
        return all(term.holds(file, columns) for term in self.terms)

    def check(self, state: TableState) -> None:
        """Raise :class:`ConfigError` for a column that is not a partition column of this state, and
        for a value that does not have its column's type."""
        for term in self.terms:
            column = term.test.column
            found = _named(state, column) or _stored(state, column)
            if found is None:
                raise ConfigError(
                    f"names {column!r}, and the table's partition columns are: {_names(state)}"
                )
            term.literals(found.type, "UTC")


class PartitionColumns:
    """The partition columns of a table, by the names that conditions give them.

    ``zone`` is the writer's time zone.
    """

    def __init__(self, zone: str) -> None:
        self.zone = zone
        self._newest: tuple[int, TableState] | None = None
        self._known: dict[str, str] = {}  # physical names, by name: a rename does not change them

    @property
    def are_known(self) -> bool:
        """Whether any version's state is known."""
        return self._newest is not None

    def learn(self, version: int, state: TableState) -> None:
        """Take the state of a version, if it is the newest so far."""
        if self._newest is None or version >= self._newest[0]:
            self._newest = version, state

    def find(self, column: str, file: ChangeFile) -> tuple[StructField, DataType]:
        """Return a column as a file's own state has it, and its newest type.

        Raises :class:`TableError` if it is not a partition column there.
        """
        newest = file.state if self._newest is None else self._newest[1]
        name = column.lower()
        for state in (newest, file.state):
            named = _named(state, column)
            if named is not None and (state is newest or name not in self._known):
                self._known[name] = state.physical_name(named)
                break
        physical = self._known.get(name, column)
        own = _stored(file.state, physical) or _named(file.state, column)
        if own is None:
            raise TableError(
                f"`where` names {column!r}, which is not a partition column of this version",
                version=file.version,
                hint=f"its partition columns are: {_names(file.state)}",
            )
        now = _stored(newest, physical) or _named(newest, column)
        return own, own.type if now is None else now.type


def _named(state: TableState, name: str) -> StructField | None:
    """Return the partition column of this name."""
    found = (f for f in state.partition_fields() if f.name.lower() == name.lower())
    return next(found, None)


def _stored(state: TableState, name: str) -> StructField | None:
    """Return the partition column of this name in files and in the log."""
    fields = state.partition_fields()
    return next((f for f in fields if state.physical_name(f).lower() == name.lower()), None)


def _names(state: TableState) -> str:
    return ", ".join(f.name for f in state.partition_fields()) or "none"


def parse_where(text: str) -> Where:
    """Parse ``country = 'DE' and year >= 2020 and kind in ('a', 'b') and day is not null``.

    Raises :class:`ConfigError` for anything else.
    """
    try:
        terms = Parser(text).conjunction()
    except NotUnderstood as e:
        raise ConfigError(
            f"is {text!r}, not understood at {e.rest!r}; it must be comparisons of partition "
            "columns joined by `and`, as in country = 'DE' and year >= 2020; also in (...), "
            "is [not] null"
        ) from None
    return Where(text, tuple(_Term.of(term) for term in terms))
