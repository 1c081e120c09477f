"""A feed takes over from a stream of Spark's own source that was killed while it read: what Spark
had committed and what the feed sends are together each row once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from tailer.testing.table import TableBuilder
from tests.spark.test_pipeline import configured, lines
from tests.spark.test_take_over import SCHEMA, files
from tests.support.components import java_major, require
from tests.support.programs import run_tailer
from tests.support.source import ROOT
from tests.support.waiting import eventually

START_S = 300.0


class Killed:
    """A stream that is killed once some batches are committed, and started again."""

    def __init__(self, table: Path, folder: Path) -> None:
        program = "tests.spark.take_over_program"
        self._command = [sys.executable, "-m", program, str(table), str(folder)]
        self._batches, self._log = folder / "batches", folder / "stream.log"
        self.checkpoint = folder / "checkpoint"

    @property
    def committed(self) -> set[int]:
        commits = (self.checkpoint / "commits").glob("[0-9]*")
        return {int(file.name) for file in commits if file.name.isdigit()}

    @property
    def sent(self) -> list[int]:
        """The ids of the batches that are committed."""
        found = (self._batches / f"{number}.json" for number in self.committed)
        return [n for file in found for n in json.loads(file.read_text())]

    def run(self, batches: int) -> None:
        """Run it until so many are committed, and kill Python and Java where they are."""
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                self._command, stdout=log, stderr=log, cwd=ROOT, start_new_session=True
            )
        try:
            eventually(
                lambda: len(self.committed) >= batches,
                START_S,
                why=lambda: self._log.read_text()[-2000:],
            )
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.slow
@pytest.mark.needs("delta")
@pytest.mark.timeout(900)
def test_a_stream_that_was_killed_loses_and_repeats_nothing(tmp_path: Path) -> None:
    require("Java 17 or newer", java_major() >= 17)
    table = TableBuilder(tmp_path / "table", SCHEMA, cdf=True)
    table.create()
    count = 0

    def commit(rows: int) -> None:
        nonlocal count
        table.commit(*files(table, *range(count + 1, count + rows + 1), time=5000 - 10 * count))
        count += rows

    for rows in (4, 1, 5, 3, 7):
        commit(rows)
    stream = Killed(table.folder, tmp_path)
    chance = random.Random(1)
    for number, batches in enumerate((2, 6, 13, 22, 27)):
        # The first ones are of the initial snapshot, the later ones of the versions after it.
        stream.run(batches)
        assert len(stream.sent) == len(set(stream.sent)), "Spark's own"
        config = configured(
            tmp_path / f"feed{number}", {"name": "f", "table": table.folder, "more": ""}
        )
        done = run_tailer("offsets", "import", config, "f", "--checkpoint", stream.checkpoint)
        assert done.returncode == 0, done.stderr
        done = run_tailer("run", config, "--once")
        assert done.returncode == 0, done.stderr
        found = [event["id"] for event in map(orjson.loads, lines(config, "f")) if "id" in event]
        assert sorted([*stream.sent, *found]) == list(range(1, count + 1))
        for _ in range(2):
            commit(chance.randint(2, 5))
