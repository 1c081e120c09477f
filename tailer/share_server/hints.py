"""Predicate hints as clients write them: SQL expressions, and JSON trees.

An SQL hint that can't be read is skipped alone, for hints are joined by AND; a JSON tree that can't
be read is skipped whole ("SQL Expressions for Filtering", "JSON predicates for Filtering").
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from tailer.share_server.predicates import (
    And,
    Comparison,
    IsNull,
    Node,
    Not,
    Or,
    columns_of,
    size_of,
)

__all__ = ["Hints", "parse_hints", "parse_json_hint", "parse_sql_hint"]

_DEPTH_MAX = 64
_HINT_CHARACTERS_MAX = 16_384
#: Every file is held to every node: hints with more of them are not used.
_NODES_MAX = 1000
_TOKEN = re.compile(
    r"""\s*(?:(?P<number>-?(?:\d+(?:\.\d*)?|\.\d+))(?![\w.])
    |(?P<string>'[^'\\]*')(?!')
    |(?P<name>[A-Za-z_]\w*|`[^`]+`)
    |(?P<op><=>|<=|>=|<>|!=|==|=|<|>|\(|\)|,))""",
    re.VERBOSE | re.ASCII,
)
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "<>": "<>"}
_JSON_OPS = {
    "equal": "=",
    "lessThan": "<",
    "lessThanOrEqual": "<=",
    "greaterThan": ">",
    "greaterThanOrEqual": ">=",
}
_JSON_TYPES = {"bool", "int", "long", "string", "date", "float", "double", "timestamp"}


class _NotUnderstood(Exception):
    """This hint is not one that we can read."""


@dataclass(frozen=True, slots=True)
class Hints:
    """The hints of a query that are understood: SQL's, and the JSON tree. ``whole``: that is all
    of them."""

    sql: tuple[Node, ...] = ()
    tree: Node | None = None
    whole: bool = True

    def of(self, columns: AbstractSet[str]) -> tuple[tuple[Node, ...], bool]:
        """The predicates about a table with these columns (in lower case), and whether they are
        all. A tree that names another column is skipped whole."""
        if self.tree is None:
            return self.sql, self.whole
        if not columns_of(self.tree) <= columns:
            return self.sql, False
        return (*self.sql, self.tree), self.whole


def parse_hints(sql: Sequence[Any], tree: Any, *, whole: bool = True) -> Hints:
    """The hints of a query. ``whole`` False: some were not even a list."""
    left = _NODES_MAX
    nodes: list[Node] = []
    for hint in sql:
        node = parse_sql_hint(hint)
        if node is None or size_of(node) > left:
            whole = False
            continue
        left -= size_of(node)
        nodes.append(node)
    parsed = parse_json_hint(tree) if tree is not None else None
    if parsed is not None and size_of(parsed) > left:
        parsed = None
    return Hints(tuple(nodes), parsed, whole and (tree is None) == (parsed is None))


def parse_sql_hint(text: Any) -> Node | None:
    """One SQL expression; None if it is not understood."""
    if not isinstance(text, str) or len(text) > _HINT_CHARACTERS_MAX:
        return None
    try:
        return _Parser(text).whole()
    except (_NotUnderstood, ArithmeticError):
        return None


def parse_json_hint(text: Any) -> Node | None:
    """A JSON predicate, as text or already parsed; None if it is not understood."""
    try:
        return _tree(json.loads(text) if isinstance(text, str) else text, 0)
    except (_NotUnderstood, ValueError, RecursionError):
        return None


class _Parser:
    """A recursive descent over ``OR``, ``AND``, ``NOT``, parentheses and comparisons."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        at = 0
        text = text.rstrip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None or match.lastgroup is None:
                raise _NotUnderstood
            self._tokens.append((match.lastgroup, match[match.lastgroup]))
            at = match.end()
        self._at = 0

    def whole(self) -> Node:
        node = self._or(0)
        if self._at < len(self._tokens):
            raise _NotUnderstood
        return node

    def _next(self) -> tuple[str, str]:
        if self._at >= len(self._tokens):
            raise _NotUnderstood
        self._at += 1
        return self._tokens[self._at - 1]

    def _word(self, *words: str) -> bool:
        """Take these words if they come next."""
        coming = self._tokens[self._at : self._at + len(words)]
        if [(k, t.upper()) for k, t in coming] != [("name", w) for w in words]:
            return False
        self._at += len(words)
        return True

    def _sign(self, sign: str) -> bool:
        if self._tokens[self._at : self._at + 1] != [("op", sign)]:
            return False
        self._at += 1
        return True

    def _or(self, depth: int) -> Node:
        if depth > _DEPTH_MAX:
            raise _NotUnderstood
        children = [self._and(depth)]
        while self._word("OR"):
            children.append(self._and(depth))
        return children[0] if len(children) == 1 else Or(tuple(children))

    def _and(self, depth: int) -> Node:
        children = [self._not(depth)]
        while self._word("AND"):
            children.append(self._not(depth))
        return children[0] if len(children) == 1 else And(tuple(children))

    def _not(self, depth: int) -> Node:
        if depth > _DEPTH_MAX:
            raise _NotUnderstood
        if self._word("NOT"):
            return Not(self._not(depth + 1))
        if self._sign("("):
            node = self._or(depth + 1)
            if not self._sign(")"):
                raise _NotUnderstood
            return node
        return self._comparison()

    def _comparison(self) -> Node:
        left_is_column, left, left_type = self._operand()
        if left_is_column:
            if self._word("IS", "NULL"):
                return IsNull(left)
            if self._word("IS", "NOT", "NULL"):
                return Not(IsNull(left))
            if self._word("IN"):
                return self._in(left)
        kind, sign = self._next()
        op = {"!=": "<>", "==": "="}.get(sign, sign)
        if kind != "op" or op not in _FLIPPED:
            raise _NotUnderstood
        right_is_column, right, right_type = self._operand()
        if left_is_column == right_is_column:
            raise _NotUnderstood
        if left_is_column:
            return Comparison(op, left, right, right_type)
        return Comparison(_FLIPPED[op], right, left, left_type)

    def _in(self, column: str) -> Node:
        values: list[Node] = []
        if not self._sign("("):
            raise _NotUnderstood
        while True:
            is_column, value, value_type = self._operand()
            if is_column:
                raise _NotUnderstood
            values.append(Comparison("=", column, value, value_type))
            if self._sign(")"):
                return Or(tuple(values))
            if not self._sign(","):
                raise _NotUnderstood

    def _operand(self) -> tuple[bool, Any, str | None]:
        """(whether it is a column, its name or the literal, the literal's type if it has one)."""
        kind, text = self._next()
        if kind == "number":
            return False, Decimal(text), None
        if kind == "string":
            return False, text[1:-1], None
        if kind != "name":
            raise _NotUnderstood
        word = text.upper()
        if word in ("TRUE", "FALSE"):
            return False, word == "TRUE", None
        if word in ("DATE", "TIMESTAMP") and self._tokens[self._at : self._at + 1]:
            following, literal = self._tokens[self._at]
            if following == "string":
                self._at += 1
                return False, literal[1:-1], word.lower()
        if word in ("NULL", "NOT", "AND", "OR", "IS", "IN", "BETWEEN", "LIKE"):
            raise _NotUnderstood
        return True, text.strip("`"), None


