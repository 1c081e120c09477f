"""Expressions as users write them: parsed by DuckDB, and refused unless a row alone decides.

A row that is delivered again must be the same row. So an expression may depend on nothing but the
row's own values: DuckDB's own tree of it is walked, and each part must be of a kind that is listed
here; whatever a later DuckDB adds is refused until it is listed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from tailer.errors import ConfigError, meant
from tailer.shape import sql

_CHARACTERS_MAX = 64 * 1024
#: The classes of DuckDB's tree that depend on nothing but what is below them.
_PURE = {
    "BETWEEN", "CASE", "CAST", "COLLATE", "COMPARISON", "CONJUNCTION", "CONSTANT", "OPERATOR",
    "TYPE",
}  # fmt: skip
_IMPURE = {
    "SUBQUERY": "a subquery",
    "WINDOW": "a window function",
    "PARAMETER": "a parameter",
    "STAR": "a *",
    "LAMBDA": "a lambda outside of a list function",
    "POSITIONAL_REFERENCE": "a column by its number",
    "DEFAULT": "DEFAULT",
}
#: Listed as consistent by DuckDB, and yet they tell of its version or of what surrounds the row.
_TELLING = {
    "hash", "version", "write_log", "json_serialize_sql", "json_serialize_plan",
    "json_deserialize_sql", "create_sort_key", "typeof", "get_type", "variant_typeof",
    "getvariable", "current_setting",
    # Their results differ between the versions of DuckDB that are allowed.
    "levenshtein", "editdist3", "damerau_levenshtein", "row",
}  # fmt: skip
#: What makes values as long as one of its arguments says: a whole number up to ``LENGTH_MAX``.
_GROWING = {
    "repeat", "lpad", "rpad", "range", "generate_series", "list_resize", "array_resize", "bar",
}  # fmt: skip
#: Each step of these may double what the one before has made.
_UNBOUNDED = {"reduce", "list_reduce", "array_reduce"}
_FORMATS = {"printf", "format"}
LENGTH_MAX = 1000
_LONG_NUMBER = re.compile(r"\d{4}|\*|\{[^{}]*\{")


class Expression(Struct, frozen=True):
    """One column of a selection: ``sql``, its ``name``, and the ``columns`` of the table that it
    needs, as they are spelled in it. ``column`` is the one that it passes on as it is, if it
    does."""

    sql: str
    name: str
    columns: tuple[str, ...]
    column: str | None = None


class Star(Struct, frozen=True):
    """All columns of the table, but the ``excluded`` ones (in lower case); some ``replaced`` by
    expressions of their names, some ``renamed`` (by their names in lower case)."""

    excluded: frozenset[str] = frozenset()
    replaced: tuple[Expression, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()


class Select(Struct, frozen=True):
    """A selection: its parts in order."""

    items: tuple[Expression | Star, ...]

    def list_columns(self) -> Iterator[str]:
        """Yield the columns that are passed on by name."""
        return (i.column for i in self.items if isinstance(i, Expression) and i.column is not None)

    def list_expressions(self) -> Iterator[Expression]:
        """Yield all expressions."""
        for item in self.items:
            yield from (item,) if isinstance(item, Expression) else item.replaced

    def find_needed(self) -> tuple[str, ...] | None:
        """Return the table's columns that it needs; None for all."""
        if any(isinstance(item, Star) for item in self.items):
            return None
        return _drop_repeated(name for each in self.list_expressions() for name in each.columns)


class Condition(Struct, frozen=True):
    """A condition: ``text`` as it is configured, ``sql`` as DuckDB prints it, and the table's
    ``columns`` that it needs, as they are spelled in it."""

    text: str
    sql: str
    columns: tuple[str, ...]


def parse_condition(text: str) -> Condition:
    """Parse one condition. Raises :class:`ConfigError` for what is none."""
    _check_length(text)
    trees = sql.parse_expressions(text)
    if len(trees) != 1:
        raise ConfigError("must be one condition; join several with AND")
    return Condition(text, sql.print_tree(trees[0]), _find_columns(trees[0], text))


def join_conditions(first: Condition | None, second: Condition) -> Condition:
    """Return the condition that both are met; ``first`` may be none."""
    if first is None:
        return second
    return parse_condition(f"({first.sql}) AND ({second.sql})")


def parse_select(parts: str | Sequence[str]) -> Select | None:
    """Parse a list of expressions as after SELECT, or one in several parts; None if it is empty.

    Raises :class:`ConfigError` for what is no such list, and for a name that it gives twice.
    """
    parts = [parts] if isinstance(parts, str) else parts
    text = ", ".join(parts)
    if not text.strip():
        return None
    _check_length(text)
    items = [_build_item(tree) for part in parts for tree in sql.parse_expressions(part)]
    names = [i.name.lower() for i in items if isinstance(i, Expression)]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"has two columns {name!r}; name one of them with AS")
    return Select(tuple(items))


def _check_length(text: str) -> None:
    if len(text) > _CHARACTERS_MAX:
        raise ConfigError(f"has {len(text)} characters, of {_CHARACTERS_MAX} at most")


def _build_item(tree: dict[str, Any]) -> Expression | Star:
    if tree["class"] == "STAR":
        return _build_star(tree)
    name = tree["alias"] or _find_own_name(tree)
    if not name:
        raise ConfigError(f"has no name for {sql.print_tree(tree)}; write it as: ... AS name")
    return _build_expression(tree, name)


def _build_expression(tree: dict[str, Any], name: str) -> Expression:
    text = sql.print_tree(tree)
    path = tree.get("column_names", []) if tree["class"] == "COLUMN_REF" else []
    column = path[0] if len(path) == 1 else None
    return Expression(text, name, _find_columns(tree, text), column)


