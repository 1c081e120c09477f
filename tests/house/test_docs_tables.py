"""The documentation's tables of options are what the code declares."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tailer.settings import REQUIRED
from tests.support.source import python_files
from tools.docs_sections import SECTIONS
from tools.docs_tables import TABLES, pages, with_tables


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_the_tables_of_a_page_are_those_of_the_code(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert with_tables(text) == text, "run `make docs`"


def test_every_table_is_on_a_page_once() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in pages())
    assert sorted(re.findall(r"<!-- options: (.*?) -->", text)) == sorted(TABLES)
    assert sorted(re.findall(r"<!-- made: (.*?) -->", text)) == sorted(SECTIONS)


def test_a_changed_table_is_written_again() -> None:
    text = "# Page\n\n<!-- options: daemon -->\n| `gone` |\n<!-- end of options -->\n\nrest\n"
    written = with_tables(text)
    assert "gone" not in written
    assert "| `log_format` | one of console, json | `console` | Format of log lines. |" in written
    assert written.startswith("# Page\n\n<!--")
    assert written.endswith("-->\n\nrest\n")


@pytest.mark.parametrize("table", TABLES)
def test_each_setting_has_a_sentence_and_a_default_that_is_allowed(table: str) -> None:
    for name, setting in TABLES[table].items():
        assert re.match(r"[A-Z`].*[.)]$", setting.help), name
        if setting.default is not REQUIRED and setting.default is not None:
            setting.value(setting.default)  # ValueError if it is not allowed


def test_an_option_that_a_message_names_is_there() -> None:
    """The remedy of an error is no option that was renamed."""
    declared = {name for table in TABLES.values() for name in table}
    named = {
        (name, str(file.path))
        for file in python_files("tailer", "sinks")
        for node in ast.walk(ast.parse(file.text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for name in re.findall(r"\boptions? '(\w+)'", node.value)
    }
    assert len(named) > 10, "the test looks in the wrong place"
    assert [place for place in sorted(named) if place[0] not in declared] == []


def test_there_are_no_more_options_than_somebody_can_learn() -> None:
    """Whoever adds one finds another that can go."""
    settings = [setting for table in TABLES.values() for setting in table.values()]
    assert len(settings) <= 301
    assert sum(not setting.advanced for setting in settings) <= 144
