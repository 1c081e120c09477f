"""The documentation as a site: it is built strictly, with pages that are made from the code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.source import ROOT, SourceFile
from tools.docs_site import commands, error_table, slug
from tools.drawings import DRAWINGS, WIDTH, Drawing, draw


@pytest.mark.slow
def test_the_site_is_built_without_a_dead_link_or_a_page_that_no_menu_has(tmp_path: Path) -> None:
    site = tmp_path / "site"
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(site),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is not supported yet" not in done.stderr
    for page, words in {
        "errors": ("UnsupportedTable", "install a newer delta-tailer"),
        "http": ("/api/v1/reload", "/changes"),
        "python": ("transaction_version",),
    }.items():
        made = (site / "reference" / page / "index.html").read_text(encoding="utf-8")
        assert [word for word in words if word not in made] == [], page
    # Nothing is loaded from another host: it is read where there is no network, too.
    index = (site / "index.html").read_text(encoding="utf-8")
    assert 'src="http' not in index
    assert "fonts.googleapis" not in index


def test_every_command_is_on_the_page_of_commands() -> None:
    page = "\n".join(commands())
    for name in ("tail", "read", "run", "offsets", "spark"):
        assert f"## tailer {name}\n" in page
        assert f"usage: tailer {name} " in page


def test_an_error_s_sentence_and_remedy_are_found() -> None:
    text = """
raise TableError(f"the version is {version}", hint="ask for others")
raise ConfigError("no such key " + name + "; leave it out")
raise ValueError("of no family")
raise TableError(sentence)
"""
    file = SourceFile(Path("x.py"), "x", is_package=False, text=text)
    assert error_table([file]) == {
        "ConfigError": [("no such key …", "leave it out")],
        "TableError": [("the version is …", "ask for others")],
    }


def test_anchors_are_those_of_github() -> None:
    assert slug("`on_schema_change`, `on_reject`", "-") == "on_schema_change-on_reject"


@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda drawing: drawing.name)
def test_a_drawing_is_as_it_is_described_and_is_on_a_page(drawing: Drawing) -> None:
    docs = ROOT / "docs"
    assert (docs / f"{drawing.name}.svg").read_text() == draw(drawing), "make pictures"
    pages = (page.read_text(encoding="utf-8") for page in docs.glob("*.md"))
    assert any(f"]({drawing.name}.svg)" in text for text in pages)
    assert all(box.right <= WIDTH for box in drawing.boxes)
    # Letters of this size are at most 7 wide on average; what is longer leaves its box.
    assert max(len(line) for box in drawing.boxes for line in box.lines) <= 24
