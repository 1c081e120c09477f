"""A daemon that keeps a copy in a database is killed again and again while a real writer commits,
some of the times with a second daemon on the same target; in the end the copy is the table.

``TAILER_TORTURE_ROUNDS`` is how many times (3, at most 30); ``--randomly-seed`` repeats the
moments.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import duckdb
import psycopg
import pytest

from tailer.changes import Offset
from tests.integration.killing import writing
from tests.integration.test_kill import Writer
from tests.support.programs import run_tailer
from tests.support.sql_targets import SQL_SINKS, SqlTarget, sql_target
from tests.support.waiting import PATIENCE_S, eventually

ROUNDS = min(30, int(os.environ.get("TAILER_TORTURE_ROUNDS", "3")))

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
{sink}
"""


class Daemons:
    """`tailer run`, to be killed and started again; a second one has another state, as on another
    machine."""

    def __init__(self, folder: Path, target: SqlTarget) -> None:
        self.folder = folder
        self.target = target
        self.errors = folder / "stderr.txt"
        for state in ("one", "two"):
            config = CONFIG.format(state=state, sink=target.toml(key=["id"]))
            (folder / f"{state}.toml").write_text(config)

    @contextmanager
    def running(self, config: str = "one") -> Iterator[subprocess.Popen[bytes]]:
        with self.errors.open("ab") as errors:
            command = [sys.executable, "-m", "tailer", "run", str(self.folder / f"{config}.toml")]
            with subprocess.Popen(command, stderr=errors) as process:
                try:
                    yield process
                finally:
                    process.kill()

    def starts(self) -> int:
        """How often a daemon has begun to follow the table."""
        return self.errors.read_text().count("following") if self.errors.exists() else 0

    def offset(self) -> Offset | None:
        """What the target says, if it can be read now."""
        with suppress(duckdb.Error, sqlite3.Error, psycopg.errors.UndefinedTable):
            claims = f"{self.target.prefix}_delta_tailer"
            found = self.target.query(f'SELECT "offset" FROM {claims}')
            if found and found[0][0]:
                return Offset.from_json(json.loads(found[0][0]))
        return None

    def changed(self) -> object:
        """What changes with each write to the target."""
        if "path" not in self.target.options:
            return self.offset()
        file = self.folder / self.target.options["path"]
        found = []
        for path in (file, *(file.with_name(f"{file.name}{end}") for end in (".wal", "-wal"))):
            with suppress(FileNotFoundError):
                at = path.stat()
                found += [at.st_mtime_ns, at.st_size]
        return tuple(found)

    def wait_for_write(self, within_s: float) -> None:
        """Until the target changes: a kill then lands in a write, or before the offset is saved in
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


@pytest.mark.slow
@pytest.mark.timeout(300 + 20 * ROUNDS)
@pytest.mark.parametrize("kind", SQL_SINKS)
def test_the_copy_is_the_table_when_daemons_are_killed(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = random.randrange(2**32)
    moments, seen = random.Random(seed), Counter[str]()
    daemons = Daemons(tmp_path, sql_target(kind, tmp_path, request))
    last = Offset(0)
    with writing(Writer(tmp_path, seed)) as writer:
        for number in range(ROUNDS):
            seen[kill(daemons, writer, moments, number)] += 1
            at = daemons.offset() or last
            assert at.position >= last.position, "the offset never goes back"
            last = at
    writer.finish()
    end = writer.table.version() + 1
    starts = daemons.starts()
    with daemons.running() as process:

        def at_end() -> bool:
            assert process.poll() is None, daemons.errors.read_text()[-2000:]
            at = daemons.offset()
            # It may have been at the end before it started.
            return daemons.starts() > starts and at is not None and at.version >= end

        eventually(at_end, PATIENCE_S, lambda: f"{daemons.offset()} is not {end}", pause_s=0.2)
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    done = run_tailer("verify", str(tmp_path / "one.toml"), "orders")
    with capsys.disabled():
        print(f"\n{kind}, seed {seed}: {dict(seen)}, {end} versions; {done.stdout.strip()}")
    assert done.returncode == 0, done.stdout + done.stderr
