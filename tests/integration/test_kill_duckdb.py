"""A daemon that keeps a copy in a DuckDB file is killed again and again while a real writer
commits, some of the times with a second daemon on the same file; in the end the copy is the table.

``TAILER_TORTURE_ROUNDS`` is how many times (3, a kind each); ``--randomly-seed`` repeats
the moments.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tailer.changes import Offset
from tests.integration.killing import writing
from tests.integration.test_kill import Writer
from tests.support.duckdb_files import rows_of
from tests.support.waiting import PATIENCE_S, eventually

ROUNDS = int(os.environ.get("TAILER_TORTURE_ROUNDS", "3"))

CONFIG = """
[daemon]
http = ""
state = "{state}"
[feeds.orders]
table = "orders"
from = "snapshot"
batch_rows_max = 100
retry_max_s = 0.5
[feeds.orders.sink]
type = "duckdb"
path = "lake.duckdb"
key = ["id"]
"""


class Daemons:
    """`tailer run`, to be killed and started again; a second one has another state, as on another
    machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "lake.duckdb"
        self.errors = folder / "stderr.txt"
        for state in ("one", "two"):
            (folder / f"{state}.toml").write_text(CONFIG.format(state=state))

    @contextmanager
    def running(self, config: str = "one") -> Iterator[subprocess.Popen[bytes]]:
        with self.errors.open("ab") as errors:
            command = [sys.executable, "-m", "tailer", "run", str(self.folder / f"{config}.toml")]
            with subprocess.Popen(command, stderr=errors) as process:
                try:
                    yield process
                finally:
                    process.kill()

    def offset(self) -> Offset | None:
        """What the file says, if no process has it open."""
        with suppress(duckdb.Error):
            found = rows_of(self.file, 'SELECT "offset" AS o FROM _delta_tailer')
            if found and found[0]["o"]:
                return Offset.from_json(json.loads(found[0]["o"]))
        return None

    def changed(self) -> tuple[int, ...]:
        """What changes with each write to the file."""
        found = []
        for path in (self.file, self.file.with_name("lake.duckdb.wal")):
            with suppress(FileNotFoundError):
                at = path.stat()
                found += [at.st_mtime_ns, at.st_size]
        return tuple(found)

    def wait_for_write(self, within_s: float) -> None:
        """Until the file changes: a kill then lands in a write, or before the offset is saved in
        the daemon's state too."""
        before, end = self.changed(), time.monotonic() + within_s
        while self.changed() == before and time.monotonic() < end:
            time.sleep(0.0002)


def kill(daemons: Daemons, writer: Writer, moments: random.Random, number: int) -> str:
    """One round; what it was."""
    what = ("between two writes", "behind a write", "two daemons")[number % 3]
    with daemons.running() as process:
        daemons.wait_for_write(20.0)
        for _ in range(moments.randrange(8)):
            daemons.wait_for_write(2.0)
        if what == "two daemons":
            with daemons.running("two") as other:
                for _ in range(moments.randrange(4, 12)):
                    daemons.wait_for_write(2.0)
                first, second = moments.sample((process, other), 2)
                first.kill()
                daemons.wait_for_write(2.0)
                second.kill()
        else:
            assert process.poll() is None, daemons.errors.read_text()[-2000:]
        if what == "between two writes":
            time.sleep(moments.uniform(0.0, 0.1))
        process.kill()
    assert writer.error is None, writer.error
    at = daemons.offset()
    if at is not None:
        writer.read_version = at.version
    return what


def snapshot(writer: Writer) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = writer.table.to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: row["id"])


@pytest.mark.slow
@pytest.mark.timeout(300 + 20 * ROUNDS)
def test_the_copy_is_the_table_when_daemons_are_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = random.randrange(2**32)
    moments, seen = random.Random(seed), Counter[str]()
    daemons = Daemons(tmp_path)
    last = Offset(0)
    with writing(Writer(tmp_path, seed)) as writer:
        for number in range(ROUNDS):
            seen[kill(daemons, writer, moments, number)] += 1
            at = daemons.offset() or last
            assert at.position >= last.position, "the offset never goes back"
            last = at
    writer.finish()
    end = writer.table.version() + 1
    with daemons.running() as process:

        def at_end() -> bool:
            assert process.poll() is None, daemons.errors.read_text()[-2000:]
            at = daemons.offset()
            return at is not None and at.version >= end

        eventually(at_end, PATIENCE_S, lambda: f"{daemons.offset()} is not {end}", pause_s=0.2)
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    found = rows_of(daemons.file, "FROM orders ORDER BY id")
    with capsys.disabled():
        print(f"\nseed {seed}: {dict(seen)}, {end} versions, {len(found)} rows")
    assert found == snapshot(writer)
