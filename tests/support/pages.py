"""The pages that a user reads, and the code on them."""

from __future__ import annotations

import re
import shlex
import textwrap
from dataclasses import dataclass
from pathlib import Path

from tests.support.source import ROOT

#: README.md and its like, and everything below docs/.
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """What stands between two fences of a page."""

    page: str
    line: int
    language: str
    text: str

    @property
    def lines(self) -> list[str]:
        """Its lines, with what goes on after a backslash in one."""
        return self.text.replace("\\\n", " ").splitlines()

    @property
    def commands(self) -> list[list[str]]:
        """The words of each command of `tailer`, without what the shell does with it."""
        plain = (re.split(r"\s(?:#|[|&>]|<)(?:\s|$)", line)[0] for line in self.lines)
        return [shlex.split(line)[1:] for line in plain if line.startswith("tailer ")]

    def __str__(self) -> str:
        return f"{self.page}:{self.line} {self.language} {self.lines[0]!r}"


def blocks(page: str | Path, language: str | None = None) -> list[Block]:
    """The blocks of a page (a path below the project's root), of one language or of all."""
    path = ROOT / page
    text = path.read_text(encoding="utf-8")
    return [
        Block(
            path.relative_to(ROOT).as_posix(),
            text.count("\n", 0, found.start()) + 1,
            found[2],
            textwrap.dedent(found[3]),
        )
        for found in _BLOCK.finditer(text)
        if language in (None, found[2])
    ]
