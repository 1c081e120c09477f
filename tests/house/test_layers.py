"""Who may import whom: imports go down only, and what is pure stays pure.

Every import counts, also one inside a function or for types alone: each ties two modules together.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.source import SourceFile, called, python_files

# From the top down. A module may import those of lower rows and those of its own name, never its
# neighbours. One that stands in no row is an error: nobody could say who may import it.
LAYERS = (
    ("__main__", "testing"),
    ("cli",),
    ("daemon", "spark", "share_server"),
    ("api",),
    ("deltalog", "verify", "config"),
    ("feed",),
    ("shape",),
    ("compare",),
    ("plan", "storage"),
    ("http_server", "log", "offsets"),
    ("store", "decode"),
    ("sharing",),  # the client: a shared table is a store
    ("sink",),
    ("__init__",),  # loaded before all others: what it imports, everyone does
    ("changes",),
    ("delta",),
    ("offset", "setting_fields"),
    ("settings",),
    ("network", "plugins", "process"),
    ("errors", "files", "native"),
    ("secrets",),
)
RANKS = {name: -row for row, names in enumerate(LAYERS) for name in names}

# These decide; they neither wait nor look at a clock nor report.
PURE = ("delta", "decode", "compare", "changes")
IMPURE_MODULES = {
    "aiobotocore": "a store",
    "aiohttp": "a network",
    "anyio": "an event loop",
    "asyncinotify": "a store",
    "asyncio": "an event loop",
    "logging": "a log",
    "socket": "a network",
    "threading": "a scheduler",
    "time": "a clock",
}
CLOCK_CALLS = {"now", "today", "utcnow"}

SINKS_MAY_IMPORT = {
    "changes",
    "errors",
    "files",
    "native",
    "network",
    "plugins",
    "process",
    "secrets",
    "setting_fields",
    "settings",
    "sink",
    "storage",
}


def violations(file: SourceFile) -> list[str]:
    """One sentence for every rule that ``file`` breaks; none for a good file."""
    of_package = _within_sinks if _package(file.module) == "sinks" else _downwards
    found = [
        f"{file.path}:{line}: {broken}"
        for line, target in imports(file)
        for rule in (_by_name, of_package)
        if (broken := rule(file.module, target)) is not None
    ]
    if _package(file.module) == "tailer" and _unit(file.module) in PURE:
        found += [f"{file.path}:{line}: {broken}" for line, broken in _impurities(file)]
    return found


@cache
def imports(file: SourceFile) -> list[tuple[int, str]]:
    """Line and absolute dotted name of all that is imported, by statement or by call."""
    return [*_imports(ast.parse(file.text, str(file.path)), file)]


def _imports(tree: ast.AST, file: SourceFile) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, file)
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and called(node) in {"import_module", "__import__"}:
            names = [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)]
            yield from ((node.lineno, name) for name in names if isinstance(name, str))


def _absolute(node: ast.ImportFrom, file: SourceFile) -> str:
    """The module that a ``from`` names, its leading dots resolved."""
    if node.level == 0:
        return node.module or ""
    parts = file.module.split(".")
    depth = len(parts) + file.is_package - node.level
    return ".".join([*parts[:depth], *([node.module] if node.module else [])])


def _package(name: str) -> str:
    return name.partition(".")[0]


def _unit(name: str) -> str:
    """The part of ``tailer`` that a name lies in: store for tailer.store.s3.

    What is no module of its own (``from tailer import __version__``) comes from ``__init__``.
    """
    unit = f"{name}.__init__".split(".")[1]
    return unit if unit in RANKS else "__init__"


def _by_name(importer: str, target: str) -> str | None:
    if _package(target) == "sinks" and _package(importer) != "sinks":
        return f"imports {target}: sinks are found by entry point, never by name"
    return None


def _downwards(importer: str, target: str) -> str | None:
    if _package(target) != "tailer":
        return None
    unit, wanted = _unit(importer), _unit(target)
    if unit == wanted or RANKS[wanted] < RANKS[unit]:
        return None
    return f"{unit} imports {target}: imports go down only, and {wanted} is not below {unit}"


def _within_sinks(_: str, target: str) -> str | None:
    if _package(target) != "tailer" or _unit(target) in SINKS_MAY_IMPORT:
        return None
    return f"a sink imports {target}: it may import only those of SINKS_MAY_IMPORT"


def _impurities(file: SourceFile) -> Iterator[tuple[int, str]]:
    unit = _unit(file.module)
    for line, target in imports(file):
        what = IMPURE_MODULES.get(_package(target))
        if what is not None:
            yield line, f"{unit} imports {target}, {what}: it is to decide from its arguments alone"
    for node in ast.walk(ast.parse(file.text)):
        if isinstance(node, ast.Call) and called(node) in CLOCK_CALLS:
            yield node.lineno, f"{unit} asks the clock by {called(node)}(): times are arguments"
        elif isinstance(node, ast.AsyncFunctionDef):
            yield node.lineno, f"{unit} has an async function: it is to decide without waiting"


def _file(path: str, text: str) -> SourceFile:
    """A made-up file, for the rules' own tests."""
    parts = path.removesuffix(".py").removesuffix("/__init__").split("/")
    return SourceFile(Path(path), ".".join(parts), path.endswith("__init__.py"), text)


