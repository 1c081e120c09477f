"""The script that makes the documentation's pictures."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.console.browser import browser_program
from tests.support.components import require
from tests.support.source import ROOT
from tools.pictures import console_pictures, terminal_picture


@pytest.mark.anyio
async def test_the_console_is_pictured_wide_and_narrow(tmp_path: Path) -> None:
    require("Chromium", browser_program() is not None)
    pictures = await console_pictures(tmp_path, well=1)
    assert {each.read_bytes()[8:12] for each in pictures} == {b"WEBP"}
    made = {each.name for each in (ROOT / "docs" / "pictures").iterdir()}
    assert {each.name for each in pictures} | {"demo.svg"} == made, "make pictures"


def test_a_terminal_shows_what_a_command_prints(tmp_path: Path) -> None:
    drawn = terminal_picture(tmp_path, sys.executable, "-m", "tailer", "--help").read_text()
    assert "follow&#160;one&#160;table,&#160;its&#160;events&#160;as&#160;JSON&#160;lines" in drawn
    assert "http://" not in drawn.replace("http://www.w3.org/", "")
    assert 'url("' not in drawn
