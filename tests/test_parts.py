"""The two parts of a run: what both print is shown, and either can fail it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.source import ROOT

PROGRAM = """
import sys
from tests import __main__ as run
programs = dict(zip(run.PARTS.values(), sys.argv[1:]))
run._pytest = lambda expression: [sys.executable, "-uc", programs[expression]]
run.main()
"""
WAITS = """
import pathlib, time
try:
    pathlib.Path({here!r}).touch()
    time.sleep(50)
except KeyboardInterrupt:
    print("tidies up")
    raise SystemExit(2)
"""


def started(first: str, second: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, first, second]
    return subprocess.Popen(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


@pytest.mark.parametrize(
    ("first", "second", "status"), [(0, 0, 0), (1, 0, 1), (0, 2, 2), (5, 1, 5)]
)
def test_both_parts_are_shown_whole_one_behind_the_other(
    first: int, second: int, status: int
) -> None:
    slow = f"import sys, time; print('a'); time.sleep(0.3); print('b'); sys.exit({first})"
    quick = f"import sys; print('c', file=sys.stderr); print('d' * 100_000); sys.exit({second})"
    with started(slow, quick) as run:
        lines = run.communicate(timeout=50)[0].splitlines()
    assert lines[:4] == ["a", "b", "c", "d" * 100_000]
    said = {name: f"failed with status {name}" if name else "passed" for name in (first, second)}
    assert lines[4:] == [
        f"tests with Java: {said[first]}",
        f"tests without Java: {said[second]}",
    ]
    assert run.returncode == status


def test_a_part_that_takes_longer_is_waited_for() -> None:
    late = "import time; print('c'); time.sleep(0.5); print('d')"
    with started("print('a')", late) as run:
        assert run.communicate(timeout=50)[0].splitlines()[:3] == ["a", "c", "d"]
    assert run.returncode == 0


def test_a_part_that_is_killed_fails_the_run() -> None:
    with started("print('a')", "import os; os.kill(os.getpid(), 9)") as run:
        assert "tests without Java: failed with status -9" in run.communicate(timeout=50)[0]
    assert run.returncode == 9


def test_both_parts_of_a_run_that_is_ended_tidy_up(tmp_path: Path) -> None:
    there = [tmp_path / "first", tmp_path / "second"]
    first, second = (WAITS.format(here=str(path)) for path in there)
    with started(first, second) as run:
        while not all(path.exists() for path in there):
            assert run.poll() is None
            time.sleep(0.02)
        run.send_signal(signal.SIGTERM)
        lines = run.communicate(timeout=50)[0].splitlines()
    assert lines[:2] == ["tidies up", "tidies up"]
    assert run.returncode == 2
