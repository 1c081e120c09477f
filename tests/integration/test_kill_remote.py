"""Two daemons of a feed of a table on S3, Azure or Google, its state there too: whichever owns it
is killed again and again, or paused past its lease, while a real writer commits. Nothing is lost,
and no owner but one gets anywhere.

``TAILER_TORTURE_ROUNDS`` is how many times it is killed (2, and 500 at most).
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from tests.clouds.servers import SERVERS, CloudServer, Container
from tests.integration.killing import PacedWriter, in_order, without_repeats, writing
from tests.s3.fixture import S3Server
from tests.support.feed_program import BATCH_ROWS
from tests.support.outcomes import record_outcome
from tests.support.source import ROOT
from tests.support.waiting import eventually

ROUNDS = min(500, int(os.environ.get("TAILER_TORTURE_ROUNDS", "2")))
VERSION_ROWS = 100
LEASE_S = 3.0
#: Of daemons that are killed: a standby looks three times within it whether its owner is dead.
KILLED_LEASE_S = 6.0
PATIENCE_S = 200.0
COLUMNS = ("id", "amount", "_change_type", "_commit_version")


class Writer(PacedWriter):
    """Appends, updates and deletes through delta-rs, never far ahead of the feed."""

    def __init__(self, bucket: Container, seed: int) -> None:
        self.address, self.options = bucket.address("lake/orders"), bucket.deltalake
        table = deltalake.DeltaTable.create(
            self.address,
            pa.schema([("id", pa.int64()), ("amount", pa.float64())]),
            configuration={"delta.enableChangeDataFeed": "true"},
            storage_options=self.options,
        )
        super().__init__(seed, table)

    def commit(self) -> None:
        kind, part = self.random.randrange(4), self.random.randrange(10)
        if kind == 0:
            self.table.update(predicate=f"id % 10 = {part}", updates={"amount": "amount + 1.0"})
        elif kind == 1:
            self.table.delete(f"id % 20 = {part} or id < {self.next_id - 1000}")
        else:
            ids = list(range(self.next_id, self.next_id + VERSION_ROWS))
            rows = pa.table({"id": ids, "amount": [self.random.uniform(-1, 1) for _ in ids]})
            deltalake.write_deltalake(
                self.address, rows, mode="append", storage_options=self.options
            )
            self.next_id += VERSION_ROWS

    def truth(self) -> Counter[tuple[Any, ...]]:
        """The table's changes as delta-rs reads them."""
        changes = pa.table(self.table.load_cdf(starting_version=0)).select(list(COLUMNS))
        return Counter(tuple(row.values()) for row in changes.to_pylist())


