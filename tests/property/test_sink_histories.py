"""Histories of the sinks that keep the offset with the data, without a server: Kafka's transactions
and those of the SQL databases, against one that is in memory.

Processes write a feed's batches. At every step of theirs a call fails, or its answer is lost, or
the process is killed, or another process, which may be an older one, takes a step in between; rows
are refused and parked. Whatever happens, each event is there once, in order, and in the end all of
them are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sinks.kafka.client.failures import Fenced
from sinks.kafka.exactly_once import DataTopics, ExactlyOnce
from sinks.kafka.feed_transactions import FeedTransactions, SeenTopic, TopicTransaction
from sinks.kafka.progress import TopicProgress
from sinks.shared.copy_sink import TableForm
from sinks.sql.database import Claim
from sinks.sql.table_transactions import TableSession, TableTransaction, TableTransactions
from tailer.changes import METADATA_FIELDS, ChangeBatch, Offset
from tailer.errors import (
    ConfigError,
    RowsRefused,
    SinkRejected,
    TailerError,
    TargetRefused,
    TransientError,
)
from tailer.testing.batches import change_span, empty_batch
from tests.kafka.sinks import SCHEMA, batch
from tests.support.extent import examples

#: How many rows each version has, from version 1 on; one with none has no changes.
ROWS = (1, 5, 0, 0, 2, 7, 1, 1, 0, 3)
END = len(ROWS) + 1
FAULTS = ("error", "crash", "other process")


def ids_of(version: int) -> list[int]:
    return [version * 10 + i for i in range(ROWS[version - 1])]


EXPECTED = [i for version in range(1, END) for i in ids_of(version)]


@cache
def batch_from(offset: Offset, *, joined: bool) -> ChangeBatch:
    """What the feed reads next: what is left of a version, or two small versions at once."""
    version, index = offset.position
    ids = ids_of(version)
    if not ids[index:]:
        return empty_batch(SCHEMA, version=version)
    if joined and not index and version + 1 < END and ids_of(version + 1):
        both = [[[{"id": i, "name": "x"} for i in ids_of(v)]] for v in (version, version + 1)]
        return change_span(SCHEMA, both, version=version)
    return batch(version, ids[index:], index=index)


class Killed(BaseException):
    """The process is no more."""


class World:
    """A target in memory. ``due`` is what happens at the how-many-th step from now."""

    def __init__(self) -> None:
        self.events: list[int] = []
        self.refused: set[int] = set()
        self.due: tuple[int, str] | None = None
        self.other_process: Callable[[], None] = lambda: None

    def step(self) -> None:
        """A step of a process: before a call has done something, or after it."""
        if self.due is None:
            return
        left, kind = self.due
        if left:
            self.due = left - 1, kind
            return
        self.due = None
        if kind == "error":
            raise TransientError("it does not answer")
        if kind == "crash":
            raise Killed
        self.other_process()

    def store(self, ids: list[int]) -> None:
        self.events += ids

    def check_rows(self, ids: list[int]) -> None:
        if self.refused & set(ids):
            raise RowsRefused(f"{self.refused & set(ids)} are too large")

    def session(self, process: Process) -> ExactlyOnce | TableSession:
        raise NotImplementedError


class Process:
    """A daemon's feed, with what it keeps from one session to the next."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.claimed = 0
        self.session: Any = None
        self.offset = Offset(1)
        self.ended = False
        self.busy = False  # it may be the other process that takes a step in between

    def step(self, *, joined: bool = False) -> None:
        """Open, or write one batch; what fails is opened again, or is the end."""
        if self.ended or self.busy:
            return
        self.busy = True
        try:
            if self.session is None:
                session = self.world.session(self)
                self.offset = session.open() or Offset(1)
                self.session = session
                self.claimed = getattr(session.transactions, "claimed", 0)
            elif self.offset.version < END:
                read = batch_from(self.offset, joined=joined)
                self._write(read)
                self.offset = read.next_offset
        except TransientError:
            self.session = None
        except (TailerError, Killed):
            self.ended = True
        finally:
            self.busy = False

    def _write(self, rows: ChangeBatch) -> None:
        """As :mod:`tailer.feed.parking` does it, in short."""
        try:
            self.session.write(rows)
        except TargetRefused:
            raise
        except SinkRejected:
            if rows.num_rows > 1:
                middle = rows.num_rows // 2
                self._write(rows.slice(0, middle))
                self._write(rows.slice(middle, rows.num_rows))


