"""Text for users is plain technical English: phrasings that readers stumbled over stay out.

Users read README.md, the documentation, errors, hints, help and log lines: all strings of the code
but its docstrings.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.support.source import ROOT, python_files

PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")),
)
#: What not to write, and what to write instead.
STUMBLES = {
    r"\bso many\b": "the number, or 'this many'",
    r"\bwho(so)?ever\b": "who it is, or 'anyone who'",
    r"\b(?<!there )(is|are|was|were) none\b": "'is invalid', or 'is not a ...'",
    r"\bthat (is|are) no\b(?! longer)": "'is not a ...'",
    r"\b(is|are|was|were|be|been) told\b": "'gets', 'is stopped', 'is recognized'",
    r"\btells\b": "'shows', 'says', 'reports'",
    r"\bof (the )?\w+'s own\b|\b(process|node|daemon)'s own\b": "'its ...', or who owns it",
    r"\banew\b": "'again'",
    r"\bha(s|ve) the way\b": "what it does",
    r"\bwhere to go on\b": "'further reading'",
    r"\bstay those of the start\b": "'cannot be changed by a reload'",
    r"\blet \w+ be (greater|less|another)\b": "'increase ...', 'set ...'",
    r"\bthat is not expected\b": "'unexpected'",
    r"; empty: (all|off|none)\b": "'empty means all'",
}


def stumbles(text: str) -> Iterator[tuple[int, str]]:
    """Line, found words and the remedy, of each phrase in a text; phrases may cross lines."""
    plain = re.sub(r"```.*?```", lambda m: "\n" * m[0].count("\n"), text, flags=re.DOTALL)
    for pattern, remedy in STUMBLES.items():
        for found in re.finditer(pattern, plain.replace("\n", " "), re.IGNORECASE):
            yield plain.count("\n", 0, found.start()) + 1, f"{found[0]!r}: write {remedy}"


def shown_strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of the strings of a module, without its docstrings."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in docstrings:
                yield node.lineno, text


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_plain(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert [f"{page}:{line}: {what}" for line, what in stumbles(text)] == []


def test_errors_hints_and_help_are_plain() -> None:
    assert [
        f"{file.path}:{line}: {what}"
        for file in python_files("tailer", "sinks")
        for line, text in shown_strings(ast.parse(file.text, str(file.path)))
        for _, what in stumbles(text)
    ] == []


@pytest.mark.parametrize(
    "text",
    [
        "at most so many", "leave it to\nwhoever wants it", "a footer that is none", "is told to",
        "the log tells", "the process's own", "a folder of the node's own", "written anew",
        "a column that is no partition column", "Only these leave; empty: all.",
    ],
)  # fmt: skip
def test_a_phrase_is_found(text: str) -> None:
    assert [*stumbles(text)]


@pytest.mark.parametrize(
    "text", ["there is none", "Spark's own rows", "is no longer there", "```\nwhoever\n```"]
)
def test_plain_text_is_let_pass(text: str) -> None:
    assert [*stumbles(text)] == []
