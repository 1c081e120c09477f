"""The example of docs/sinks: a package outside of this one is built and installed, found by its
entry point, and proven by the public suite."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.source import ROOT

EXAMPLE = ROOT / "docs" / "examples" / "sqlite_events"
LINES_MAX = 50


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The environment of a process that has the package installed, by pip and without a network."""
    folder = tmp_path_factory.mktemp("example")
    source = shutil.copytree(EXAMPLE, folder / "source")  # what a build leaves behind stays there
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    alone = ["--no-index", "--no-build-isolation", "--no-deps"]
    done = subprocess.run(
        [*pip, *alone, "--target", str(folder / "site"), str(source)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # Options for this run of pytest, a seed say, are not for the one within it.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    return inherited | {"PYTHONPATH": str(folder / "site")}


def run(environment: Mapping[str, str], *arguments: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *map(str, arguments)],
        env=environment, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_has_at_most_fifty_lines() -> None:
    text = (EXAMPLE / "sqlite_events.py").read_text()
    assert len([line for line in text.splitlines() if line]) <= LINES_MAX


def test_it_is_listed_with_its_options(environment: Mapping[str, str]) -> None:
    found = json.loads(run(environment, "tailer", "sinks", "sqlite_events", "--json"))
    assert (found["package"], found["about"]) == (
        "tailer-sqlite-events 1.0",
        "Each event once, as a row of an SQLite table.",
    )
    assert [(o["name"], o["required"]) for o in found["options"]] == [("path", True)]


def test_it_holds_the_public_suite(environment: Mapping[str, str]) -> None:
    suite = EXAMPLE / "test_sqlite_events.py"
    said = run(environment, "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", suite)
    assert " passed" in said
    assert "skipped" not in said


def test_an_older_process_is_fenced(environment: Mapping[str, str], tmp_path: Path) -> None:
    script = """
import anyio, sys
from pathlib import Path
from tailer.errors import SinkRejected
from tailer.sink import make_sink
from tailer.testing.batches import change_batch
import pyarrow as pa

async def main():
    old, new = (make_sink("sqlite_events", {"path": "events.db"}, Path(sys.argv[1])) for _ in "ab")
    batches = [
        change_batch(pa.schema([("id", pa.int64())]), [{"id": i}], version=i, last=True)
        for i in (1, 2)
    ]
    await old.open("orders")
    await old.write(batches[0])
    assert await new.open("orders") == batches[0].next_offset
    try:
        await old.write(batches[1])
    except SinkRejected as e:
        print(e)
    await new.write(batches[1])
    await new.aclose()
    await old.aclose()

anyio.run(main)
"""
    (tmp_path / "two_daemons.py").write_text(script)
    env = dict(environment) | {"PYTHONPATH": f"{environment['PYTHONPATH']}:{tmp_path}"}
    said = run(env, "two_daemons", tmp_path)
    assert said.strip().endswith("events.db: a newer process writes this feed")
    with closing(sqlite3.connect(tmp_path / "events.db")) as db:
        assert db.execute("SELECT kind, version FROM events").fetchall() == [
            ("insert", 1),
            ("insert", 2),
        ]
