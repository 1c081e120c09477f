"""The house's style where no linter holds it: sizes, public names, and nothing made at import."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.source import ROOT, SourceFile, called, python_files, statements

# A file is meant to stay below 400 lines. At 500 it has two subjects, and gets two files.
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70

# Written so that this file does not find itself.
UNFINISHED = re.compile(r"\b(TO[D]O|FIX[M]E|X[X]X|H[A]CK)\b")

# What a process has one of, or what talks to the outside: arguments, never made at import.
MADE_AT_IMPORT = {
    "AIOKafkaProducer",
    "ClientSession",
    "CollectorRegistry",
    "Counter",
    "Gauge",
    "Histogram",
    "KafkaConsumer",
    "KafkaProducer",
    "Producer",
    "Summary",
    "create_client",
    "get_session",
    "getLogger",
}

Rule = Callable[[SourceFile, ast.Module], Iterator[str]]


def too_long(file: SourceFile, tree: ast.Module) -> Iterator[str]:
    """The file's own length and that of each of its functions, both with their docstrings."""
    lines = len(file.text.splitlines())
    if lines > FILE_LINES_MAX:
        yield f"{file.path}: {lines} lines, of {FILE_LINES_MAX} at most"
    for node in statements(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                yield (
                    f"{file.path}:{node.lineno}: {node.name} has {length} lines,"
                    f" of {FUNCTION_LINES_MAX} at most"
                )


def unfinished(file: SourceFile, _: ast.Module) -> Iterator[str]:
    """Notes of work left undone."""
    for number, line in enumerate(file.text.splitlines(), start=1):
        if UNFINISHED.search(line):
            yield f"{file.path}:{number}: finish it, or say it in docs/limits.md"


def unnamed(file: SourceFile, tree: ast.Module) -> Iterator[str]:
    """Public modules without a docstring, and names that an ``__all__`` forgot or made up. Modules
    of the public API have one (``test_public_api.py``), and those that pass on others' names."""
    if any(part.startswith("_") for part in file.module.split(".")):
        return
    if ast.get_docstring(tree) is None:
        yield f"{file.path}: a public module says in its docstring what it is"
    public, declared = set(_public(tree)), _declared(tree)
    if declared is None:
        return
    for name in sorted(public - declared):
        yield f"{file.path}: {name} is public and not in __all__"
    bound = set(_bound(tree))
    # A package may load its modules when a name of theirs is asked for: __getattr__ knows those.
    unknown = set() if "__getattr__" in bound else declared - bound
    for name in sorted(unknown):
        yield f"{file.path}: {name} is in __all__ and nowhere else"


def made_at_import(file: SourceFile, tree: ast.Module) -> Iterator[str]:
    """Metrics, clients and loggers that come to life when the module is loaded."""
    for node in _run_at_import(tree):
        if isinstance(node, ast.Call) and called(node) in MADE_AT_IMPORT:
            yield f"{file.path}:{node.lineno}: {called(node)} is made at import, not handed in"


def _public(tree: ast.Module) -> Iterator[str]:
    """Functions and classes that a module defines without an underscore."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    names = [node.name for node in tree.body if isinstance(node, kinds)]
    yield from (name for name in names if not name.startswith("_"))


def _declared(tree: ast.Module) -> set[str] | None:
    """What ``__all__`` lists; None without one."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                return set(ast.literal_eval(value))
            case ast.AnnAssign(target=ast.Name(id="__all__"), value=ast.expr() as value):
                return set(ast.literal_eval(value))
    return None


def _bound(tree: ast.Module) -> Iterator[str]:
    """Every name that the module defines, assigns or imports, at whatever depth."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.alias(name=name, asname=other):
                yield other or name


def _run_at_import(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those in the bodies of functions, which run when they are called."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from _run_at_import(child)


def broken(rules: Sequence[Rule], files: list[SourceFile]) -> list[str]:
    """One sentence for every place where a rule is broken in ``files``."""
    assert files, "no file was found: the test looks in the wrong place"
    trees = ((file, ast.parse(file.text, str(file.path))) for file in files)
    return [sentence for file, tree in trees for rule in rules for sentence in rule(file, tree)]


def test_every_file_is_tidy() -> None:
    assert broken([too_long, unfinished], python_files("tests", "tools")) == []


def test_what_is_shipped_is_tidy() -> None:
    rules = [too_long, unfinished, unnamed, made_at_import]
    assert broken(rules, python_files("tailer", "sinks")) == []


@pytest.mark.parametrize("name", ["Makefile", "pyproject.toml", "README.md", "CHANGELOG.md"])
def test_papers_are_finished(name: str) -> None:
    assert UNFINISHED.findall((ROOT / name).read_text(encoding="utf-8")) == []


LONG_FUNCTION = "def work() -> None:\n" + "    step()\n" * FUNCTION_LINES_MAX
NOTE = "# TO" + "DO: later"


@pytest.mark.parametrize(
    ("rule", "text", "sentence"),
    [
        (too_long, "step()\n" * (FILE_LINES_MAX + 1), "501 lines, of 500"),
        (too_long, LONG_FUNCTION, "work has 71 lines, of 70"),
        (too_long, "class Feed:\n" + LONG_FUNCTION.replace("def", " async def"), "work has 71"),
        (unfinished, f"step()  {NOTE}", "x.py:1: finish it"),
        (unnamed, "", "says in its docstring"),
        (
            unnamed,
            '"""A feed."""\n__all__ = []\ndef run() -> None: ...',
            "run is public and not in",
        ),
        (unnamed, '"""A feed."""\n__all__ = []\nclass Feed: ...', "Feed is public and not in"),
        (unnamed, '"""A feed."""\n__all__ = ["Feed"]', "Feed is in __all__ and nowhere else"),
        (made_at_import, "EVENTS = Counter('events', 'Events.')", "Counter is made at import"),
        (made_at_import, "class Feed:\n    log = logging.getLogger()", "getLogger is made at"),
    ],
)
def test_a_file_that_is_not_tidy_is_named(rule: Rule, text: str, sentence: str) -> None:
    (found,) = broken([rule], [SourceFile(Path("tailer/x.py"), "tailer.x", False, text)])
    assert found.startswith("tailer/x.py")
    assert sentence in found


@pytest.mark.parametrize(
    ("rule", "module", "text"),
    [
        (too_long, "tailer.x", "step()\n" * FILE_LINES_MAX),
        (too_long, "tailer.x", LONG_FUNCTION.replace("    step()\n", "", 1)),
        (unnamed, "tailer.__main__", "def run() -> None: ..."),
        (unnamed, "tailer.x", '"""A feed."""\n__all__ = ["run"]\ndef run() -> None: ...'),
        (unnamed, "tailer.x", '"""A feed."""\nfrom tailer.y import Feed\n__all__ = ["Feed"]'),
        (unnamed, "tailer.x", '"""A feed."""\ndef run() -> None: ...'),
        (made_at_import, "tailer.x", "def metrics():\n    return Counter('events', 'Events.')"),
    ],
)
def test_a_tidy_file_is_let_pass(rule: Rule, module: str, text: str) -> None:
    assert broken([rule], [SourceFile(Path("tailer/x.py"), module, False, text)]) == []