# --- Kafka


class KafkaWorld(World):
    """What is committed in a topic, the last progress record, and the producer's epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.record: bytes | None = None
        self.epoch = 0
        self.there = False

    def session(self, process: Process) -> ExactlyOnce:
        transactions = FeedTransactions(
            "orders", process.name, {"format": "rows"}, claimed=process.claimed
        )
        return ExactlyOnce(MemoryBroker(self), transactions, OneTopic())


class OneTopic(DataTopics):
    """All rows go to one topic."""

    def __init__(self) -> None:
        self.are_routed = False

    def find_common_topic(self) -> str:
        return "t"

    def split_by_topic(self, batch: ChangeBatch) -> list[tuple[str, ChangeBatch]]:
        return [("t", batch)] if batch.num_rows else []


class MemoryBroker:
    """See :class:`sinks.kafka.broker.Broker`."""

    def __init__(self, world: KafkaWorld) -> None:
        self.world = world
        self.epoch = 0

    def prepare_progress_topic(self) -> None:
        self.world.step()

    def connect(self, data_topic: str | None) -> None:  # noqa: ARG002
        self.world.step()

    def fence_producers(self, written: Any) -> None:  # noqa: ARG002
        self.world.step()
        self.world.epoch += 1
        self.epoch = self.world.epoch
        self.world.step()

    def read_progress(self, *, stable: bool = False) -> TopicProgress | None:  # noqa: ARG002
        self.world.step()
        record = self.world.record
        self.world.step()
        return None if record is None else TopicProgress.from_bytes(record)

    def check_notice_topic(self) -> None:
        pass

    def find_topic(self, name: str) -> SeenTopic | None:  # noqa: ARG002
        self.world.step()
        return SeenTopic("T", bool(self.world.events)) if self.world.there else None

    def make_topic(self, name: str) -> SeenTopic:  # noqa: ARG002
        self.world.there = True
        return SeenTopic("T", has_records=False)

    def open_topic(self, name: str) -> None:  # noqa: ARG002
        self.world.step()

    def encode(self, name: str, rows: ChangeBatch) -> Any:  # noqa: ARG002
        return None

    def run(self, transaction: TopicTransaction, _: Any) -> None:
        self.world.step()
        rows = transaction.rows
        ids = [] if rows is None else rows.rows["id"].to_pylist()
        self.world.check_rows(ids)
        if self.epoch != self.world.epoch:
            raise Fenced("another producer has the transactional id")
        self.world.store(ids)
        self.world.record = transaction.after.to_bytes()
        self.world.step()

    def close(self) -> None:
        pass


# --- SQL


class SqlWorld(World):
    """The claim that a database has, and the rows of a table."""

    mode = "log"

    def __init__(self) -> None:
        super().__init__()
        self.claim: Claim | None = None

    def session(self, process: Process) -> TableSession:  # noqa: ARG002
        log = self.mode == "log"
        form = TableForm("log", event_id="_event_id") if log else TableForm("mirror", ("id",))
        rows_of = _event_rows if log else _mirror_rows
        transactions = TableTransactions(rows_of, form, name="memory")
        return TableSession(MemoryTable(self), transactions)


class MirrorWorld(SqlWorld):
    mode = "mirror"


def _event_rows(rows: ChangeBatch) -> Any:
    return rows.rows.append_column("_event_id", rows.event_ids())


def _mirror_rows(rows: ChangeBatch) -> Any:
    return rows.rows.select(rows.rows.schema.names[: -len(METADATA_FIELDS)])


class MemoryTable:
    """See :class:`sinks.sql.table_transactions.TableTarget`."""

    def __init__(self, world: SqlWorld) -> None:
        self.world = world

    def claim(self) -> Claim:
        self.world.step()
        found = self.world.claim or Claim("orders", 0, self.world.mode)
        self.world.claim = claimed = replace(found, epoch=found.epoch + 1)
        self.world.step()
        return claimed

    def run(self, transaction: TableTransaction) -> Claim:
        self.world.step()
        before, there = transaction.before, self.world.claim
        assert there is not None
        if there.epoch > before.epoch:
            raise ConfigError("another process writes the table now")
        if (there.epoch, there.offset) != (before.epoch, before.offset):
            raise TransientError("the table is not as this process has left it")
        coming = transaction.rows if transaction.merge is None else transaction.merge.rows
        ids = [] if coming is None else coming["id"].to_pylist()
        self.world.check_rows(ids)
        if transaction.merge is not None:
            had = {*self.world.events}
            assert not had & set(transaction.merge.absent["id"].to_pylist())
        self.world.store(ids)
        self.world.claim = transaction.after
        self.world.step()
        return transaction.after


# --- the histories


class Histories(RuleBasedStateMachine):
    """Two processes at a time, the newer of which was started while the older one ran."""

    world_of: Callable[[], World]

    def __init__(self) -> None:
        super().__init__()
        self.world = type(self).world_of()
        self.started = 0
        self.parked: set[int] = set()
        self.older = self.newer = self._new()

    def _new(self) -> Process:
        self.started += 1
        return Process(self.world, f"process {self.started}")

    @rule(joined=st.booleans())
    def newer_steps(self, joined: bool) -> None:  # noqa: FBT001
        self.world.other_process = self.older.step
        self.newer.step(joined=joined)

    @rule()
    def older_steps(self) -> None:
        self.world.other_process = self.newer.step
        self.older.step()

    @rule()
    def another_is_started(self) -> None:
        self.older, self.newer = self.newer, self._new()

    @precondition(lambda self: self.world.due is None)
    @rule(steps=st.integers(0, 14), kind=st.sampled_from(FAULTS))
    def something_will_happen(self, steps: int, kind: str) -> None:
        self.world.due = steps, kind

    @precondition(lambda self: len(self.world.refused) < 3)
    @rule(which=st.sampled_from(EXPECTED))
    def a_row_will_be_refused(self, which: int) -> None:
        if which not in self.world.events:
            self.world.refused.add(which)

    @invariant()
    def each_event_is_there_once_and_in_order(self) -> None:
        there = [i for i in EXPECTED if i not in self.world.refused]
        assert self.world.events == there[: len(self.world.events)]

    def teardown(self) -> None:
        self.world.due = None
        last = self._new()
        for _ in range(3 * END):
            last.step()
        assert not last.ended
        assert self.world.events == [i for i in EXPECTED if i not in self.world.refused]
        super().teardown()


def machine(world: type[World]) -> Any:
    made = type(f"{world.__name__}Histories", (Histories,), {"world_of": world})
    case = made.TestCase  # type: ignore[attr-defined]
    case.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
    return case


@pytest.fixture(autouse=True, scope="module")
def quick() -> Any:
    """Small transactions, no waiting, and a clock that goes on by a second at each look: one
    history run twice must do the same twice, also on a busy machine."""
    clock = SimpleNamespace(monotonic=partial(next, count(1000.0)), sleep=lambda _: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sinks.kafka.exactly_once.time", clock)
        patch.setattr("sinks.kafka.feed_transactions._ROWS_MAX", 3)
        patch.setattr("sinks.kafka.exactly_once._CLAIM_S", 0.0)
        patch.setattr("sinks.kafka.exactly_once._IDLE_S", 2.0)
        yield


TestKafka = machine(KafkaWorld)
TestSqlLog = machine(SqlWorld)
TestSqlMirror = machine(MirrorWorld)
