"""Broker and daemon are ended in turn, hard and clean, while a real writer commits; readers of
committed records, one that looks on and one at the end, see each event exactly once.

The shape of Kafka's own test of transactions. ``TAILER_TORTURE_ROUNDS`` / 10 is how often something
is ended (10); ``--randomly-seed`` repeats the moments.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import anyio
import deltalake
import pytest

from tailer.changes import Offset
from tailer.feed import read_changes
from tailer.options import FeedOptions
from tests.feeds import table_log
from tests.integration.test_kill import Writer
from tests.kafka.broker import Broker
from tests.kafka.brokers import Brokers
from tests.kafka.topics import Event, Reader, create_topic, read_topic

ROUNDS = max(4, int(os.environ.get("TAILER_TORTURE_ROUNDS", "100")) // 10)
PATIENCE_S = 90.0
PARTITIONS = 3
TOPIC = "orders"


class Daemon:
    """`tailer run` of one feed, to be ended and started again. ``state`` is a folder of its own."""

    def __init__(
        self, folder: Path, broker: Broker | Brokers, state: str = "state", **options: Any
    ) -> None:
        self.folder = folder
        self.state = folder / state
        self.errors = folder / f"{state}.log"
        self.config = folder / f"{state}.toml"
        self.topic: str = options.get("topic", TOPIC)
        settings = {
            "type": "kafka",
            "bootstrap_servers": broker.bootstrap,
            "topic": TOPIC,
            "transaction_rows": 50,
            "delivery_timeout_ms": 4_000,
            "request_timeout_ms": 2_000,
            "bootstrap_timeout_ms": 2_000,
            "transaction_timeout_ms": 10_000,
            **options,
        }
        lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
        self.config.write_text(
            f"""
            [daemon]
            http = ""
            state = "{state}"
            [feeds.orders]
            table = "orders"
            from = "earliest"
            retry_max_s = 0.5
            [feeds.orders.sink]
            """
            + "\n".join(lines)
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.errors.open("ab") as errors:
            command = [sys.executable, "-m", "tailer", "run", str(self.config)]
            self.process = subprocess.Popen(command, stderr=errors)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def stop(self) -> None:
        """End it as a service manager would; a broker that is away is no reason to hang."""
        assert self.process is not None
        self.process.terminate()
        assert self.process.wait(PATIENCE_S) == 0, self.log()

    def log(self) -> str:
        return self.errors.read_text()[-3000:]

    def offset(self) -> Offset:
        """How far it says that it has come."""
        try:
            text = (self.state / "orders.offset.json").read_text()
        except FileNotFoundError:
            return Offset(0)
        return Offset.from_json(json.loads(text)["offset"])

    def check_alive(self) -> None:
        assert self.process is not None
        assert self.process.poll() is None, self.log()


class Watcher(threading.Thread):
    """A reader of committed records that is there all the time."""

    def __init__(self, broker: Broker | Brokers, topic: str = TOPIC) -> None:
        super().__init__(daemon=True)
        # It must never start over: what came twice would be its own doing.
        self.reader = Reader(broker.bootstrap, topic, **{"auto.offset.reset": "error"})
        self.events: list[Event] = []
        self.ending = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.ending.is_set():
                self.events.extend(self.reader.poll(0.1))
        except BaseException as e:  # noqa: BLE001 - the test raises it
            self.error = e
        finally:
            self.reader.close()


@contextmanager
def running(thread: Writer | Watcher) -> Iterator[None]:
    """A thread that ends with the block, and whose error is the test's."""
    thread.start()
    try:
        yield
    finally:
        thread.ending.set()
        thread.join()
    assert thread.error is None, thread.error


def wait_for(what: Any, daemon: Daemon, why: str) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not what():
        daemon.check_alive()
        assert time.monotonic() < give_up, f"{why}\n{daemon.log()}"
        time.sleep(0.01)


def bounce(
    daemon: Daemon,
    broker: Broker,
    writer: Writer,
    watcher: Watcher,
    moments: random.Random,
    rounds: int,
) -> Counter[str]:
    """End broker and daemon in turn, hard and clean, each while events are coming."""
    turns = [(who, how) for how in ("kill", "stop") for who in ("broker", "daemon")]
    seen = Counter[str]()
    for i in range(rounds):
        who, how = turns[i % len(turns)]
        before, wanted = len(watcher.events), moments.randint(1, 400)
        wait_for(lambda b=before, w=wanted: moved(daemon, writer, watcher, b + w), daemon, "stuck")
        time.sleep(moments.uniform(0.0, 0.05))
        target: Broker | Daemon = broker if who == "broker" else daemon
        getattr(target, how)()
        if moments.random() < 0.5:
            time.sleep(moments.uniform(0.0, 1.0))
        target.start()
        seen[f"{how} {who}"] += 1
        assert writer.error is None, writer.error
    return seen


def moved(daemon: Daemon, writer: Writer, watcher: Watcher, count: int) -> bool:
    """Whether so many events have come; the writer is told how far the daemon is."""
    writer.read_version = max(writer.read_version, daemon.offset().version)
    assert watcher.error is None, watcher.error
    return len(watcher.events) >= count


