"""Each command of `tailer` that a page shows is one that the command line takes."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tailer.cli.commands import Command
from tailer.cli.main import COMMANDS, build_parser
from tests.support.pages import PAGES, Block, blocks
from tests.support.source import ROOT


def shown_commands(page: Path) -> list[list[str]]:
    """The words of each command in a page's shell blocks."""
    return [
        words for block in blocks(page) if block.language in ("", "sh") for words in block.commands
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_command_line_takes_what_a_page_shows(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in shown_commands(page):
        try:
            _, rest = build_parser(words[0]).parse_known_args(words)
        except SystemExit:
            pytest.fail(f"{page.name}: tailer {shlex.join(words)}: {capsys.readouterr().err}")
        assert not rest, f"{page.name}: tailer {shlex.join(words)}"


def test_commands_are_found_without_comments_and_redirections() -> None:
    text = "tailer tail t   # follow\ntailer read p.share#t \\\n  --from 1 > x\nls\n"
    found = Block("page", 1, "sh", text).commands
    assert found == [["tail", "t"], ["read", "p.share#t", "--from", "1"]]


def test_enough_commands_are_found() -> None:
    found = [each for page in PAGES for each in shown_commands(page)]
    assert len(found) > 60
    assert {"init", "run", "check", "verify", "offsets", "share", "spark"} <= {w[0] for w in found}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=lambda command: command.name)
def test_each_command_has_its_function(command: Command) -> None:
    """It is looked up by the command's name."""
    assert callable(command.load())