class Daemons:
    """Feed programs of one feed, and its state as others see it."""

    def __init__(self, bucket: Container, folder: Path) -> None:
        self.bucket, self.folder = bucket, folder

    def document(self) -> dict[str, Any]:
        """The state; it must be whole whenever it is looked at."""
        try:
            found: dict[str, Any] = json.loads(self.bucket.read("state/orders.offset.json"))
        except FileNotFoundError:
            return {"epoch": 0}
        return found

    def place(self) -> tuple[int, int]:
        """Version and index of the saved offset."""
        offset = self.document().get("offset") or {"version": 0, "index": 0}
        return offset["version"], offset["index"]

    def output(self, name: str) -> Path:
        return self.folder / f"{name}.jsonl"

    def owner(self) -> int | None:
        """The process that has the lease, or has had it last."""
        number: int | None = self.document().get("owner", {}).get("pid")
        return number

    @contextmanager
    def running(self, name: str, lease_s: float = LEASE_S) -> Iterator[subprocess.Popen[str]]:
        arguments = [
            self.bucket.address("lake/orders"),
            self.bucket.address("state"),
            str(self.output(name)),
            json.dumps(self.bucket.options),
            str(lease_s),
        ]
        with subprocess.Popen(
            [sys.executable, "-m", "tests.support.feed_program", *arguments],
            cwd=ROOT, stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            try:
                yield process
            finally:
                process.kill()

    def wait_for(self, process: subprocess.Popen[str], what: Any, writer: Writer) -> None:
        def probe() -> Any:
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
            assert writer.error is None, writer.error
            writer.read_version = self.place()[0]
            return what()

        def why() -> str:
            return f"{self.document()}, {writer.table.version()}"

        eventually(probe, PATIENCE_S, why, pause_s=0.005)

    def finish(self, name: str, writer: Writer) -> None:
        """Read to the table's end and end on SIGTERM."""
        writer.finish()
        end, epoch = (writer.table.version() + 1, 0), self.document()["epoch"]
        with self.running(name) as process:
            # It may have been at the end already, and must have started to hear the signal.
            self.wait_for(process, lambda: self.document()["epoch"] > epoch, writer)
            self.wait_for(process, lambda: self.place() >= end, writer)
            process.terminate()
            _, errors = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0, errors
        assert self.place() == end


def check_events(lines: list[bytes], writer: Writer) -> int:
    """Nothing lost, nothing changed, in order; returns how many came again."""
    events = without_repeats(lines)
    assert in_order(events), "events are in commit order"
    assert Counter(tuple(e[name] for name in COLUMNS) for e in events) == writer.truth()
    return len(lines) - len(events)


@pytest.fixture(params=SERVERS)
def place(request: pytest.FixtureRequest) -> Container:
    server: CloudServer | S3Server = request.getfixturevalue(request.param)
    return server.container()


@pytest.fixture
def daemons(place: Container, tmp_path: Path) -> Daemons:
    return Daemons(place, tmp_path)


@pytest.fixture
def writer(place: Container) -> Iterator[Writer]:
    with writing(Writer(place, random.randrange(2**32))) as writer:
        yield writer


class Pair:
    """Two daemons that write to one file. Either may be the owner."""

    def __init__(self, daemons: Daemons) -> None:
        self._daemons = daemons
        self._running: dict[int, tuple[subprocess.Popen[str], ExitStack]] = {}

    def start(self) -> None:
        """Start what is missing."""
        while len(self._running) < 2:
            stack = ExitStack()
            process = stack.enter_context(self._daemons.running("orders", KILLED_LEASE_S))
            self._running[process.pid] = process, stack

    def owner(self) -> subprocess.Popen[str] | None:
        """Which of those that run has the lease."""
        process, _ = self._running.get(self._daemons.owner() or 0, (None, None))
        return process

    def first(self) -> subprocess.Popen[str]:
        """The one that runs longest."""
        return next(process for process, _ in self._running.values())

    def kill(self, *processes: subprocess.Popen[str]) -> None:
        """Kill these in one moment; all, where none are given."""
        ended = [
            self._running.pop(number) for number in [p.pid for p in processes] or [*self._running]
        ]
        for process, _ in ended:
            process.kill()
        for _, stack in ended:
            stack.close()


def kill_owners(daemons: Daemons, writer: Writer, moments: random.Random) -> Counter[str]:
    """Kill the owner ROUNDS times, one time in ten with its standby; what was seen."""
    pair, seen = Pair(daemons), Counter[str]()
    try:
        for _ in range(ROUNDS):
            before = daemons.place()
            pair.start()
            if moments.random() < 0.15:
                time.sleep(moments.uniform(0.0, 1.5))  # while it starts, or takes over
            else:
                daemons.wait_for(pair.first(), pair.owner, writer)
                saves = daemons.document()["sequence"] + moments.randint(1, 40)

                def saved(saves: int = saves) -> bool:
                    return bool(daemons.document()["sequence"] >= saves)

                daemons.wait_for(pair.first(), saved, writer)
                time.sleep(moments.uniform(0.0, 0.02))
            if moments.random() < 0.1:
                pair.kill()
                seen["of both"] += 1
            else:
                pair.kill(pair.owner() or pair.first())
            after = daemons.place()
            assert after >= before, "the offset never goes back"
            seen["kills"] += 1
            seen["kills that resume inside a version"] += after[1] > 0
    finally:
        pair.kill()
    return seen


@pytest.mark.slow
@pytest.mark.timeout(300 + 20 * ROUNDS)
def test_nothing_is_lost_when_the_owner_is_killed(
    daemons: Daemons, writer: Writer, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = kill_owners(daemons, writer, random.Random(writer.random.random()))
    daemons.finish("orders", writer)
    lines = daemons.output("orders").read_bytes().splitlines()
    again = check_events(lines, writer)
    assert again <= ROUNDS * BATCH_ROWS, "only a batch in hand comes again"
    record_outcome(
        capsys, f"JSON lines, {writer.address.partition(':')[0]}, two daemons", seed=writer.seed,
        **seen, repeated=again, versions=writer.table.version() + 1, events=len(lines) - again,
        lost=0, changed=0,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_daemon_paused_past_its_lease_writes_no_more(daemons: Daemons, writer: Writer) -> None:
    first, second = daemons.output("first"), daemons.output("second")
    with daemons.running("first") as owner:
        daemons.wait_for(owner, lambda: daemons.place() >= (3, 0), writer)
        with daemons.running("second") as standby:
            daemons.wait_for(standby, lambda: daemons.place() >= (6, 0), writer)
            assert not second.exists() or second.stat().st_size == 0, "it waits"
            owner.send_signal(signal.SIGSTOP)
            daemons.wait_for(standby, lambda: daemons.document()["epoch"] == 2, writer)
            stopped_at = first.stat().st_size
            taken_at = daemons.place()
            daemons.wait_for(standby, lambda: daemons.place() > (taken_at[0] + 2, 0), writer)
            owner.send_signal(signal.SIGCONT)
            _, errors = owner.communicate(timeout=PATIENCE_S)
            assert owner.returncode == 1
            assert "has taken feed 'orders' over, with epoch 2" in errors
            daemons.wait_for(standby, lambda: daemons.place() > (taken_at[0] + 4, 0), writer)
            standby.terminate()
            assert standby.wait(PATIENCE_S) == 0
    daemons.finish("second", writer)
    unfenced = first.read_bytes()[stopped_at:].splitlines()
    assert len(unfenced) <= BATCH_ROWS, "the batch that was in hand, at most"
    later = second.read_bytes().splitlines()
    assert set(unfenced) <= set(later), "and that to the byte as its new owner writes it"
    check_events([*first.read_bytes().splitlines(), *later], writer)