def test_no_file_breaks_a_rule() -> None:
    files = python_files("tailer", "sinks")
    assert files, "no file was found: the test looks in the wrong place"
    assert [broken for file in files for broken in violations(file)] == []


def test_every_module_has_its_layer() -> None:
    units = {file.module.split(".")[1] for file in python_files("tailer") if "." in file.module}
    assert units - RANKS.keys() == set(), "give them a row in LAYERS"


@pytest.mark.parametrize(
    ("path", "text", "broken"),
    [
        ("tailer/log/x.py", "from tailer.feed import Feed", "feed is not below log"),
        ("tailer/log/x.py", "from tailer import feed", "feed is not below log"),
        ("tailer/log/x.py", "import tailer.feed as f", "feed is not below log"),
        ("tailer/log/x.py", "from ..feed import Feed", "feed is not below log"),
        ("tailer/store/s3/x.py", "from ...log import Log", "log is not below store"),
        ("tailer/store/__init__.py", "from ..log import Log", "log is not below store"),
        ("tailer/offsets/s3.py", "from tailer.log import Log", "log is not below offsets"),
        ("tailer/decode/rows.py", "from tailer.store.local import X", "store is not below decode"),
        ("tailer/delta/actions.py", "from tailer.changes import X", "changes is not below delta"),
        ("tailer/errors.py", "from tailer.delta import X", "delta is not below errors"),
        ("tailer/errors.py", "from tailer import __version__", "__init__ is not below errors"),
        ("tailer/__init__.py", "from tailer.feed import Feed", "feed is not below __init__"),
        ("tailer/feed/x.py", "def f():\n    from tailer.daemon import D", "x.py:2: feed imports"),
        ("tailer/feed/x.py", "if TYPE_CHECKING:\n    import tailer.cli", "cli is not below"),
        ("tailer/daemon/x.py", "import importlib\nimportlib.import_module('tailer.cli')", "cli"),
        ("tailer/cli/x.py", "from tailer.testing.demo import main", "testing is not below cli"),
        ("tailer/sink/__init__.py", "from sinks.jsonl import JsonlSink", "never by name"),
        ("tailer/sink/__init__.py", "import sinks", "never by name"),
        ("tailer/sink/__init__.py", "import_module('sinks.jsonl')", "never by name"),
        ("tailer/sharing/client.py", "from tailer.store import X", "store is not below sharing"),
        ("tailer/store/shared/x.py", "from tailer.share_server import X", "share_server is not"),
        ("sinks/jsonl.py", "from tailer.feed import Feed", "a sink imports tailer.feed"),
        ("sinks/jsonl.py", "from tailer.sinks import X", "a sink imports tailer.sinks"),
        ("sinks/jsonl.py", "from tailer import log", "a sink imports tailer.log"),
        ("sinks/jsonl.py", "import tailer", "a sink imports tailer"),
        ("tailer/delta/actions.py", "import anyio", "delta imports anyio, an event loop"),
        ("tailer/decode/rows.py", "from asyncio import sleep", "decode imports asyncio.sleep"),
        ("tailer/decode/rows.py", "import logging", "decode imports logging, a log"),
        ("tailer/changes.py", "from time import time", "changes imports time.time, a clock"),
        ("tailer/changes.py", "datetime.now(UTC)", "changes asks the clock by now()"),
        ("tailer/delta/timestamps.py", "datetime.date.today()", "asks the clock by today()"),
        ("tailer/decode/rows.py", "async def plan(): ...", "decode has an async function"),
    ],
)
def test_a_file_that_breaks_a_rule_is_named(path: str, text: str, broken: str) -> None:
    (sentence,) = violations(_file(path, text))
    assert sentence.startswith(path)
    assert broken in sentence


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("tailer/__main__.py", "from tailer.cli import run"),
        ("tailer/cli/main.py", "def run():\n    from tailer.daemon import serve"),
        ("tailer/daemon/run.py", "from tailer.feed import Feed\nimport tailer.process.logs"),
        ("tailer/feed/run.py", "from tailer import log, offsets\nimport anyio, logging, time"),
        ("tailer/store/s3/store.py", "from tailer.store import contract\nfrom . import client"),
        ("tailer/store/local.py", "from tailer.errors import TransientError\nimport watchfiles"),
        ("tailer/store/shared/store.py", "from tailer.sharing.client import SharingClient"),
        ("tailer/share_server/app.py", "from tailer.sharing.model import X\nimport tailer.log"),
        ("tailer/decode/__init__.py", "from .plan import plan"),
        ("tailer/decode/rows.py", "from tailer.changes import X\nfrom datetime import datetime"),
        ("tailer/testing/sinks.py", "from tailer.sink import Sink"),
        ("tailer/sink/__init__.py", "from importlib.metadata import entry_points"),
        ("sinks/jsonl.py", "from sinks.formats import rows\nfrom tailer.sink import Sink"),
        ("sinks/files.py", "from tailer import errors\nimport time, anyio"),
    ],
)
def test_a_file_that_keeps_the_rules_is_let_pass(path: str, text: str) -> None:
    assert violations(_file(path, text)) == []


