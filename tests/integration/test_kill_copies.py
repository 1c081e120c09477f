"""A daemon is killed again and again while a real writer commits, some of the times with a second
daemon on the same target: files then have each event once, and a Delta copy is the table.

``TAILER_TORTURE_ROUNDS`` is how many times (2); ``--randomly-seed`` repeats the moments.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from sinks.files.manifest import FOLDER
from tailer.changes import COMING_KINDS, Offset
from tests.integration.killing import writing
from tests.integration.test_kill import Writer
from tests.support.published import manifest, tables
from tests.support.waiting import PATIENCE_S, eventually

ROUNDS = int(os.environ.get("TAILER_TORTURE_ROUNDS", "2"))
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
path = "out"
{sink}
"""


@dataclass(frozen=True)
class Target:
    """A sink's target: its offset, its rows, and the folder that each write changes."""

    sink: str
    log: str
    offset: Callable[[Path], Offset | None]
    rows: Callable[[Path], list[dict[str, Any]]]


def files_offset(folder: Path) -> Offset | None:
    found = [entry["offset"] for entry in manifest(folder)]
    return Offset.from_json(found[-1]) if found and found[-1] else None


def files_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows that the events leave, each event once."""
    found = pa.concat_tables(tables(folder)).to_pylist()
    ids = [row["_event_id"] for row in found]
    assert len(set(ids)) == len(ids), "an event is there twice"
    versions = [row["_commit_version"] for row in found]
    assert versions == sorted(versions)
    # Within a version, what leaves comes first: delta-rs writes postimages before preimages.
    found.sort(key=lambda row: (row["_commit_version"], row["_change_type"] in COMING_KINDS))
    rows = {}
    for row in found:
        data = {name: value for name, value in row.items() if not name.startswith("_")}
        if row["_change_type"] in COMING_KINDS:
            assert row["id"] not in rows, row
            rows[row["id"]] = data
        else:
            assert rows.pop(row["id"]) == data, row
    return sorted(rows.values(), key=lambda row: row["id"])


def delta_offset(folder: Path) -> Offset | None:
    """The offset of the last commit."""
    if not (folder / "_delta_log").exists():
        return None
    info = json.loads(deltalake.DeltaTable(folder).history(1)[0]["delta-tailer"])
    return Offset.from_json(info["offset"])


def delta_rows(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = deltalake.DeltaTable(folder).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: row["id"])


TARGETS = {
    "files": Target('type = "files"', FOLDER, files_offset, files_rows),
    "delta": Target('type = "delta"\nkey = ["id"]', "_delta_log", delta_offset, delta_rows),
}


class Daemons:
    """`tailer run`, to be killed and started again; the second has another state, as on another
    machine."""

    def __init__(self, folder: Path, target: Target) -> None:
        self.folder = folder
        self.target = target
        self.errors = folder / "stderr.txt"
        for state in ("one", "two"):
            text = CONFIG.format(state=state, sink=target.sink)
            (folder / f"{state}.toml").write_text(text)

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
        return self.target.offset(self.folder / "out")

    def wait_for_write(self, within_s: float) -> None:
        """Until a file of the log is made: a kill then lands in a write, or behind it and before
        the offset is saved in the daemon's state too."""
        log, end = self.folder / "out" / self.target.log, time.monotonic() + within_s

        def changed() -> int:
            return log.stat().st_mtime_ns if log.exists() else 0

        before = changed()
        while changed() == before and time.monotonic() < end:
            time.sleep(0.0002)


def kill(daemons: Daemons, moments: random.Random, number: int) -> str:
    """One round; what it was."""
    what = ("two daemons", "behind a write", "between two writes")[number % 3]
    with daemons.running() as process:
        daemons.wait_for_write(20.0)
        for _ in range(moments.randrange(6)):
            daemons.wait_for_write(0.5)
        if what == "two daemons":
            with daemons.running("two") as other:
                for _ in range(moments.randrange(2, 8)):
                    daemons.wait_for_write(0.5)
                first, second = moments.sample((process, other), 2)
                first.kill()
                daemons.wait_for_write(0.5)
                second.kill()
        else:
            assert process.poll() is None, daemons.errors.read_text()[-2000:]
        if what == "between two writes":
            time.sleep(moments.uniform(0.0, 0.1))
        process.kill()
    return what


@pytest.mark.slow
@pytest.mark.timeout(300 + 20 * ROUNDS)
@pytest.mark.parametrize("name", TARGETS)
def test_the_target_is_exact_when_daemons_are_killed(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = random.randrange(2**32)
    moments, seen = random.Random(seed), Counter[str]()
    target = TARGETS[name]
    daemons = Daemons(tmp_path, target)
    last = Offset(0)
    with writing(Writer(tmp_path, seed)) as writer:
        for number in range(ROUNDS):
            seen[kill(daemons, moments, number)] += 1
            assert writer.error is None, writer.error
            at = daemons.offset() or last
            assert at.position >= last.position, "the offset never goes back"
            writer.read_version, last = at.version, at
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
    found = target.rows(tmp_path / "out")
    with capsys.disabled():
        print(f"\n{name}, seed {seed}: {dict(seen)}, {end} versions, {len(found)} rows")
    expected: list[dict[str, Any]] = writer.table.to_pyarrow_table().to_pylist()
    assert found == sorted(expected, key=lambda row: row["id"])
