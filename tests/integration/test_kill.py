"""Two daemons of one feed: whichever owns it is killed again and again, at any moment, while a real
writer commits, and the other goes on. In the end their output is Spark's change feed: nothing lost,
and what came twice is the same to the byte.

``TAILER_TORTURE_ROUNDS`` is how many times (10); ``--randomly-seed`` repeats the moments.
"""

from __future__ import annotations

import json
import math
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from tailer.changes import Offset
from tests.integration.killing import PacedWriter, in_order, without_repeats, writing
from tests.support.forking import Process
from tests.support.outcomes import record_outcome
from tests.support.programs import running_daemon
from tests.support.waiting import PATIENCE_S, eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS = int(os.environ.get("TAILER_TORTURE_ROUNDS", "10"))
# A version of some 400 events has some 20 batches, so that most kills land between two of them.
BATCH_ROWS = 20
VERSION_ROWS = 200
TABLE_ROWS = 2_000
AWKWARD = ("größe", 'a "b"', "x\\y", "new\nline")

CONFIG = f"""
[daemon]
http = ""
[feeds.orders]
table = "orders"
from = "earliest"
batch_rows_max = {BATCH_ROWS}
[feeds.orders.sink]
type = "jsonl"
path = "orders.jsonl"
"""


class Writer(PacedWriter):
    """Appends, updates, deletes and merges, each a commit, never far ahead of the daemon."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.path = str(folder / "orders")
        schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("amount", pa.float64())])
        configuration = {"delta.enableChangeDataFeed": "true"}
        table = deltalake.DeltaTable.create(self.path, schema, configuration=configuration)
        super().__init__(seed, table)

    def commit(self) -> None:
        part = self.random.randrange(10)
        work = self.random.choice([self.append, self.update, self.delete, self.merge])
        if self.next_id - TABLE_ROWS > 0 and work in (self.append, self.merge):
            self.table.delete(f"id < {self.next_id - TABLE_ROWS}")
        work(part)

    def rows(self, first: int, count: int) -> pa.Table:
        ids = list(range(first, first + count))
        names = [f"{self.random.choice(AWKWARD)} {i}" for i in ids]
        amounts = [self.random.uniform(-1, 1) for _ in ids]
        return pa.table({"id": ids, "name": names, "amount": amounts})

    def append(self, _: int) -> None:
        deltalake.write_deltalake(self.table, self.rows(self.next_id, VERSION_ROWS), mode="append")
        self.next_id += VERSION_ROWS

    def update(self, part: int) -> None:
        self.table.update(predicate=f"id % 10 = {part}", updates={"amount": "amount + 1.0"})

    def delete(self, part: int) -> None:
        self.table.delete(f"id % 20 = {part}")

    def merge(self, _: int) -> None:
        first = max(0, self.next_id - VERSION_ROWS // 2)
        merger = self.table.merge(
            self.rows(first, VERSION_ROWS), "t.id = s.id", source_alias="s", target_alias="t"
        )
        merger.when_matched_update_all().when_not_matched_insert_all().execute()
        self.next_id = first + VERSION_ROWS


class Daemon:
    """`tailer run`, to be killed and started again, and its standby."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.output = folder / "orders.jsonl"
        self.config = folder / "tailer.toml"
        self.config.write_text(CONFIG)
        self.errors = folder / "stderr.txt"

    def offset(self) -> Offset:
        """What the offset file says; it must be whole whenever it is looked at."""
        try:
            text = (self.folder / "state" / "orders.offset.json").read_text()
        except FileNotFoundError:
            return Offset(0)
        return Offset.from_json(json.loads(text)["offset"])

    def running(self) -> AbstractContextManager[Process]:
        return running_daemon(self.config, self.errors)

    def starts(self) -> int:
        """How often the daemon has begun to follow the table."""
        return self.errors.read_text().count("following") if self.errors.exists() else 0

    def check_alive(self, process: Process) -> None:
        assert process.poll() is None, self.errors.read_text()[-2000:]

    def wait_for_saves(self, process: Process, saves: int, writer: Writer, starts: int) -> None:
        """Until the offset has moved so many times, or rests because there is no more to read:
        after the daemon has started, as it had ``starts`` times before."""
        last, moved = self.offset(), math.inf
        while saves > 0 and time.monotonic() - moved < 5.0:
            self.check_alive(process)
            if moved == math.inf and self.starts() > starts:
                moved = time.monotonic()
            now = self.offset()
            writer.read_version = now.version  # also what was saved just before the last kill
            if now != last:
                last, moved, saves = now, time.monotonic(), saves - 1
            time.sleep(0.0005)

    def wait_for_output(self) -> None:
        """Until a batch is written, and before its offset is saved: the batch comes again."""
        size, deadline = self.written(), time.monotonic() + 0.5
        while self.written() == size and time.monotonic() < deadline:
            pass

    def written(self) -> int:
        """How many bytes of events there are."""
        return self.output.stat().st_size if self.output.exists() else 0

    def finish(self, writer: Writer) -> None:
        """Read to the table's end, undisturbed, and end on SIGTERM."""
        end = Offset(writer.table.version() + 1)
        starts = self.starts()
        with self.running() as process:

            def at_end() -> bool:
                self.check_alive(process)
                # It may have been at the end before it started.
                return self.starts() > starts and self.offset().position >= end.position

            eventually(at_end, PATIENCE_S, lambda: f"{self.offset()} is not {end}")
            process.terminate()
            assert process.wait(PATIENCE_S) == 0
        assert self.offset().position == end.position


