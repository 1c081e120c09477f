"""Files that a condition leaves out before they are read: by partition values and statistics.

A file is left out only if no row of it can meet the condition (:mod:`tailer.delta.predicates`);
what is not understood may be anything, and the rows that are read are filtered in any case.

| known from | left out | counted |
|---|---|---|
| partition values | any file | not: positions are those of a feed with this condition |
| statistics | a file that is read whole, with ``numRecords`` | as if its rows were delivered |
| a row group's statistics | whole numbers, dates, times | in the same way, by the footer |
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
from msgspec import structs

from tailer.changes import ChangeFile
from tailer.delta.comparisons import (
    FLIPPED,
    And,
    ColumnComparison,
    IsNull,
    Literal,
    Node,
    Not,
    Or,
    Unknown,
)
from tailer.delta.parquet_columns import ParquetColumns
from tailer.delta.predicates import FileFacts, May, list_columns
from tailer.delta.snapshot import TableState
from tailer.delta.types import DataType, PrimitiveType
from tailer.shape import sql
from tailer.shape.columns import TableColumns
from tailer.shape.expressions import Condition

_OPERATORS = {
    "COMPARE_EQUAL": "=", "COMPARE_NOTEQUAL": "<>", "COMPARE_LESSTHAN": "<",
    "COMPARE_LESSTHANOREQUALTO": "<=", "COMPARE_GREATERTHAN": ">",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
}  # fmt: skip
#: As DuckDB prints them. A number has no more digits than compare exactly with whole numbers.
_LITERAL = re.compile(
    r"(?P<number>[+-]?\d{1,18}(?:\.\d{0,9})?)|'(?P<text>(?:[^']|'')*)'|(?P<flag>true|false)"
    r"|CAST\('(?P<date>[^']*)' AS DATE\)"
    # With a zone, it would be another time as a TIMESTAMP.
    r"|CAST\('(?P<local>[\d-]{10}(?:[ T][\d:.]+)?)' AS TIMESTAMP\)"
    r"|CAST\('(?P<time>[^']*)' AS (?:TIMESTAMP WITH TIME ZONE|TIMESTAMPTZ)\)",
    re.IGNORECASE | re.ASCII,
)
_INTEGERS = ("byte", "short", "integer", "long")
#: Times whose statistics are understood, and as which Arrow type files have them: from 1900 on,
#: before which some writers have another calendar, to 9998.
_TIMES = {"date": pa.date32(), "timestamp": pa.timestamp("us", "UTC")}
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_FIRST_DAY, _END_DAY, _DAY_US = -25_567, 2_932_531, 86_400_000_000
_UNKNOWN = Unknown()


class _BoundCondition(NamedTuple):
    """A condition as it is in one state; ``by_partition`` is what partition values say of it, if
    that is the same for all files."""

    state: TableState
    node: Node
    by_partition: May | None


class Pruning:
    """Says of files whether rows of them may meet a condition."""

    def __init__(self, where: Condition, columns: TableColumns) -> None:
        self._node = build_condition_node(sql.parse_expressions(where.text)[0])
        self._columns = columns
        self._last: _BoundCondition | None = None

    def find_results(self, file: ChangeFile, *, statistics: bool) -> May:
        """Return the possible results of the condition for a file's rows, by its partition values,
        and by its statistics."""
        known = self._load_known(file.state)
        if not statistics and known.by_partition is not None:
            return known.by_partition
        vector = file.without
        action = {
            "partitionValues": file.partition_values,
            "stats": file.stats if statistics else None,
            "deletionVector": None if vector is None else {"cardinality": vector.cardinality},
        }
        return FileFacts(file.state, action, self._columns.zone).evaluate(known.node)

    def find_unwanted_groups(self, file: ChangeFile, parquet: ParquetColumns) -> frozenset[int]:
        """Return the row groups of a file of which statistics prove that no row meets the
        condition."""
        node, state = self._load_known(file.state).node, file.state
        named = list_columns(node) if state.mapping != "id" else ()
        columns = [
            (state.physical_name(field), kind, leaf)
            for field in state.schema
            if field.name.lower() in named
            for kind, leaf in _find_leaf(state.physical_name(field), field.type, parquet)
        ]
        unwanted = set()
        found = parquet.find_bounds([leaf for *_, leaf in columns]) if columns else []
        for number, bounds in enumerate(found):
            stats: dict[str, Any] = {"numRecords": parquet.groups[number].rows}
            for (name, kind, _), each in zip(columns, bounds, strict=True):
                _add_bounds(stats, name, kind, each)
            action = {"partitionValues": file.partition_values, "stats": json.dumps(stats)}
            if not FileFacts(state, action, self._columns.zone).evaluate(node).true:
                unwanted.add(number)
        return frozenset(unwanted)

    def _load_known(self, state: TableState) -> _BoundCondition:
        if self._last is None or self._last.state is not state:
            node = _rename_columns(self._node, self._columns, state)
            partitions = {name.lower() for name in state.metadata.partition_columns}
            same = None
            if not partitions & list_columns(node):
                same = FileFacts(state, {}, self._columns.zone).evaluate(node)
            self._last = _BoundCondition(state, node, same)
        return self._last


def _find_leaf(
    physical: str, data_type: DataType, parquet: ParquetColumns
) -> Iterator[tuple[str, int]]:
    """Yield type and number of a column, if its statistics are understood."""
    numbers = parquet.find_numbers([physical])
    kind = data_type.name if isinstance(data_type, PrimitiveType) else ""
    if len(numbers) == 1 and kind in (*_INTEGERS, *_TIMES):
        there = parquet.schema.field(physical).type
        whole = kind in _INTEGERS and pa.types.is_signed_integer(there)
        if whole or there == _TIMES.get(kind):
            yield kind, numbers[0]


def _add_bounds(
    stats: dict[str, Any], name: str, kind: str, found: tuple[int, int, int | None] | None
) -> None:
    """Add what a row group's statistics say of a column, as the log says it of a file."""
    if found is None:
        return
    low, high, nulls = found
    if nulls is not None:
        stats.setdefault("nullCount", {})[name] = nulls
    ends: list[Any] = [low, high]
    if kind in _TIMES:
        a_day = 1 if kind == "date" else _DAY_US
        if low < _FIRST_DAY * a_day or high >= _END_DAY * a_day:
            return
        step = dt.timedelta(days=1) if kind == "date" else dt.timedelta(microseconds=1)
        ends = [(_EPOCH + end * step).isoformat() for end in ends]
        if kind == "date":
            ends = [end[:10] for end in ends]
    stats.setdefault("minValues", {})[name], stats.setdefault("maxValues", {})[name] = ends


