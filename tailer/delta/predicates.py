"""Predicates over a file: which files can't have a matching row.

A file left out by mistake loses rows, one too many is filtered later. For each
file it is therefore computed what a predicate *may* be for its rows (true, false, null), and the
file is left out only if it can't be true. A predicate that is not understood may be anything.
Statistics prove this much ("Per-file Statistics" of the Delta protocol): strings are cut,
timestamps are cut to milliseconds, bounds are wide if there are deletion vectors, NaN is in no
bound, and a nullCount proves something only at 0 and at numRecords.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from tailer.delta.comparisons import (
    And,
    ColumnComparison,
    IsNull,
    Literal,
    Node,
    Not,
    Or,
    Unknown,
)
from tailer.delta.partitions import parse_partition_value
from tailer.delta.schema import PrimitiveType, StructField, decimal_parts
from tailer.delta.snapshot import TableState
from tailer.errors import CorruptLog

#: Strings in statistics are cut at 32 characters or more, and a bound may be the cut string.
_PREFIX = 32
#: The kinds of literals that conditions have; all others are those of hints.
_OF_SQL = ("number", "text", "flag", "sql date", "time")
_WHOLE = re.compile(r"-?\d{1,18}", re.ASCII)
#: Times that Python and DuckDB read alike; the calendar's last years are left out.
_TIME = re.compile(
    r"[12]\d{3}-(?:0[1-9]|1[0-2])-[0-3]\d"
    r"(?:[ T](?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,6})?(?:[+-](?:0\d|1[0-4]):[0-5]\d)?)?",
    re.ASCII,
)
_INTEGERS = {"byte": 1, "short": 2, "integer": 4, "long": 8}


@dataclass(frozen=True, slots=True)
class May:
    """The possible results of a predicate for the rows of a file."""

    true: bool
    false: bool
    null: bool

    @property
    def certain(self) -> bool:
        """Whether every row matches."""
        return self.true and not self.false and not self.null


ANYTHING = May(True, True, True)
EVERY_ROW = May(True, False, False)
_NULL = May(False, False, True)


@dataclass(frozen=True, slots=True)
class Relations:
    """The possible relations of a column's values to a literal: which of the three may occur."""

    less: bool
    equal: bool
    greater: bool

    @classmethod
    def from_value(cls, value: Any, literal: Any) -> Relations:
        """Compare one value that all rows have."""
        return cls(value < literal, value == literal, value > literal)

    def evaluate(self, op: str, *, null: bool) -> May:
        """Return the possible results of a comparison; ``null``: whether the column may be null."""
        matches, differs = {
            "=": (self.equal, self.less or self.greater),
            "<": (self.less, self.equal or self.greater),
            "<=": (self.less or self.equal, self.greater),
            ">": (self.greater, self.less or self.equal),
            ">=": (self.greater or self.equal, self.less),
        }[op]
        return May(matches, differs, null)


def list_columns(node: Node) -> set[str]:
    """Return the columns that a predicate names, in lower case."""
    match node:
        case Not(child):
            return list_columns(child)
        case And(children) | Or(children):
            return set().union(*(list_columns(child) for child in children))
        case Unknown():
            return set()
    return {node.column.lower()}


def count_nodes(node: Node) -> int:
    """Return the number of comparisons and operators of a predicate."""
    match node:
        case Not(child):
            return 1 + count_nodes(child)
        case And(children) | Or(children):
            return 1 + sum(count_nodes(child) for child in children)
    return 1


