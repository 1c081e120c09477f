"""What a call hands over is visible where it stands."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Functions of libraries that take any number of alike values.
ALIKE = {
    "Window.partitionBy",
    "binary_join_element_wise",
    "chain",
    "gather",
    "isin",
    "max",
    "merge",
    "min",
    "orderBy",
    "register_assert_rewrite",
    "seek_to_beginning",
    "select",
    "selectExpr",
    "udf",
    "union",
    "zip",
}


def sources() -> Iterator[tuple[str, ast.Module]]:
    for folder in ("tailer", "sinks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text())


def takes_alike(tree: ast.AST, owner: str = "") -> Iterator[str]:
    """Yield the names of functions, methods and classes that take any number of values."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from takes_alike(node, node.name)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.args.vararg:
                of_class = any(ast.unparse(d) == "classmethod" for d in node.decorator_list)
                yield owner if node.name == "__init__" else f"{owner}." * of_class + node.name
            yield from takes_alike(node)


def name_of(called: ast.expr) -> str:
    """Return a function's name, with the class if it is called on one."""
    if not isinstance(called, ast.Attribute):
        return ast.unparse(called)
    owner = called.value.id if isinstance(called.value, ast.Name) else ""
    return f"{owner}.{called.attr}" if owner[:1].isupper() else called.attr


def unpacked(tree: ast.AST, alike: set[str], forwarded: frozenset[str]) -> Iterator[str]:
    """Yield the calls that unpack a tuple into the positions of several parameters.

    Allowed: to forward a function's own ``*args``, and to give the values of a list to a function
    that takes any number of alike values.
    """
    if isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef) and tree.args.vararg:
        forwarded |= {tree.args.vararg.arg}
    if isinstance(tree, ast.Call) and name_of(tree.func) not in alike:
        for argument in tree.args:
            if isinstance(argument, ast.Starred) and not (
                isinstance(argument.value, ast.Name) and argument.value.id in forwarded
            ):
                yield f"{tree.lineno}: {ast.unparse(argument)} in a call of {name_of(tree.func)}"
    for child in ast.iter_child_nodes(tree):
        yield from unpacked(child, alike, forwarded)


def test_no_call_unpacks_a_tuple_into_its_parameters() -> None:
    trees = dict(sources())
    alike = ALIKE.union(*map(takes_alike, trees.values()))
    found = [
        f"{path}:{call}"
        for path, tree in trees.items()
        for call in unpacked(tree, alike, frozenset())
    ]
    assert not found, "\n".join(["name the arguments, or make a record:", *found])


@pytest.mark.parametrize(
    ("code", "calls"),
    [
        ("known = a, b\nf(c, *known)", 1),
        ("f(*_PAUSES)", 1),
        ("f(*made(x))", 1),
        ("def g(*args):\n    return f(*args)", 0),
        ("def g(args):\n    return f(*args)", 1),
        ("zip(*columns)", 0),
        ("f([*a, *b])", 0),
    ],
)
def test_what_the_rule_forbids(code: str, calls: int) -> None:
    assert len(list(unpacked(ast.parse(code), ALIKE, frozenset()))) == calls