def changes_of(table: str) -> dict[str, dict[str, Any]]:
    """The table's change events by id, read anew from its files."""

    async def read() -> dict[str, dict[str, Any]]:
        log = table_log(Path(table))
        last = deltalake.DeltaTable(table).version()
        found: dict[str, dict[str, Any]] = {}
        async with aclosing(read_changes(log, Offset(0), last, FeedOptions())) as batches:
            async for batch in batches:
                ids = batch.event_ids().to_pylist()
                found.update(zip(ids, batch.rows.to_pylist(), strict=True))
        return found

    return anyio.run(read)


def check(events: list[Event], writer: Writer, *, keyed: bool) -> None:
    """Each event of the table once, in order, and the table rebuilt from them is the table."""
    times = Counter(event.id for event in events)
    assert [i for i, n in times.items() if n > 1] == [], "an event came twice"
    expected = changes_of(writer.path)
    assert times.keys() == expected.keys()
    for event in events:
        assert event.row["id"] == expected[event.id]["id"]
        assert event.row["_change_type"] == expected[event.id]["_change_type"]
    found: dict[Any, list[str]] = {}
    state: Counter[tuple[Any, ...]] = Counter()
    for event in sorted(events, key=lambda e: (e.partition, e.offset)):
        row = event.row
        found.setdefault(row["id"], []).append(event.id)
        sign = 1 if row["_change_type"] in ("insert", "update_postimage") else -1
        state[row["id"], row["name"], row["amount"]] += sign
    if keyed:
        in_order: dict[Any, list[str]] = {}
        for event_id, row in expected.items():
            in_order.setdefault(row["id"], []).append(event_id)
        assert found == in_order, "a key's events are in the table's order"
    rows = deltalake.DeltaTable(writer.path).to_pyarrow_table().to_pylist()
    table = Counter((row["id"], row["name"], row["amount"]) for row in rows)
    assert {row: n for row, n in state.items() if n} == table


@pytest.mark.slow
@pytest.mark.timeout(300 + 30 * ROUNDS)
@pytest.mark.parametrize("case", ["keyed, kafka-python", "without keys, librdkafka"])
def test_each_event_comes_exactly_once(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keyed, driver = case.startswith("keyed"), case.split(", ")[1]
    seed = random.randrange(2**32)
    rounds = ROUNDS if keyed else max(4, ROUNDS // 2)
    with Broker() as broker:
        create_topic(broker.bootstrap, TOPIC, PARTITIONS)
        options: dict[str, Any] = {"driver": driver, "key": ["id"] if keyed else []}
        writer, watcher = Writer(tmp_path, seed), Watcher(broker)
        daemon = Daemon(tmp_path, broker, **options)
        daemon.start()
        try:
            with running(watcher):
                with running(writer):
                    moments = random.Random(seed)
                    seen = bounce(daemon, broker, writer, watcher, moments, rounds)
                end = Offset(writer.table.version() + 1)
                wait_for(lambda: daemon.offset() >= end, daemon, "the end is not reached")
                events = read_topic(broker.bootstrap, TOPIC)
                wait_for(lambda: len(watcher.events) >= len(events), daemon, "lost by the watcher")
            daemon.stop()
        finally:
            daemon.kill()
        with capsys.disabled():
            aborted = len(read_topic(broker.bootstrap, TOPIC, "read_uncommitted")) - len(events)
            print(
                f"\nseed {seed}: {dict(seen)}, {writer.table.version() + 1} versions, "
                f"{len(events)} events, {aborted} records of aborted transactions"
            )
        check(events, writer, keyed=keyed)
        check(watcher.events, writer, keyed=keyed)


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("driver", ["kafka-python", "librdkafka"])
def test_a_zombie_writes_nothing_that_is_seen(driver: str, tmp_path: Path) -> None:
    with Broker() as broker:
        create_topic(broker.bootstrap, TOPIC, PARTITIONS)
        writer = Writer(tmp_path, 1)
        options: dict[str, Any] = {"driver": driver, "key": ["id"]}
        zombie = Daemon(tmp_path, broker, **options)
        newer = Daemon(tmp_path, broker, "newer", **options)
        zombie.start()
        assert zombie.process is not None
        try:
            with running(writer):
                wait_for(lambda: _follow(zombie, writer) > 5, zombie, "it does not start")
                zombie.process.send_signal(signal.SIGSTOP)
                newer.start()
                reached = zombie.offset().version + 5
                wait_for(lambda: _follow(newer, writer) > reached, newer, "no take-over")
                zombie.process.send_signal(signal.SIGCONT)
                assert zombie.process.wait(PATIENCE_S) == 1
                reached = newer.offset().version + 3
                wait_for(lambda: _follow(newer, writer) > reached, newer, "the newer one ended")
            end = Offset(writer.table.version() + 1)
            wait_for(lambda: newer.offset() >= end, newer, "the end is not reached")
            newer.stop()
        finally:
            zombie.kill()
            newer.kill()
        assert "taken over by a newer daemon" in zombie.log()
        check(read_topic(broker.bootstrap, TOPIC), writer, keyed=True)


def _follow(daemon: Daemon, writer: Writer) -> int:
    """How far the daemon is, which the writer is told."""
    version = daemon.offset().version
    writer.read_version = max(writer.read_version, version)
    return version
