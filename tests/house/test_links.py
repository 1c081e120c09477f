"""The pages' links lead somewhere, and the files that they name in passing exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.source import ROOT

PAGES = sorted(
    page.relative_to(ROOT)
    for folder, pattern in ((".", "*.md"), ("docs", "**/*.md"), ("tests", "**/*.md"))
    for page in (ROOT / folder).glob(pattern)
)
_BLOCK = re.compile(r"^[ ]*```.*?^[ ]*```", re.DOTALL | re.MULTILINE)
# In its place, or below the text by its name.
_LINK = re.compile(r"(?:\[[^\]]*\]\(|^\[[^\]]+\]: )([^)\s]+)", re.MULTILINE)
_NAMED = re.compile(r"\]\[([^\]]+)\]")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_TEST = re.compile(r"`(tests/[\w./-]+\.py)::(\w+)`")
_FILE = re.compile(r"`((?:tailer|sinks|tests|docs|deploy)/[\w./-]+)`")


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = _HEADING.findall(_BLOCK.sub("", text))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead_links(page: Path, text: str) -> Iterator[str]:
    """The links of a page to files and headings that do not exist."""
    for name in _NAMED.findall(_BLOCK.sub("", text)):
        if f"\n[{name}]: " not in text:
            yield f"{page}: [{name}] leads to nothing: no [{name}]: below the text"
    for link in _LINK.findall(_BLOCK.sub("", text)):
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        if path and not target.exists():
            yield f"{page}: {link} leads to no file"
        elif anchor and anchor not in anchors(target.read_text(encoding="utf-8") if path else text):
            yield f"{page}: {link} leads to no heading"


def missing_files(page: Path, text: str) -> Iterator[str]:
    """The files of this repository that a page names and that are not in it."""
    for name in _FILE.findall(_BLOCK.sub("", text)):
        if not (ROOT / name).exists():
            yield f"{page}: there is no {name}"


def missing_tests(page: Path, text: str) -> Iterator[str]:
    """The tests that a page names and that there are not."""
    for name, test in _TEST.findall(text):
        file = ROOT / name
        if not file.exists() or f"def {test}(" not in file.read_text(encoding="utf-8"):
            yield f"{page}: there is no {name}::{test}"


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_the_tests_that_a_page_names_exist(page: Path) -> None:
    assert [*missing_tests(page, (ROOT / page).read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_a_page_s_links_lead_somewhere(page: Path) -> None:
    assert [*dead_links(page, (ROOT / page).read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("page", [p for p in PAGES if p.name != "CHANGELOG.md"], ids=str)
def test_the_files_that_a_page_names_exist(page: Path) -> None:
    assert [*missing_files(page, (ROOT / page).read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[a](none.md)", "leads to no file"),
        ("# One\n[a](#two)", "leads to no heading"),
        ("[a](README.md#two)", "leads to no heading"),
        ("[a]: none.md\n", "leads to no file"),
        ("[a][b]\n", "leads to nothing: no [b]: below the text"),
    ],
)
def test_a_dead_link_is_found(text: str, sentence: str) -> None:
    (found,) = dead_links(Path("x.md"), text)
    assert found.endswith(sentence)


def test_a_link_that_leads_somewhere_is_let_pass() -> None:
    text = "# `key`, *one*\n[a](#key-one) [b](docs/kafka.md) [c](https://example.org/x)\n"
    assert [*dead_links(Path("x.md"), text)] == []


def test_a_missing_file_is_found() -> None:
    assert [*missing_files(Path("x.md"), "`tailer/none.py`, `tailer/feed`, `tests/house`")] == [
        "x.md: there is no tailer/none.py"
    ]


def test_a_test_that_is_gone_is_named() -> None:
    text = "`tests/house/test_links.py::test_a_test_that_is_gone_is_named` `tests/no.py::test_x`"
    assert [*missing_tests(Path("x.md"), text)] == ["x.md: there is no tests/no.py::test_x"]
