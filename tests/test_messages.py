"""Names of others in messages: they end no line, steer no terminal, and do not fill a screen."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from tailer.errors import ConfigError, SinkRejected, TableError, TransientError, printable
from tailer.process.logs import set_up_logs
from tailer.testing.table import TableBuilder
from tests.support.programs import run_tailer

#: Ends a line, clears a screen, sets a title (by a C1 control), turns the writing round, hides.
EVIL = (
    "a\n2026-01-01 00:00:00 ERROR forged\r\x1b[2J\x1b]0;title\x07\x9b31m\x85"
    "\u202egpj.exe\u2066\u2028x\u2029\u200b\x7f\ud800\U000e0041"
)


@pytest.mark.parametrize("kind", [TransientError, SinkRejected, ConfigError, TableError])
def test_an_errors_text_is_fit_for_a_terminal(kind: type[Exception]) -> None:
    assert str(kind(EVIL)).isprintable()
    error = TableError(EVIL, table=EVIL, version=1, path=EVIL, hint=EVIL)
    assert str(error).isprintable()
    assert str(error).count("forged") == 4
    assert error.path == EVIL, "the fact stays as it is"


def test_good_names_stay_as_they_are_and_long_ones_lose_their_middle() -> None:
    name = "Größe, 数据, данные, שלום 😀"
    assert printable(name) == name
    long = printable("a" * 50_000 + "the remedy")
    assert len(long) < 4100
    assert long.endswith("the remedy")
    assert "characters ...]" in long


@pytest.mark.parametrize("kind", ["console", "json"])
def test_a_log_has_one_line_for_each_message(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    logger = set_up_logs(kind, "info")
    try:
        logger.info("%s is gone", EVIL, extra={"feed": EVIL})
        try:
            raise RuntimeError(EVIL)
        except RuntimeError:
            logger.exception("a mistake")
    finally:
        logging.getLogger("tailer").handlers.clear()
        logging.getLogger("tailer").propagate = True
    lines = capsys.readouterr().err.split("\n")[:-1]
    assert all(line.isprintable() for line in lines)
    if kind == "json":
        first, second = map(json.loads, lines)
        assert (first["feed"], first["message"]) == (EVIL, f"{EVIL} is gone")
        assert second["traceback"].endswith(EVIL)
    else:
        stamped = [line for line in lines if line.startswith("20")]
        assert len(stamped) == 2
        assert all(line.startswith("  ") for line in lines if line not in stamped)


def test_history_shows_what_a_writer_calls_itself_and_obeys_it_not(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", pa.schema([("id", pa.int64())]))
    table.create()
    table.commit({"commitInfo": {"operation": EVIL.replace("\ud800", ""), "timestamp": 1}})
    done = run_tailer("history", table.folder)
    assert done.returncode == 0
    assert all(line.isprintable() for line in done.stdout.split("\n"))
    assert done.stdout.count("\n") == 2


def test_the_folders_of_killed_processes_are_swept_at_the_start(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    left = (
        "import os; from tailer.files.spill import SpillFolder\n"
        "made = SpillFolder('tailer-diff-'); (made.folder / 'file').write_bytes(b'x')\n"
        "os.kill(os.getpid(), 9)"
    )
    environment = {"TMPDIR": str(temporary), "PYTHONPATH": str(Path(__file__).parents[1])}
    subprocess.run([sys.executable, "-c", left], env=environment, check=False)
    assert len(list(temporary.iterdir())) == 1
    table = TableBuilder(tmp_path / "t", pa.schema([("id", pa.int64())]))
    table.create()
    subprocess.run(
        [sys.executable, "-m", "tailer", "read", table.folder, "--from", "0",
         "--output", str(tmp_path / "out.jsonl")],
        env=environment, check=True, capture_output=True,
    )  # fmt: skip
    assert list(temporary.iterdir()) == []
