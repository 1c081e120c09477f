"""The project's own files, for the tests that read them instead of running them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One Python file: its path below the root, its dotted module name and its text."""

    path: Path
    module: str
    is_package: bool
    text: str


def python_files(*folders: str) -> list[SourceFile]:
    """Every Python file under ``folders`` of the project, sorted by path."""
    paths = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return [_source_file(path) for path in paths]


def statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """All statements within a tree, at whatever depth: a few of its nodes, and so found soon."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            for child in getattr(node, block, ()):
                waiting.append(child)
                if isinstance(child, ast.stmt):
                    yield child


def called(node: ast.Call) -> str:
    """The last part of the name that is called: now for datetime.now(); empty for others."""
    match node.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _source_file(path: Path) -> SourceFile:
    relative = path.relative_to(ROOT)
    is_package = relative.name == "__init__.py"
    parts = relative.parent.parts if is_package else relative.with_suffix("").parts
    return SourceFile(relative, ".".join(parts), is_package, path.read_text(encoding="utf-8"))