def _tree(value: Any, depth: int) -> Node:
    if not isinstance(value, dict) or depth > _DEPTH_MAX:
        raise _NotUnderstood
    op, children = value.get("op"), value.get("children")
    if not isinstance(children, list) or not isinstance(op, str):
        raise _NotUnderstood
    if op in ("and", "or") and len(children) >= 2:
        inner = tuple(_tree(child, depth + 1) for child in children)
        return And(inner) if op == "and" else Or(inner)
    if op == "not" and len(children) == 1:
        return Not(_tree(children[0], depth + 1))
    if op == "isNull" and len(children) == 1:
        return IsNull(_leaf(children[0], "column")["name"])
    if op in _JSON_OPS and len(children) == 2:
        kinds = [c.get("op") if isinstance(c, dict) else None for c in children]
        sign = _JSON_OPS[op]
        if kinds == ["literal", "column"]:
            children, sign = children[::-1], _FLIPPED[sign]
        column, literal = _leaf(children[0], "column"), _leaf(children[1], "literal")
        if column["valueType"] != literal["valueType"]:
            raise _NotUnderstood
        return Comparison(sign, column["name"], literal["value"], literal["valueType"])
    raise _NotUnderstood


def _leaf(value: Any, op: str) -> dict[str, str]:
    wanted = ("name" if op == "column" else "value", "valueType")
    if not isinstance(value, dict) or value.get("op") != op or value.get("children"):
        raise _NotUnderstood
    if not all(isinstance(value.get(key), str) for key in wanted):
        raise _NotUnderstood
    if value["valueType"] not in _JSON_TYPES:
        raise _NotUnderstood
    return value
