"""A real writer, a daemon that feeds a topic and a reader of committed records, while brokers or
daemon are ended: what the tests of that share. Each event must come exactly once.
"""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import anyio
import deltalake
from kafka import KafkaAdminClient, TopicPartition

from tailer.changes import Offset
from tailer.feed.options import FeedOptions
from tailer.feed.read import read_changes
from tests.integration.test_kill import Writer
from tests.kafka.broker import Broker
from tests.kafka.brokers import Brokers
from tests.kafka.topics import Event, Reader, create_topic, read_topic
from tests.support.feeds import table_log
from tests.support.forking import Process, start
from tests.support.waiting import eventually

PATIENCE_S = 200.0
PARTITIONS = 3
TOPIC = "orders"


class Daemon:
    """`tailer run` of one feed, to be ended and started again. ``state`` is a folder of its own."""

    command: ClassVar = ["run"]

    def __init__(
        self, folder: Path, broker: Broker | Brokers, state: str = "state", **options: Any
    ) -> None:
        self.folder = folder
        self.state = folder / state
        self.errors = folder / f"{state}.log"
        self.config = folder / f"{state}.toml"
        settings = {
            "type": "kafka",
            "bootstrap_servers": broker.bootstrap,
            "topic": TOPIC,
            "transaction_bytes": 2_500,
            "delivery_timeout_ms": 4_000,
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
        self.process: Process | None = None

    def start(self) -> None:
        with self.errors.open("ab") as errors:
            self.process = start("tailer", *self.command, self.config, stderr=errors.fileno())

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def end(self) -> None:
        """Leave nothing behind."""
        if self.process is not None:
            self.kill()

    def stop(self) -> None:
        """End it as a service manager would; a broker that is away is no reason to hang."""
        assert self.process is not None
        self.process.terminate()
        assert self.process.wait(PATIENCE_S) == 0, self.log()

    def log(self) -> str:
        return self.errors.read_text()[-3000:]

    def stacks(self) -> str:
        """What its threads are at, written to its log as it ends; for when it stands still."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGABRT)
            self.process.wait(PATIENCE_S)
        return self.errors.read_text()[-12_000:]

    def offset(self) -> Offset:
        """How far it says that it has come."""
        try:
            text = (self.state / "orders.offset.json").read_text()
        except FileNotFoundError:
            return Offset(0)
        kept = json.loads(text)["offset"]  # none yet, where only the form of records is kept
        return Offset(0) if kept is None else Offset.from_json(kept)

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


def wait_for(what: Callable[[], bool], daemon: Daemon, why: str) -> None:
    """Wait until something is so, as long as the daemon lives."""

    def probe() -> bool:
        daemon.check_alive()
        return what()

    eventually(probe, PATIENCE_S, lambda: f"{why}\n{daemon.log()}")


@dataclass
class Trial:
    """What is at work while something is ended; ``moments`` is the source of all chance."""

    broker: Broker | Brokers
    topic: str
    transactional_id: str
    writer: Writer
    daemon: Daemon
    watcher: Watcher
    moments: random.Random

    def wait_for_events(self) -> None:
        """Wait for some more events to be seen, and a moment on."""
        wanted = len(self.watcher.events) + self.moments.randint(1, 400)

        def seen() -> bool:
            self.daemon.check_alive()
            self.check()
            return len(self.watcher.events) >= wanted

        eventually(seen, PATIENCE_S, self.standstill)
        time.sleep(self.moments.uniform(0.0, 0.05))

    def check(self) -> None:
        """Raise what writer or watcher have met; tell the writer how far the daemon is: what it has
        delivered, for a daemon that is killed may have saved less."""
        seen = self.watcher.events[-1].row["_commit_version"] if self.watcher.events else 0
        saved = self.daemon.offset().version
        self.writer.read_version = max(self.writer.read_version, saved, seen)
        for thread in (self.writer, self.watcher):
            assert thread.error is None, thread.error

    def standstill(self) -> str:
        """Why no events come: what Kafka knows, and what the daemon is at. Ends the daemon."""
        seen, written = len(self.watcher.events), self.writer.table.version()
        at = f"writer at version {written}, daemon at {self.daemon.offset()}"
        lines = [f"no events for {PATIENCE_S:g} s: {seen} seen, {at}"]
        client = KafkaAdminClient(bootstrap_servers=self.broker.bootstrap.split(","))
        places = [TopicPartition(self.topic, p) for p in range(PARTITIONS)]
        asked: dict[str, Callable[[], Any]] = {
            "transaction": lambda: client.describe_transactions([self.transactional_id]),
            "producers": lambda: client.describe_producers(places),
            "ends": lambda: client.list_partition_offsets(dict.fromkeys(places, -1), 0),
            "stable ends": lambda: client.list_partition_offsets(dict.fromkeys(places, -1), 1),
        }
        for name, ask in asked.items():
            try:
                lines.append(f"{name}: {ask()}")
            except Exception as e:  # noqa: BLE001 - tell it, and go on
                lines.append(f"{name}: {e!r}")
        client.close()
        return "\n".join([*lines, self.daemon.stacks()])


def survives(
    folder: Path,
    broker: Broker | Brokers,
    disturb: Callable[[Trial], Counter[str]],
    *,
    topic: str = TOPIC,
    replicas: int = 1,
    keyed: bool = True,
    program: type[Daemon] = Daemon,
    **options: Any,
) -> dict[str, int]:
    """Hold what readers of committed records see against the table, after ``disturb`` has ended
    what it likes while a writer commits. Returns what there was."""
    seed, own = random.randrange(2**32), f"{topic}-writer"
    create_topic(broker.bootstrap, topic, PARTITIONS, replicas=replicas)
    options |= {"topic": topic, "progress_topic": f"{topic}-progress", "transactional_id": own}
    daemon = program(folder, broker, key=["id"] if keyed else [], **options)
    writer, watcher = Writer(folder, seed), Watcher(broker, topic)
    trial = Trial(broker, topic, own, writer, daemon, watcher, random.Random(seed))
    daemon.start()
    try:
        with running(watcher):
            with running(writer):
                seen = disturb(trial)
            writer.append(0)  # behind it, the offset is saved, whatever was saved at the last kill
            writer.table.update_incremental()
            end = (writer.table.version() + 1, 0)
            wait_for(lambda: daemon.offset().position >= end, daemon, "the end is not reached")
            events = read_topic(broker.bootstrap, topic)
            wait_for(lambda: len(watcher.events) >= len(events), daemon, "lost by the watcher")
        daemon.stop()
    finally:
        daemon.end()
    aborted = len(read_topic(broker.bootstrap, topic, "read_uncommitted")) - len(events)
    check(events, writer, keyed=keyed)
    check(watcher.events, writer, keyed=keyed)
    markers = daemon.errors.read_text().count("had lost the end")
    return {
        "seed": seed, "kills": seen.total(), **seen,
        "versions": writer.table.version() + 1, "events": len(events), "lost": 0, "doubled": 0,
        "records of aborted transactions": aborted, "markers written": markers,
    }  # fmt: skip


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
    again = [(e.id, e.partition, e.offset) for e in events if times[e.id] > 1]
    assert again == [], f"events came twice: {again}"
    expected = changes_of(writer.path)
    wrong = {"lost": expected.keys() - times.keys(), "strange": times.keys() - expected.keys()}
    assert not any(wrong.values()), wrong
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