class FileFacts:
    """The log's facts about one file's rows: partition values and statistics. ``zone`` is the
    writer's time zone, if it is known."""

    def __init__(
        self, state: TableState, action: Mapping[str, Any], zone: str | None = None
    ) -> None:
        self._state = state
        self._zone = zone
        self._partitions: dict[str, str | None] = action.get("partitionValues") or {}
        self._text = action.get("stats")
        self._vector = action.get("deletionVector")
        self._stats: dict[str, Any] | None = None

    @property
    def num_rows(self) -> int:
        """The number of live rows by the log; 0 if it is unknown."""
        records = self._parse_statistics().get("numRecords")
        if not isinstance(records, int) or isinstance(records, bool):
            return 0
        dv = self._vector
        gone = dv.get("cardinality") if isinstance(dv, dict) else 0
        return max(0, records - gone) if isinstance(gone, int) else 0

    def evaluate(self, node: Node) -> May:
        """Return the possible results of the predicate for this file's rows."""
        match node:
            case Not(child):
                inner = self.evaluate(child)
                return May(inner.false, inner.true, inner.null)
            case And(children):
                each = [self.evaluate(c) for c in children]
                return May(all(m.true for m in each), any(m.false for m in each),
                           any(m.null for m in each))  # fmt: skip
            case Or(children):
                each = [self.evaluate(c) for c in children]
                return May(any(m.true for m in each), all(m.false for m in each),
                           any(m.null for m in each))  # fmt: skip
            case Unknown():
                return ANYTHING
        field = self._find_field(node.column)
        if field is None:
            return ANYTHING
        if field.name in self._state.metadata.partition_columns:
            return self._evaluate_by_partition(node, field)
        return self._evaluate_by_statistics(node, field)

    def _find_field(self, name: str) -> StructField | None:
        found = [f for f in self._state.schema if f.name.lower() == name.lower()]
        if len(found) != 1 or "__COLLATIONS" in found[0].metadata:
            return None  # two columns that differ by case, or an unknown collation of strings
        return found[0]

    def _evaluate_by_partition(self, node: ColumnComparison | IsNull, field: StructField) -> May:
        name = self._state.physical_name(field)
        if name not in self._partitions or not isinstance(field.type, PrimitiveType):
            return ANYTHING
        text = self._partitions[name]
        null = text is None or text == ""
        if isinstance(node, IsNull):
            return May(null, not null, False)
        literal = _parse_literal(node.literals[0], field.type.name)
        if literal is None:
            return ANYTHING
        if null:
            return _NULL
        try:
            found = parse_partition_value(text, field.type, self._zone or "UTC")
            value = _to_comparable(found.as_py(), field.type.name)
        except (CorruptLog, OverflowError):  # an invalid value, or a year that Python does not have
            return ANYTHING
        # A timestamp without a zone is in its writer's zone, which is unknown here.
        unzoned = field.type.name == "timestamp" and not _has_zone(text or "")
        if value is None or (unzoned and self._zone is None):
            return ANYTHING
        return Relations.from_value(value, literal).evaluate(node.op, null=False)

    def _parse_statistics(self) -> dict[str, Any]:
        if self._stats is None:
            self._stats = {}
            if isinstance(self._text, str):
                try:
                    stats = json.loads(self._text, parse_float=Decimal)
                except (ValueError, RecursionError, ArithmeticError):
                    stats = None
                self._stats = stats if isinstance(stats, dict) else {}
        return self._stats

    def _find_statistic(self, kind: str, field: StructField) -> Any:
        values = self._parse_statistics().get(kind)
        name = self._state.physical_name(field)
        return values.get(name) if isinstance(values, dict) else None

    def _evaluate_by_statistics(self, node: ColumnComparison | IsNull, field: StructField) -> May:
        records, nulls = (
            self._parse_statistics().get("numRecords"),
            self._find_statistic("nullCount", field),
        )
        none_null = nulls == 0 and nulls is not False
        all_null = isinstance(nulls, int) and nulls == records and nulls > 0
        if isinstance(node, IsNull):
            if not isinstance(field.type, PrimitiveType):
                return ANYTHING
            return May(not none_null, not all_null, False)
        if not isinstance(field.type, PrimitiveType):
            return ANYTHING
        literal = _parse_literal(node.literals[0], field.type.name)
        if literal is None:
            return ANYTHING
        if all_null:
            return _NULL
        kind = field.type.name
        low = _parse_bound(self._find_statistic("minValues", field), kind)
        high = _parse_bound(self._find_statistic("maxValues", field), kind)
        return _compare_with_bounds(literal, low, high, kind).evaluate(node.op, null=not none_null)


def _compare_with_bounds(literal: Any, low: Any, high: Any, kind: str) -> Relations:
    """Return how the values between the bounds (None: unknown) may compare with the literal."""
    below = above = True  # may there be a value <= literal, >= literal?
    less = greater = True
    if low is not None:
        less, below = low < literal, low <= literal
    if high is not None:
        if kind == "string":
            # A bound that was cut stands for all strings that begin with it.
            cut = len(high) >= _PREFIX
            top, mine = (high[:_PREFIX], literal[:_PREFIX]) if cut else (high, literal)
            greater, above = (mine <= top, mine <= top) if cut else (mine < top, mine <= top)
        else:
            top = high + dt.timedelta(milliseconds=1) if isinstance(high, dt.datetime) else high
            greater, above = top > literal, top >= literal
    if kind in ("float", "double"):
        greater = True  # NaN is greater than every number, and in no bound
    return Relations(less, below and above, greater)


