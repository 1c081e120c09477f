"""Each command of `tailer` that a page shows is one that the command line takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailer.cli.main import parser
from tests.support.source import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def shown_commands(text: str) -> Iterator[list[str]]:
    """The words of each command of a page's shell blocks, without what the shell does with it."""
    for language, block in re.findall(r"^```(.*?)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        if language not in ("", "sh"):
            continue
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("tailer "):
                command = re.split(r"\s(?:#|[|&>]|<)(?:\s|$)", line)[0]
                yield shlex.split(command)[1:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_command_line_takes_what_a_page_shows(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in shown_commands(page.read_text(encoding="utf-8")):
        try:
            _, rest = parser(words[0]).parse_known_args(words)
        except SystemExit:
            pytest.fail(f"{page.name}: tailer {shlex.join(words)}: {capsys.readouterr().err}")
        assert not rest, f"{page.name}: tailer {shlex.join(words)}"


def test_commands_are_found_without_comments_and_redirections() -> None:
    text = (
        "```sh\ntailer tail t   # follow\ntailer read t \\\n  --from 1 > x\nls\n```\n`tailer no`\n"
    )
    assert [*shown_commands(text)] == [["tail", "t"], ["read", "t", "--from", "1"]]


def test_enough_commands_are_found() -> None:
    found = [each for page in PAGES for each in shown_commands(page.read_text(encoding="utf-8"))]
    assert len(found) > 60
    assert {"init", "run", "check", "verify", "offsets", "share", "spark"} <= {w[0] for w in found}
