"""The public API: what docs/architecture.md lists is what a user finds in the modules."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from importlib import import_module

import pytest

import tailer
from tailer import errors
from tests.support.source import ROOT

ROW = re.compile(r"^\| `(tailer[\w.]*)`((?:[:,] `\w+`)*) \|", re.MULTILINE)


def listed() -> dict[str, list[str]]:
    """The modules of the page, each with the names that are listed of it."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.partition("## Public API")[2].partition("\n## ")[0]
    return {module: re.findall(r"\w+", names) for module, names in ROW.findall(section)}


def test_the_modules_of_the_page_are_those_of_the_package() -> None:
    page = listed()
    names = {*page.pop("tailer"), *(module.split(".")[1] for module in page)}
    assert names == {*tailer.__all__} - {"__version__"}


@pytest.mark.parametrize("module", listed())
def test_the_names_of_the_page_are_public(module: str) -> None:
    names = listed()[module]
    assert len({*names}) == len(names)
    assert {*names} <= {*getattr(import_module(module), "__all__", names)}
    for name in names:
        assert getattr(import_module(module), name)


def test_the_page_lists_every_name_of_a_feed_and_every_family_of_errors() -> None:
    page = listed()
    assert {*page["tailer.feed"]} == {*tailer.feed.__all__}
    assert {*page["tailer.deltalog"]} == {*tailer.deltalog.__all__}
    families = {name for name in errors.__all__ if inspect.isclass(getattr(errors, name))}
    assert {*page["tailer.errors"]} == families


def test_a_module_is_loaded_on_first_use_and_not_before() -> None:
    program = (
        "import sys, tailer\n"
        "assert {*tailer.__all__} <= {*dir(tailer)}\n"
        "assert not [m for m in sys.modules if m.startswith('tailer.')]\n"
        "assert tailer.deltalog.DeltaLog.__module__ == 'tailer.deltalog'\n"
        "assert 'tailer.testing' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def test_any_other_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'tailer' has no attribute 'nothing'"):
        getattr(tailer, "nothing")  # noqa: B009
