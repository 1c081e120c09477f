"""docs/architecture.md: each function that it names exists, and it leaves no package out."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.support.source import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
STEP = re.compile(r"`((?:tailer|sinks)/[\w/]+\.py)::(\w+(?:\.\w+)?)`")


def defined(source: str) -> Iterator[str]:
    """The functions and classes of a module, and the methods of its classes."""
    for node in ast.parse(source).body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name, body=body):
                yield name
                for method in body:
                    if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                        yield f"{name}.{method.name}"


@pytest.mark.parametrize(("file", "name"), sorted({*STEP.findall(PAGE)}))
def test_each_step_of_a_commit_s_way_exists(file: str, name: str) -> None:
    assert name in defined((ROOT / file).read_text(encoding="utf-8"))


def test_the_way_of_a_commit_has_all_its_steps() -> None:
    section = PAGE.partition("## The way of one commit")[2].partition("\n## ")[0]
    assert len(STEP.findall(section)) > 20
    numbers = [int(number) for number in re.findall(r"^\| (\d+) \| `", section, re.MULTILINE)]
    assert numbers == [*range(1, len(numbers) + 1)]


def test_the_map_names_every_package_and_module() -> None:
    section = PAGE.partition("## Packages")[2].partition("\n## ")[0]
    named = set(re.findall(r"`tailer/(\w+)(?:\.py)?`", section))
    there = {
        path.stem
        for path in (ROOT / "tailer").iterdir()
        if (path.is_dir() and (path / "__init__.py").exists())
        or (path.suffix == ".py" and not path.name.startswith("__"))
    }
    assert named == there


def test_the_map_of_a_feed_names_every_module_of_it() -> None:
    folder = ROOT / "tailer" / "feed"
    source = (folder / "__init__.py").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| ([\w/, ]+) \|", ast.get_docstring(ast.parse(source)) or "", re.MULTILINE
    )
    named = {name for row in rows for name in row.split(", ")} - {"module"}
    paths = (path.relative_to(folder) for path in folder.rglob("*.py"))
    assert named == {str(path.with_suffix("")) for path in paths if path.name != "__init__.py"}


def test_a_name_that_is_gone_is_not_defined() -> None:
    source = "class Feed:\n    async def run(self): ...\ndef read(): ...\n"
    assert [*defined(source)] == ["Feed", "Feed.run", "read"]


def test_a_class_has_a_name_of_its_own() -> None:
    """Who reads of a class, or searches for it, finds one."""
    named = Counter(
        node.name
        for package in ("tailer", "sinks")
        for path in (ROOT / package).rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in named.items() if count > 1] == []