def _parse_bound(value: Any, kind: str) -> Any:
    """Convert a bound of the statistics to a comparable value; None if it proves nothing."""
    if kind == "string":
        return value if isinstance(value, str) else None
    if kind in _INTEGERS or kind == "double" or kind.startswith("decimal"):
        if not isinstance(value, int | Decimal) or isinstance(value, bool):
            return None
        return float(value) if kind == "double" else Decimal(value)
    try:
        if kind == "date" and isinstance(value, str):
            return dt.date.fromisoformat(value)
        if kind == "timestamp" and isinstance(value, str):
            moment = dt.datetime.fromisoformat(value)
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=dt.UTC)
            # The last instants of the calendar would overflow when the cut is compensated.
            return moment if 1 < moment.year < 9999 else None
    except ValueError:
        return None
    return None


def _has_zone(text: str) -> bool:
    return text.endswith("Z") or "+" in text[10:] or "-" in text[10:]


def _to_comparable(value: Any, kind: str) -> Any:
    """Convert a partition value to the type of literals; None if its order is unknown here."""
    if kind in _INTEGERS:
        return Decimal(value)
    known = kind in ("string", "date", "boolean", "timestamp", "timestamp_ntz")
    return value if known or kind.startswith("decimal") else None


def _parse_literal(literal: Literal, kind: str) -> Any:
    """Convert the literal to the column's type; None if the comparison is not understood.

    If the literal's type is narrower than the column's, the column would have to be cast, which can
    change the order: that proves nothing.
    """
    value, value_type = literal.text, literal.kind
    if value_type in _OF_SQL:
        return _parse_sql_literal(value, value_type, kind)
    try:
        if value_type in ("int", "long"):
            wide = {"int": 4, "long": 8}[value_type]
            return Decimal(int(value)) if _INTEGERS.get(kind, 9) <= wide else None
        if value_type == "double" and kind == "double":
            number = Decimal(value)
            return float(number) if number.is_finite() else None
    except (ValueError, ArithmeticError):
        return None
    if value_type == "bool" and kind == "boolean":
        return {"true": True, "false": False}.get(value.lower())
    if value_type == "string" and kind == "string":
        return value
    if value_type == "date" and kind == "date":
        return _parse_date(value)
    if value_type == "timestamp" and kind == "timestamp":
        return _parse_moment(value)
    return None


def _parse_sql_literal(value: str, value_type: str, kind: str) -> Any:
    """Convert a literal of a condition; None if it may compare otherwise in DuckDB, which casts the
    one side or the other."""
    match value_type:
        case "number" if kind in _INTEGERS:
            return Decimal(value)
        case "number" if kind == "double":
            return float(value)
        case "number" if (parts := decimal_parts(kind)) is not None:
            whole, _, rest = value.lstrip("+-").partition(".")
            fits = len(whole) <= parts[0] - parts[1] and len(rest) <= parts[1]
            return Decimal(value) if fits else None
        case "text" if kind in _INTEGERS:
            return Decimal(value) if _WHOLE.fullmatch(value) else None
        case "text" if kind == "string":
            return value
        case "flag" if kind == "boolean":
            return value.lower() == "true"
        case "text" | "time" | "sql date" if kind == "date":
            return _parse_date(value) if _TIME.fullmatch(value) else None
        case "text" | "time" if kind in ("timestamp", "timestamp_ntz") and _TIME.fullmatch(value):
            with suppress(ValueError):
                moment = dt.datetime.fromisoformat(value)
                if kind == "timestamp_ntz":
                    return None if moment.tzinfo else moment
                return moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
    return None


def _parse_date(value: str) -> dt.date | None:
    with suppress(ValueError):
        return dt.date.fromisoformat(value) if len(value) == 10 else None
    return None


def _parse_moment(value: str) -> dt.datetime | None:
    """Parse a time with a zone; without one it would be in a zone that only the client knows."""
    with suppress(ValueError):
        moment = dt.datetime.fromisoformat(value)
        return moment if _has_zone(value) and moment.tzinfo is not None else None
    return None