class Pair:
    """A daemon and its standby. Who runs longest is the owner."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._running: list[tuple[Process, ExitStack]] = []

    def start(self) -> Process:
        """Start what is missing; returns the owner, which a standby waits for."""
        while len(self._running) < 2:
            stack = ExitStack()
            self._running.append((stack.enter_context(self._daemon.running()), stack))
        return self._running[0][0]

    def kill(self, count: int = 1) -> None:
        """Kill the owner, or both in one moment; a standby that is left is the owner."""
        ended, self._running = self._running[:count], self._running[count:]
        for process, _ in ended:
            process.kill()
        for _, stack in ended:
            stack.close()


@contextmanager
def pair_of(daemon: Daemon) -> Iterator[Pair]:
    """Two daemons, which leave nothing running."""
    pair = Pair(daemon)
    try:
        yield pair
    finally:
        pair.kill(2)


def torture(daemon: Daemon, writer: Writer, moments: random.Random) -> dict[str, int]:
    """Kill the owner ROUNDS times, one time in ten with its standby; what was seen."""
    seen, starts = Counter[str](), 0
    with pair_of(daemon) as pair:
        for _ in range(ROUNDS):
            before, owner = daemon.offset(), pair.start()
            if moments.random() < 0.15:
                time.sleep(moments.uniform(0.0, 1.0))  # while it starts, or takes over
                daemon.check_alive(owner)
            else:
                daemon.wait_for_saves(owner, moments.randint(1, 50), writer, starts)
                if moments.random() < 0.4:
                    daemon.wait_for_output()
                else:
                    time.sleep(moments.uniform(0.0, 0.008))
            starts, both = daemon.starts(), moments.random() < 0.1
            pair.kill(1 + both)
            assert writer.error is None, writer.error
            after = daemon.offset()
            assert after.position >= before.position, "the offset never goes back"
            seen["kills"] += 1
            seen["of both"] += both
            seen["kills that resume inside a version"] += after.index > 0
            seen["kills before anything was saved"] += after == before
    return seen


def spark_changes(spark: SparkSession, table: str) -> Counter[tuple[Any, ...]]:
    frame = (
        spark.read.format("delta")
        .option("readChangeFeed", "true")
        .option("startingVersion", 0)
        .load(table)
        .selectExpr(
            "id", "name", "amount", "_change_type", "_commit_version",
            "date_format(_commit_timestamp, \"yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'\")",
        )
    )  # fmt: skip
    return Counter(tuple(row) for row in frame.collect())


def test_a_unique_event_is_told_from_a_changed_one() -> None:
    """The check itself is tried: it must see what it is there to see."""
    assert without_repeats([b'{"_event_id":"a","id":1}'] * 2) == [{"_event_id": "a", "id": 1}]
    with pytest.raises(AssertionError, match="came again and was another"):
        without_repeats([b'{"_event_id":"a","id":1}', b'{"_event_id":"a","id":2}'])


@pytest.mark.slow
@pytest.mark.timeout(300 + 10 * ROUNDS)
def test_nothing_is_lost_when_the_owner_is_killed(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = random.randrange(2**32)
    daemon = Daemon(tmp_path)
    with writing(Writer(tmp_path, seed)) as writer:
        seen = torture(daemon, writer, random.Random(seed))
    writer.finish()
    daemon.finish(writer)

    lines = daemon.output.read_bytes().splitlines()
    events = without_repeats(lines)
    assert in_order(events), "events are in commit order"
    assert len(lines) - len(events) <= seen["kills"] * BATCH_ROWS, (
        "only a batch in hand comes again"
    )
    names = ("id", "name", "amount", "_change_type", "_commit_version", "_commit_timestamp")
    found = Counter(tuple(event[name] for name in names) for event in events)
    assert found == spark_changes(spark, writer.path)
    assert seen["kills that resume inside a version"] >= ROUNDS // 10
    record_outcome(
        capsys, "JSON lines, local, two daemons", seed=seed, **seen,
        versions=writer.table.version() + 1, events=len(events),
        repeated=len(lines) - len(events), lost=0, changed=0,
    )  # fmt: skip
