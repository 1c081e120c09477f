"""Predicate hints as clients write them: JSON trees ("JSON predicates for Filtering").

A tree that can't be parsed is skipped whole. SQL hints, which the protocol deprecates, filter
nothing.
"""

from __future__ import annotations

import json
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from tailer.delta.comparisons import (
    FLIPPED,
    And,
    ColumnComparison,
    IsNull,
    Literal,
    Node,
    Not,
    NotUnderstood,
    Or,
)
from tailer.delta.predicates import count_nodes, list_columns

_DEPTH_MAX = 64
#: Every file is checked against every node: hints with more nodes are not used.
_NODES_MAX = 1000
_JSON_OPS = {
    "equal": "=",
    "lessThan": "<",
    "lessThanOrEqual": "<=",
    "greaterThan": ">",
    "greaterThanOrEqual": ">=",
}
_JSON_TYPES = {"bool", "int", "long", "string", "date", "float", "double", "timestamp"}


@dataclass(frozen=True, slots=True)
class Hints:
    """The parsed hints of a query; ``whole``: all of them were understood."""

    tree: Node | None = None
    whole: bool = True

    def for_columns(self, columns: AbstractSet[str]) -> Hints:
        """Return the hints for a table with these columns, which are in lower case: none if they
        name another column."""
        if self.tree is None or list_columns(self.tree) <= columns:
            return self
        return Hints(None, whole=False)


def parse_hints(sql: Any, tree: Any) -> Hints:
    """Parse the hints of a query: the SQL hints and the JSON tree of its body."""
    parsed = parse_json_hint(tree) if tree is not None else None
    if parsed is not None and count_nodes(parsed) > _NODES_MAX:
        parsed = None
    return Hints(parsed, not sql and (tree is None) == (parsed is None))


def parse_json_hint(text: Any) -> Node | None:
    """Parse a JSON predicate, as text or already decoded; None if it is not understood."""
    try:
        return _parse_tree(json.loads(text) if isinstance(text, str) else text, 0)
    except (NotUnderstood, ValueError, RecursionError):
        return None


def _parse_tree(value: Any, depth: int) -> Node:
    if not isinstance(value, dict) or depth > _DEPTH_MAX:
        raise NotUnderstood("tree")
    op, children = value.get("op"), value.get("children")
    if not isinstance(children, list) or not isinstance(op, str):
        raise NotUnderstood("tree")
    if op in ("and", "or") and len(children) >= 2:
        inner = tuple(_parse_tree(child, depth + 1) for child in children)
        return And(inner) if op == "and" else Or(inner)
    if op == "not" and len(children) == 1:
        return Not(_parse_tree(children[0], depth + 1))
    if op == "isNull" and len(children) == 1:
        return IsNull(_parse_leaf(children[0], "column")["name"])
    if op in _JSON_OPS and len(children) == 2:
        kinds = [c.get("op") if isinstance(c, dict) else None for c in children]
        sign = _JSON_OPS[op]
        if kinds == ["literal", "column"]:
            children, sign = children[::-1], FLIPPED[sign]
        column, literal = _parse_leaf(children[0], "column"), _parse_leaf(children[1], "literal")
        if column["valueType"] != literal["valueType"]:
            raise NotUnderstood("tree")
        return ColumnComparison(
            sign, column["name"], (Literal(literal["value"], literal["valueType"]),)
        )
    raise NotUnderstood("tree")


def _parse_leaf(value: Any, op: str) -> dict[str, str]:
    wanted = ("name" if op == "column" else "value", "valueType")
    if not isinstance(value, dict) or value.get("op") != op or value.get("children"):
        raise NotUnderstood("tree")
    if not all(isinstance(value.get(key), str) for key in wanted):
        raise NotUnderstood("tree")
    if value["valueType"] not in _JSON_TYPES:
        raise NotUnderstood("tree")
    return value