def circles(files: list[SourceFile]) -> list[list[str]]:
    """The sets of modules that import each other, also by a detour.

    A package's own page may load its modules, and they its names.
    """
    modules = {file.module for file in files}
    pages = {file.module for file in files if file.is_package}
    arrows: dict[str, set[str]] = {name: set() for name in modules - pages}
    for file in files:
        if file.module in pages:
            continue
        for _, target in imports(file):
            found = target if target in modules else target.rpartition(".")[0]
            if found in arrows and found != file.module:
                arrows[file.module].add(found)
    while free := {name for name, targets in arrows.items() if not targets & arrows.keys()}:
        for name in free:
            del arrows[name]
    # What is left leads to a circle; those that nothing of it leads to are no part of one.
    while outside := arrows.keys() - {t for targets in arrows.values() for t in targets}:
        for name in outside:
            del arrows[name]
    return [sorted(arrows)] if arrows else []


def test_no_modules_import_each_other() -> None:
    assert circles(python_files("tailer", "sinks")) == []


def test_a_circle_is_found_also_by_a_detour_and_within_functions() -> None:
    files = [
        _file("tailer/a.py", "import tailer.b"),
        _file("tailer/b.py", "def f():\n    from tailer.c import g"),
        _file("tailer/c.py", "from tailer import a"),
        _file("tailer/d.py", "import tailer.a"),
        _file("tailer/e.py", ""),
    ]
    assert circles(files) == [["tailer.a", "tailer.b", "tailer.c"]]
