"""The parts of a run: what they print is shown, and each can fail it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.source import ROOT
from tests.support.waiting import eventually

PATIENCE_S = 280.0
PROGRAM = """
import sys
from tests import __main__ as run
run.PARTS = {"tests with Java": "java", "tests without Java": "not java"}
programs = dict(zip(run.PARTS.values(), sys.argv[1:]))
run._pytest = lambda expression, share: [sys.executable, "-uc", programs[expression]]
sys.exit(run.run_parts())
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


def output_of(first: str, second: str) -> tuple[list[str], int]:
    with started(first, second) as run:
        lines = run.communicate(timeout=PATIENCE_S)[0].splitlines()
    return lines, run.returncode


def until(path: Path) -> str:
    return f"while not pathlib.Path({str(path)!r}).exists(): time.sleep(0.01)"


@pytest.mark.parametrize(
    ("first", "second", "status"), [(0, 0, 0), (1, 0, 1), (0, 2, 2), (5, 1, 5)]
)
def test_either_part_can_fail_the_run(first: int, second: int, status: int) -> None:
    parts = [f"print('=== {code} ==='); raise SystemExit({code})" for code in (first, second)]
    lines, code = output_of(*parts)
    said = [f"failed with status {c}: {c}" if c else "passed: 0" for c in (first, second)]
    assert lines[-2:] == [f"tests with Java: {said[0]}", f"tests without Java: {said[1]}"]
    assert code == status


def test_lines_of_both_are_shown_as_they_come_and_their_endings_in_one_piece(
    tmp_path: Path,
) -> None:
    turn = [tmp_path / str(i) for i in range(3)]
    touch = "import pathlib, time\nnext = lambda path: pathlib.Path(path).touch()\n"
    ending = "print('====== FAILURES ======', 'b' * 100_000, '== 1 failed in 2.00s ==', sep='\\n')"
    first = f"""{touch}
print('=========== test session starts ===========', 'a', sep='\\n', flush=True)
next({str(turn[0])!r})
{until(turn[1])}
{ending}
next({str(turn[2])!r})
time.sleep(0.05)
print('the rest')
"""
    second = f"""{touch}
{until(turn[0])}
import sys
print('c', file=sys.stderr)
next({str(turn[1])!r})
{until(turn[2])}
print('d')
"""
    lines, _ = output_of(first, second)
    java, other = "tests with Java: ", "tests without Java: "
    begun = [f"{java}=========== test session starts ===========", f"{java}a"]
    assert [line for line in lines if line in begun] == begun
    assert {f"{other}c", f"{other}d"} <= set(lines)
    start = lines.index("tests with Java:")
    whole = ["====== FAILURES ======", "b" * 100_000, "== 1 failed in 2.00s ==", "the rest"]
    assert lines[start + 1 : start + 5] == whole
    assert lines[-2:] == [f"{java}passed: the rest", f"{other}passed: d"]


def test_what_failed_is_named_at_the_end() -> None:
    said = [
        "====== FAILURES ======",
        "E   assert " + "b" * 1000,
        "FAILED a.py::b",
        "== 1 failed ==",
    ]
    program = f"print('=== begins ===', *{said!r}, sep='\\n'); raise SystemExit(1)"
    lines, _ = output_of(program, "print('a')")
    status = "tests with Java: failed with status 1: 1 failed"
    assert lines[-4:-1] == [said[1][:300], said[2], status]


def test_what_was_skipped_is_named_in_one_line_a_reason() -> None:
    reasons = ["[2] tests/support/components.py:68: Java is missing",
               "[1] a.py:7: gcc is missing"]  # fmt: skip
    ending = ["===== short test summary info =====", *(f"SKIPPED {reason}" for reason in reasons)]
    program = f"print('=== begins ===', 's', {ending[0]!r}, *{ending[1:]!r}, sep='\\n')"
    lines, status = output_of(program, program)
    assert lines[-4:-2] == ["skipped, 4 tests: Java is missing", "skipped, 2 tests: gcc is missing"]
    assert status == 0


def test_a_part_is_seen_while_the_other_one_runs(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    waits = f"import pathlib, time\n{until(seen)}\nprint('b')"
    with started(waits, "print('a', flush=True)") as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "tests without Java: a\n"
        seen.touch()
        assert "tests with Java: b\n" in run.communicate(timeout=PATIENCE_S)[0]


def test_a_part_that_is_killed_fails_the_run() -> None:
    lines, status = output_of("print('a')", "import os; os.kill(os.getpid(), 9)")
    assert lines[-1] == "tests without Java: failed with status -9: "
    assert status == 9


def test_output_that_another_process_holds_open_is_not_waited_for(tmp_path: Path) -> None:
    ends = tmp_path / "ends"
    left = f"import pathlib, time\n{until(ends)}"
    command = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {left!r}])"
    try:
        lines, status = output_of(f"{command}; print('a')", "print('b')")
    finally:
        ends.touch()
    assert lines[-2:] == ["tests with Java: passed: a", "tests without Java: passed: b"]
    assert status == 0


def test_both_parts_of_a_run_that_is_ended_tidy_up(tmp_path: Path) -> None:
    there = [tmp_path / "first", tmp_path / "second"]
    first, second = (WAITS.format(here=str(path)) for path in there)
    with started(first, second) as run:

        def both() -> bool:
            assert run.poll() is None
            return all(path.exists() for path in there)

        eventually(both, why="both parts run")
        run.send_signal(signal.SIGTERM)
        lines = run.communicate(timeout=PATIENCE_S)[0].splitlines()
    said = {"tests with Java: tidies up", "tests without Java: tidies up"}
    assert said <= set(lines)
    assert run.returncode == 2