def _find_own_name(tree: dict[str, Any]) -> str:
    """Return the name of a column or of a field of one; nothing else has any."""
    return str(tree["column_names"][-1]) if tree["class"] == "COLUMN_REF" else ""


def _build_star(tree: dict[str, Any]) -> Star:
    if tree.get("columns") or tree.get("expr") or tree.get("relation_name"):
        raise ConfigError("has a * with a pattern or a table; write *, or * EXCLUDE (names)")
    if tree.get("qualified_exclude_list"):
        raise ConfigError("excludes a field of a column; name a column")
    replaced = tuple(
        _build_expression(r["value"], r["key"]) for r in tree.get("replace_list") or ()
    )
    renamed = ((r["key"]["column"].lower(), str(r["value"])) for r in tree.get("rename_list") or ())
    excluded = frozenset(name.lower() for name in tree.get("exclude_list") or ())
    return Star(excluded, replaced, tuple(renamed))


def _find_columns(tree: dict[str, Any], text: str) -> tuple[str, ...]:
    """Return the columns that an expression needs. Raises :class:`ConfigError` if it depends on
    more than a row's own values."""
    try:
        return _drop_repeated(_walk_columns(tree, frozenset(), growing=False))
    except ConfigError as e:
        raise ConfigError(f"{e} in {text!r}" if str(e) not in text else str(e)) from None


def _walk_columns(node: Any, bound: frozenset[str], *, growing: bool) -> Iterator[str]:
    """Yield the columns below a node of the tree, outermost names only. ``bound`` are names of
    lambdas' parameters; ``growing``: it is an argument of a function that makes long values."""
    if isinstance(node, list):
        for each in node:
            yield from _walk_columns(each, bound, growing=growing)
        return
    if not isinstance(node, dict):
        return
    kind = node.get("class")
    if kind == "COLUMN_REF":
        name = node["column_names"][0]
        if name.lower() not in bound:
            yield name
        return
    if kind == "FUNCTION":
        growing = _check_function(node, growing=growing)
        for argument in _list_arguments(node):
            if argument.get("class") == "LAMBDA":
                parameters = frozenset(_list_parameters(argument["lhs"]))
                # It is computed for each item of a list, which may be a long one.
                yield from _walk_columns(argument["expr"], bound | parameters, growing=True)
            else:
                yield from _walk_columns(argument, bound, growing=growing)
        return
    if kind is not None and kind not in _PURE:
        raise ConfigError(f"has {_IMPURE.get(kind, kind)}, which a row alone does not decide,")
    for value in node.values():
        yield from _walk_columns(value, bound, growing=growing)


def _list_arguments(node: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a function's arguments: DuckDB 2 names them."""
    listed = node.get("children") or node.get("arguments") or ()
    return [each.get("expression", each) for each in listed]


def _list_parameters(lhs: dict[str, Any]) -> Iterator[str]:
    for each in (lhs, *_list_arguments(lhs)):
        if each.get("class") == "COLUMN_REF":
            yield each["column_names"][0].lower()


def _check_function(node: dict[str, Any], *, growing: bool) -> bool:
    """Refuse a function that a row alone does not decide; return whether it, or one around it,
    makes long values."""
    name = node["function_name"].lower()
    kinds, how = sql.find_stability(name)
    if not kinds:
        raise ConfigError(f"has no function {name!r}{meant(name, sql.list_function_names())}")
    if node.get("filter") or node.get("distinct"):
        raise ConfigError(f"has {name!r} with FILTER or DISTINCT")
    if kinds == {"macro"}:
        for parameters, body in sql.find_macro_bodies(name):
            free = set(_walk_columns(sql.parse_expressions(body)[0], parameters, growing=growing))
            if free:
                raise ConfigError(f"has {name!r}, which depends on {', '.join(sorted(free))},")
        return growing
    if "scalar" not in kinds or kinds & {"aggregate", "window"}:
        raise ConfigError(f"has {name!r}, which is over many rows ({', '.join(sorted(kinds))}),")
    arguments = _list_arguments(node)
    # With one argument it is the age by the clock.
    clock = name == "age" and len(arguments) == 1
    if "CONSISTENT" not in how or name in _TELLING or name.startswith("__") or clock:
        raise ConfigError(
            f"has {name!r}, whose result depends on more than the row (clock, chance, settings or "
            "DuckDB's version),"
        )
    if name in _UNBOUNDED:
        raise ConfigError(f"has {name!r}, whose result may grow without bound,")
    if name in _FORMATS and _LONG_NUMBER.search(_print_literal(arguments[0]) or "****"):
        raise ConfigError(f"has {name!r} whose format is no text, or is wider than 999,")
    if name not in _GROWING:
        return growing
    numbers = [
        text for a in arguments if (text := _print_literal(a)) is not None and text.isdigit()
    ]
    if growing or not numbers or any(int(number) > LENGTH_MAX for number in numbers):
        raise ConfigError(
            f"has {name!r}, which makes values as long as it is told; tell it a number up to "
            f"{LENGTH_MAX}, and not within another such function or a lambda,"
        )
    return True


def _print_literal(node: dict[str, Any]) -> str | None:
    """Return a literal as SQL, without quotes; None for anything else."""
    return sql.print_tree(node).strip("'") if node.get("class") == "CONSTANT" else None


def _drop_repeated(names: Iterator[str]) -> tuple[str, ...]:
    """Return names once each, as they are spelled first."""
    return tuple({name.lower(): name for name in reversed([*names])}.values())[::-1]
