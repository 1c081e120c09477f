"""A forked program is as one that Python has started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest

from tests.support.components import require
from tests.support.forking import DEVELOPMENT, Forked, start
from tests.support.source import ROOT

PROGRAM = """
import json, os, signal, sys
files = [f"/proc/self/fd/{n}" for n in os.listdir("/proc/self/fd")]
seen = {
    "arguments": sys.argv, "folder": os.getcwd(), "name": __name__, "path": sys.path[0],
    "environment": dict(os.environ), "dev": sys.flags.dev_mode,
    "signals": [str(signal.getsignal(n)) for n in (signal.SIGINT, signal.SIGTERM)],
    # A newer libffi keeps its own file open, once it is loaded.
    "files": sum("/libffi." not in os.path.realpath(file) for file in files),
    "session": os.getsid(0),
}
json.dump(seen, sys.stdout)
print("at its end", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    require("Linux", sys.platform == "linux")
    # A command that a test has called in this process may have chosen one.
    monkeypatch.delenv("ARROW_DEFAULT_MEMORY_POOL", raising=False)
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "victim.py").write_text("import signal; print(flush=True); signal.pause()")
    (tmp_path / "runs.py").write_text(
        "from tailer.offsets.owner import this_process; print(this_process()['run'])"
    )
    return tmp_path


def finished(folder: Path, module: str, *words: str, dev: bool = False) -> tuple[int, str, str]:
    """Exit status and output of a forked program."""
    with TemporaryFile("w+") as out, TemporaryFile("w+") as errors:
        process = start(
            module, *words, dev=dev, folder=folder, stdout=out.fileno(), stderr=errors.fileno()
        )
        assert isinstance(process, Forked)
        status = process.wait(150)
        out.seek(0)
        errors.seek(0)
        return status, out.read(), errors.read()


@pytest.mark.parametrize("mode", ["", "dev"])
def test_a_forked_program_finds_what_a_started_one_does(
    folder: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIVEN_LATER", "yes")
    dev = mode == "dev"
    status, out, errors = finished(folder, "program", "3", "a b", dev=dev)
    assert (status, errors) == (3, "at its end\n")
    begun = subprocess.run(
        [sys.executable, *(["-X", "dev"] if dev else []), "-m", "program", "3", "a b"],
        cwd=folder, env=os.environ | (DEVELOPMENT if dev else {}), capture_output=True, check=False,
    )  # fmt: skip
    assert begun.returncode == 3
    found: Any = json.loads(out)
    assert found == json.loads(begun.stdout)
    assert found["environment"]["GIVEN_LATER"] == "yes"


def test_a_forked_program_can_be_killed(folder: Path) -> None:
    seen, output = os.pipe()
    process = start("victim", folder=folder, stdout=output)
    os.close(output)
    with os.fdopen(seen) as lines:
        assert lines.readline() == "\n"
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.0)
        process.kill()
        assert process.wait(150) == process.returncode == -signal.SIGKILL
        assert lines.read() == "", "nobody else has its output open"
    process.kill()


def test_two_forked_programs_are_two_runs(folder: Path) -> None:
    assert len({finished(folder, "runs")[1] for _ in range(2)}) == 2


def test_what_python_reads_at_its_start_is_a_start(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    with TemporaryFile() as out:
        process = start("runs", folder=folder, stdout=out.fileno())
        assert not isinstance(process, Forked)
        assert process.wait(150) == 0


def test_a_program_that_a_test_calls_in_place_changes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARROW_DEFAULT_MEMORY_POOL", "system")  # as a command's main does
    assert finished(folder, "program", "0")[0] == 0


def test_what_is_loaded_before_a_fork_prints_nothing() -> None:
    """With a buffer, as a user's machine has it, each child would print it once more."""
    code = "from tests.support.forker import load; load()"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", code]
    assert subprocess.check_output(command, cwd=ROOT, env=environment) == b""
