"""What the texts of modules, classes and functions refer to exists: code moves, and texts stay."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.support.source import ROOT, SourceFile, python_files, statements

FILES = python_files("tailer", "sinks", "tests", "tools")
MODULES = {file.module: file for file in FILES}
OWN = ("tailer", "sinks", "tests", "tools")
_ROLE = re.compile(r":(?:mod|class|func|meth|attr|data|exc|obj):`([~!]?)([\w.]+)`")
_FILE = re.compile(r"`((?:[\w-]+/)+[\w-]+\.(?:py|md|toml|rs|c))`")
_TEXTS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Contents:
    """What a module says and has: its docstrings, its own names, those of its classes, dotted, and
    what it imports."""

    texts: list[str]
    names: frozenset[str]

    @classmethod
    def of(cls, text: str) -> Contents:
        tree = ast.parse(text)
        names: set[str] = set()
        documented: list[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef] = [
            tree
        ]
        for node in statements(tree):
            if isinstance(node, _TEXTS):
                documented.append(node)
            names.update(_bound(node))
            if isinstance(node, ast.ClassDef):
                members = (name for within in statements(node) for name in _bound(within))
                names.update(f"{node.name}.{member}" for member in members)
        return cls(
            [doc for node in documented if (doc := ast.get_docstring(node))], frozenset(names)
        )


def _bound(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement binds, and the attributes that it sets."""
    match statement:
        case ast.Import(names=imported) | ast.ImportFrom(names=imported):
            yield from (alias.asname or alias.name for alias in imported)
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name
        case ast.Assign(targets=targets):
            yield from (name for target in targets for name in _stored(target))
        case ast.AnnAssign(target=target) | ast.For(target=target):
            yield from _stored(target)


def _stored(target: ast.expr) -> Iterator[str]:
    for node in ast.walk(target):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


@cache
def contents(file: SourceFile) -> Contents:
    return Contents.of(file.text)


def names(module: str) -> frozenset[str]:
    return contents(MODULES[module]).names


@cache
def everywhere() -> frozenset[str]:
    """The names of all modules: a text may name a class without saying where it is."""
    return frozenset(name for module in MODULES for name in names(module))


def exists(name: str, file: SourceFile) -> bool:
    """Whether there is what a name of this project means; others' names are not looked up."""
    parts = name.split(".")
    if parts[0] in OWN:
        if (ROOT / name.replace(".", "/")).with_suffix(".pyi").exists():
            return True  # what is compiled
        for size in range(len(parts), 0, -1):
            module, rest = ".".join(parts[:size]), parts[size:]
            if module in MODULES:
                has = names(module)
                return (
                    not rest
                    or ".".join(rest) in has
                    or (rest[0] in has and rest[0] not in everywhere_dotted())
                )
        return False
    package = file.module if file.is_package else file.module.rpartition(".")[0]
    if f"{package}.{name.lstrip('.')}" in MODULES or hasattr(builtins, parts[0]):
        return True
    own = names(file.module)
    is_others = len(parts) > 1 and (parts[0] in own or parts[0].islower())
    return is_others or name in everywhere() or any(x.endswith(f".{name}") for x in own)


@cache
def everywhere_dotted() -> frozenset[str]:
    """Classes: what they do not have is not there, and of imported modules nothing is known."""
    return frozenset(name.partition(".")[0] for name in everywhere() if "." in name)


def dead_references(file: SourceFile) -> Iterator[str]:
    """The names and files that a file's texts give, and that there are not."""
    for text in contents(file).texts:
        for _, name in _ROLE.findall(text):
            if not exists(name, file):
                yield f"{file.path}: there is no {name}"
        for path in _FILE.findall(text):
            folders = (ROOT, ROOT / "tailer", (ROOT / file.path).parent)
            if not any((folder / path).exists() for folder in folders):
                yield f"{file.path}: there is no {path}"


@pytest.mark.parametrize("folder", OWN)
def test_what_a_text_refers_to_exists(folder: str) -> None:
    found = [
        dead for file in FILES if file.path.parts[0] == folder for dead in dead_references(file)
    ]
    assert found == []


def test_what_is_gone_is_named() -> None:
    text = '"""As :class:`tailer.sink.gone.Registry` in ``tailer/gone.py``, :class:`Gone`."""\n'
    file = SourceFile(Path("tailer/changes.py"), "tailer.changes", is_package=False, text=text)
    assert [*dead_references(file)] == [
        "tailer/changes.py: there is no tailer.sink.gone.Registry",
        "tailer/changes.py: there is no Gone",
        "tailer/changes.py: there is no tailer/gone.py",
    ]


def test_the_modules_that_a_test_names_exist() -> None:
    """A test that looks whether a module was loaded can't fail once it has moved."""
    pattern = re.compile(r'"((?:tailer|sinks)(?:\.\w+){2,})"')
    found = [
        f"{file.path}: there is no {name}"
        for file in FILES
        if file.path.parts[0] == "tests" and file.path.parts[1] != "house"
        for name in pattern.findall(file.text)
        if not exists(name, file)
    ]
    assert found == []
