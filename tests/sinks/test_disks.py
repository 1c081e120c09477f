"""Sinks in local files whose disk is full, or whose folder can't be written: one sentence, and the
target goes on where it was."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import deltalake
import duckdb
import pytest

from tailer.errors import TailerError
from tailer.sink import Sink, make_sink
from tests.support.extent import rest_slow
from tests.support.sinks import named, write
from tests.support.source import ROOT

#: A file may not grow beyond this.
LIMIT = 400_000
TARGETS: dict[str, dict[str, Any]] = {
    "delta": {"path": "copy", "key": ["id"]},
    "duckdb": {"path": "copy.duckdb", "key": ["id"]},
    "sqlite": {"path": "copy.sqlite", "key": ["id"]},
}


def new(kind: str, folder: Path) -> Sink:
    return make_sink(kind, TARGETS[kind], folder)


def ids(kind: str, folder: Path) -> list[int]:
    """What is in the copy."""
    if kind == "delta":
        return sorted(deltalake.DeltaTable(folder / "copy").to_pyarrow_table()["id"].to_pylist())
    query = "SELECT id FROM orders ORDER BY id"
    if kind == "duckdb":
        with duckdb.connect(folder / "copy.duckdb") as file:
            return [row[0] for row in file.execute(query).fetchall()]
    with closing(sqlite3.connect(folder / "copy.sqlite")) as lite:
        return [row[0] for row in lite.execute(query).fetchall()]


@pytest.mark.anyio
@pytest.mark.parametrize("kind", TARGETS)
async def test_a_folder_that_can_t_be_written_is_refused(kind: str) -> None:
    why = r".*(No such file|unable to open database file)"
    with pytest.raises(TailerError, match=rf"/proc/{TARGETS[kind]['path']}{why}"):
        await write(new(kind, Path("/proc")), named())


@pytest.mark.parametrize("kind", rest_slow(TARGETS, "delta"))
def test_a_full_disk_is_waited_for(kind: str, tmp_path: Path) -> None:
    anyio.run(write, new(kind, tmp_path), named())
    limited = (
        "import resource, signal, sys, anyio; from tests.sinks.test_disks import *\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({LIMIT}, {LIMIT}))\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "batch = named(2, 300_000, version=2)\n"
        "anyio.run(write, new(sys.argv[1], Path(sys.argv[2])), batch)"
    )
    command = [sys.executable, "-c", limited, kind, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    said = done.stderr.splitlines()[-1]
    assert said.startswith(f"tailer.errors.TransientError: {tmp_path}/{TARGETS[kind]['path']}")
    assert "File too large" in said or "disk I/O error" in said
    anyio.run(write, new(kind, tmp_path), named(2, 3, version=2))
    assert ids(kind, tmp_path) == [0, 1, 2, 3, 4]