def _rename_columns(node: Node, columns: TableColumns, state: TableState) -> Node:
    """Return a condition with the names that columns have in a state."""
    match node:
        case Not(child):
            return Not(_rename_columns(child, columns, state))
        case And(children):
            return And(tuple(_rename_columns(c, columns, state) for c in children))
        case Or(children):
            return Or(tuple(_rename_columns(c, columns, state) for c in children))
        case ColumnComparison(column=name) | IsNull(column=name):
            field, newest = columns.find_column(name, state), columns.find_newest_type(name)
            if field is None or not _has_same_order(field.type, newest or field.type):
                return _UNKNOWN
            return structs.replace(node, column=field.name)
    return node


def _has_same_order(one: DataType, other: DataType) -> bool:
    """Return whether values of two types compare with a literal in the same way."""
    if one == other:
        return True
    kinds = [t.name if isinstance(t, PrimitiveType) else "" for t in (one, other)]
    return all(k in _INTEGERS for k in kinds) or all(k.startswith("decimal") for k in kinds)


def build_condition_node(tree: Mapping[str, Any]) -> Node:
    """Return what is understood of a condition's tree: comparisons of columns with literals, IN,
    BETWEEN, IS NULL, and what joins them. The rest is :class:`Unknown`."""
    kind = tree["type"]
    children = tree.get("children", ())
    match kind:
        case "CONJUNCTION_AND":
            return And(tuple(map(build_condition_node, children)))
        case "CONJUNCTION_OR":
            return Or(tuple(map(build_condition_node, children)))
        case "OPERATOR_NOT":
            return Not(build_condition_node(children[0]))
        case "OPERATOR_IS_NULL" | "OPERATOR_IS_NOT_NULL":
            column = _find_column(children[0])
            test: Node = _UNKNOWN if column is None else IsNull(column)
            return test if kind == "OPERATOR_IS_NULL" else Not(test)
        case "COMPARE_IN" | "COMPARE_NOT_IN":
            first, *rest = children
            found = Or(tuple(_build_comparison("=", first, each) for each in rest))
            return found if kind == "COMPARE_IN" else Not(found)
        case "COMPARE_BETWEEN" | "COMPARE_NOT_BETWEEN":
            both = And(
                (
                    _build_comparison(">=", tree["input"], tree["lower"]),
                    _build_comparison("<=", tree["input"], tree["upper"]),
                )
            )
            return both if kind == "COMPARE_BETWEEN" else Not(both)
    if kind in _OPERATORS:
        return _build_comparison(_OPERATORS[kind], tree["left"], tree["right"])
    return _UNKNOWN


def _build_comparison(op: str, left: Mapping[str, Any], right: Mapping[str, Any]) -> Node:
    for one, other, direct in ((left, right, True), (right, left, False)):
        column = _find_column(one)
        literal = None if column is None else _parse_literal(other)
        if column is not None and literal is not None:
            if op == "<>":
                return Not(ColumnComparison("=", column, (literal,)))
            return ColumnComparison(op if direct else FLIPPED[op], column, (literal,))
    return _UNKNOWN


def _find_column(tree: Mapping[str, Any]) -> str | None:
    names = tree.get("column_names", []) if tree["class"] == "COLUMN_REF" else []
    return str(names[0]) if len(names) == 1 else None


def _parse_literal(tree: Mapping[str, Any]) -> Literal | None:
    if tree["class"] not in ("CONSTANT", "CAST"):
        return None
    # As SQL, for the tree's form is another one in each version of DuckDB.
    found = _LITERAL.fullmatch(sql.print_tree(dict(tree)))
    if found is None:
        return None
    group = str(found.lastgroup)
    kind = {"date": "sql date", "local": "time"}.get(group, group)
    return Literal(found[group].replace("''", "'"), kind)
