"""The tests of what was changed come first, and what fails is said at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest

from tests.support.order import changed_paths, rank
from tests.support.source import ROOT

FAILING = """
import sys
def test_first():
    raise ValueError("the reason\\nand more")
def test_second():
    sys.stderr.write(sys.stdin.readline())
"""


@pytest.mark.parametrize(
    ("changed", "test", "expected"),
    [
        ("tailer/feed/rows/span.py", "tests/feed/test_span.py", 0),
        ("tailer/feed/rows/span.py", "tests/feed/test_span_reader.py", 0),
        ("tailer/feed/rows/span.py", "tests/feed/test_spans.py", 1),
        ("tailer/feed/rows/span.py", "tests/log/test_span.py", 2),
        ("tailer/urls.py", "tests/test_urls.py", 0),
        ("tailer/urls.py", "tests/log/test_urls.py", 2),
        ("sinks/http.py", "tests/sinks/test_http.py", 0),
        ("sinks/kafka/sink.py", "tests/kafka/test_bounce.py", 1),
        ("tests/log/test_cursor.py", "tests/log/test_cursor.py", 0),
        ("tests/log/test_cursor.py", "tests/log/test_log.py", 2),
        ("docs/log.md", "tests/log/test_log.py", 2),
        ("Makefile", "tests/test_urls.py", 2),
    ],
)
def test_tests_are_ranked_by_what_was_changed(changed: str, test: str, expected: int) -> None:
    assert rank(PurePosixPath(test), [PurePosixPath(changed)]) == expected


def test_a_change_is_what_the_branch_has_and_what_is_not_committed(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        user = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", *user, *arguments], cwd=tmp_path, check=True, capture_output=True)

    assert changed_paths(tmp_path) == ()
    git("init", "-b", "main")
    for name in ("old", "edited"):
        (tmp_path / name).touch()
    git("add", ".")
    git("commit", "-m", "begin")
    assert changed_paths(tmp_path) == ()
    git("checkout", "-b", "work")
    (tmp_path / "committed").touch()
    git("add", ".")
    git("commit", "-m", "work")
    (tmp_path / "edited").write_text("now")
    (tmp_path / "new").touch()
    assert sorted(map(str, changed_paths(tmp_path))) == ["committed", "edited", "new"]


def test_a_failure_is_said_before_the_next_test_ends(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(FAILING)
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.failures", "-p", "no:randomly",
               "-s", "-c", "/dev/null", f"--rootdir={tmp_path}", str(tmp_path)]  # fmt: skip
    plain = {k: v for k, v in os.environ.items() if k != "PYTEST_ADDOPTS"}
    with subprocess.Popen(
        command, env=plain, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as run:
        assert run.stdout is not None
        line = next(line for line in run.stdout if line.startswith("FAILED"))
        assert run.poll() is None  # it waits for the line
        run.communicate("go on\n")
    assert line == "FAILED test_it.py::test_first (call): ValueError: the reason\n"
