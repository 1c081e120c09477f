"""docs/python.md: its programs, run as they stand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tailer.testing.table import TableBuilder
from tests.support.pages import blocks

PRINTED = (
    ["{'id': 13, ", "{'id': 14, ", "+00:00  1 0"],
    ["40 rows up to version 4"],
    ["{'id': 0, 'price': 0.0, 'n': 2, '_change_type': 'insert', "],
    ["30"],
)


def test_the_programs_of_the_page_do_what_they_say(table: TableBuilder, tmp_path: Path) -> None:
    assert table.folder.parent == tmp_path
    programs = blocks("docs/python.md", "python")
    assert len(programs) == len(PRINTED)
    for block, expected in zip(programs, PRINTED, strict=True):
        done = subprocess.run(
            [sys.executable, "-W", "error::ResourceWarning", "-c", block.text],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), block
        for text in expected:
            assert text in done.stdout


@pytest.mark.slow
def test_the_programs_of_the_page_are_typed(tmp_path: Path) -> None:
    for number, block in enumerate(blocks("docs/python.md", "python")):
        (tmp_path / f"program_{number}.py").write_text(block.text)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "."],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
