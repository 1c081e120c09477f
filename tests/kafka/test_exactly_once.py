"""Progress and data in one transaction: what is resumed, what is refused, who wins."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.to_thread
import pytest
from confluent_kafka import Producer
from msgspec import structs

from sinks.kafka.client.failures import Fenced
from sinks.kafka.cluster import Cluster, TransactionStatus
from sinks.kafka.progress import TopicProgress
from sinks.kafka.settlement import Settlement
from sinks.kafka.sink import KafkaSink
from tailer.changes import Notice, Offset
from tailer.errors import SinkRejected, TailerError, TransientError
from tailer.testing.batches import empty_batch
from tests.kafka.broker import Broker
from tests.kafka.sinks import (
    SCHEMA,
    batch,
    begun,
    broker_of,
    fresh,
    made,
    opened,
    refused,
    session_of,
    written,
)
from tests.kafka.topics import (
    admin,
    create_topic,
    delete_records,
    delete_topic,
    events,
    read_topic,
    set_topic_config,
)
from tests.support.feeds import position_of
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.anyio


def ids(kafka: Broker, topic: str, *, stable: bool = False) -> list[int]:
    return [row["id"] for row in events(kafka.bootstrap, topic, stable=stable)]


async def test_a_feed_resumes_behind_what_was_committed(kafka: Broker) -> None:
    topic = fresh()
    async with opened(kafka.bootstrap, topic) as (sink, offset):
        assert offset is None
        await sink.write(batch(1, [1, 2], last=False))
        await sink.write(batch(1, [3], index=2))
    async with opened(kafka.bootstrap, topic) as (sink, offset):
        assert offset == batch(1, [3], index=2).next_offset
        assert offset.timestamp_floor_ms == batch(1, [3]).timestamp_ms
        await sink.write(batch(2, [4]))
    assert ids(kafka, topic) == [1, 2, 3, 4]


async def test_a_batch_that_failed_half_way_is_not_seen(kafka: Broker) -> None:
    topic = fresh()
    async with opened(kafka.bootstrap, topic, partitions=1) as (sink, _):
        await sink.write(batch(1, [1]))
        begun(sink, batch(2, [2]))
    async with opened(kafka.bootstrap, topic) as (sink, offset):
        assert position_of(offset) == (2, 0)
        await sink.write(batch(2, [2]))
    assert ids(kafka, topic) == [1, 2]
    everything = read_topic(kafka.bootstrap, topic, "read_uncommitted")
    assert [event.row["id"] for event in everything] == [1, 2, 2]


async def test_a_large_batch_is_several_transactions(
    kafka: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = fresh()
    monkeypatch.setattr("sinks.kafka.feed_transactions._ROWS_MAX", 3)
    async with opened(kafka.bootstrap, topic, partitions=1) as (sink, _):
        await sink.write(batch(5, range(10), last=True))
    progress = [
        TopicProgress.from_bytes(event.value or b"")
        for event in read_topic(kafka.bootstrap, f"{topic}-progress")
    ]
    assert [p.offset and (p.offset.version, p.offset.index) for p in progress] == [
        None, (5, 3), (5, 6), (5, 9), (6, 0),
    ]  # fmt: skip
    assert ids(kafka, topic) == list(range(10))


async def test_a_restart_within_a_version_goes_on_within_it(kafka: Broker) -> None:
    topic = fresh()
    async with opened(kafka.bootstrap, topic) as (sink, _):
        await sink.write(batch(7, [1, 2], last=False))
    async with opened(kafka.bootstrap, topic) as (sink, offset):
        assert offset is not None
        assert (offset.version, offset.index) == (7, 2)
        await sink.write(batch(7, [3], index=2))
        await sink.write(batch(8, [4]))
    assert ids(kafka, topic) == [1, 2, 3, 4]


async def test_versions_without_changes_move_progress_on(kafka: Broker) -> None:
    topic = fresh()
    async with opened(kafka.bootstrap, topic) as (sink, _):
        await sink.write(batch(1, [1]))
        for version in range(2, 40):
            await sink.write(empty_batch(SCHEMA, version=version))
    written = read_topic(kafka.bootstrap, f"{topic}-progress")
    assert len(written) < 20, "not one transaction for each of them"
    async with opened(kafka.bootstrap, topic) as (_, offset):
        assert position_of(offset) == (40, 0)


async def test_feeds_share_a_progress_topic(kafka: Broker) -> None:
    shared, topics = fresh("progress"), [fresh(), fresh()]
    for topic in topics:
        async with opened(kafka.bootstrap, topic, topic, progress_topic=shared) as (sink, offset):
            assert offset is None
            await sink.write(batch(3, [1]))
    for topic in topics:
        async with opened(kafka.bootstrap, topic, topic, progress_topic=shared) as (_, offset):
            assert position_of(offset) == (4, 0)


async def test_progress_behind_another_feeds_open_transaction_is_waited_for(
    kafka: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own progress lies behind the other's open transaction: reading only what is stable now
    would find an older one, and write twice."""
    shared, topic, other = fresh("progress"), fresh(), fresh()
    async with opened(kafka.bootstrap, other, other, progress_topic=shared) as (held, _):
        async with opened(kafka.bootstrap, topic, topic, progress_topic=shared) as (sink, _):
            await sink.write(batch(1, [1]))
            driver = begun(held, batch(1, [1]), progress=True)
            await sink.write(batch(2, [2]))
        late = made(kafka.bootstrap, topic, progress_topic=shared, transaction_timeout_ms=1000)
        found: list[Offset | None] = []

        async def reopen() -> None:
            found.append(await late.open(topic))

        async with anyio.create_task_group() as tasks:
            polls: list[int] = []
            made_consumer = Cluster._open_consumer

            def counting(*arguments: Any) -> Any:
                consumer = made_consumer(*arguments)
                poll = consumer.poll

                def counted(timeout_ms: int) -> Any:
                    polls.append(timeout_ms)
                    return poll(timeout_ms)

                consumer.poll = counted
                return consumer

            monkeypatch.setattr(Cluster, "_open_consumer", counting)
            tasks.start_soon(reopen)
            await eventually_async(lambda: len(polls) > 5, why="it reads on and on")
            assert found == []
            driver.commit()
        assert [position_of(one) for one in found] == [(3, 0)]
        await late.aclose()


# --- progress and data that do not belong together


async def test_a_topic_that_is_gone_is_refused(kafka: Broker) -> None:
    topic = fresh()
    async with opened(kafka.bootstrap, topic) as (sink, _):
        await sink.write(batch(1, [1]))
    delete_topic(kafka.bootstrap, topic)
    sentence = await refused(made(kafka.bootstrap, topic), SinkRejected)
    assert f"the topic {topic} is gone" in sentence
    create_topic(kafka.bootstrap, topic)
    sentence = await refused(made(kafka.bootstrap, topic), SinkRejected)
    assert "was deleted and created again" in sentence


async def test_data_without_progress_is_refused(kafka: Broker) -> None:
    topic = fresh()
    async with opened(kafka.bootstrap, topic) as (sink, _):
        await sink.write(batch(1, [1]))
    delete_topic(kafka.bootstrap, f"{topic}-progress")
    sentence = await refused(made(kafka.bootstrap, topic), SinkRejected)
    assert "there is no progress of feed 'orders'" in sentence
    assert "`tailer offsets set`" in sentence
    await made(kafka.bootstrap, topic).set_offset("orders", Offset(2))
    async with opened(kafka.bootstrap, topic) as (sink, offset):
        assert position_of(offset) == (2, 0)
        await sink.write(batch(2, [2]))
    async with opened(kafka.bootstrap, topic) as (_, offset):
        assert position_of(offset) == (3, 0)


async def test_progress_that_is_deleted_while_the_feed_runs_stops_it(kafka: Broker) -> None:
    topic = fresh()
    options: dict[str, Any] = {"delivery_timeout_ms": 5_000}
    async with opened(kafka.bootstrap, topic, **options) as (sink, _):
        await sink.write(batch(1, [1]))
        delete_topic(kafka.bootstrap, f"{topic}-progress")
        with pytest.raises(TransientError):
            await sink.write(batch(2, [2]))
        with pytest.raises(SinkRejected, match="there is no progress of feed 'orders'"):
            await sink.open("orders")
    assert ids(kafka, topic) == [1]


async def test_truncated_progress_is_refused(kafka: Broker) -> None:
    topic = fresh()
    progress = f"{topic}-progress"
    async with opened(kafka.bootstrap, topic) as (sink, _):
        await sink.write(batch(1, [1]))
    # Only a topic that may delete can be cut; that alone is refused.
    set_topic_config(kafka.bootstrap, progress, "cleanup.policy", "delete")
    sentence = await refused(made(kafka.bootstrap, topic), SinkRejected)
    assert "must have one and 'compact'" in sentence
    delete_records(kafka.bootstrap, progress)
    set_topic_config(kafka.bootstrap, progress, "cleanup.policy", "compact")
    sentence = await refused(made(kafka.bootstrap, topic), SinkRejected)
    assert "there is no progress" in sentence


def another_offset(value: bytes) -> bytes:
    return value.replace(b'"version":2', b'"version":1')


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda _: b"not JSON", "Expecting value"),
        (lambda _: b"[1]", "no JSON object"),
        (lambda _: b'{"format":1}', "checksum"),
        (another_offset, "checksum"),
    ],
)
async def test_a_strangers_progress_is_refused(
    kafka: Broker, change: Callable[[bytes], bytes], said: str
) -> None:
    topic = fresh()
    async with opened(kafka.bootstrap, topic) as (sink, _):
        await sink.write(batch(1, [1]))
    last = read_topic(kafka.bootstrap, f"{topic}-progress")[-1]
    assert json.loads(last.value or b"")["offset"]["version"] == 2
    stranger = Producer({"bootstrap.servers": kafka.bootstrap})
    stranger.produce(f"{topic}-progress", change(last.value or b""), b"orders")
    assert stranger.flush(10) == 0
    sentence = await refused(made(kafka.bootstrap, topic), SinkRejected)
    assert "was not written by delta-tailer" in sentence
    assert said in sentence
    assert f"{topic}-progress" in sentence
    await made(kafka.bootstrap, topic).set_offset("orders", Offset(2))
    async with opened(kafka.bootstrap, topic) as (_, offset):
        assert position_of(offset) == (2, 0)


async def test_an_offset_can_be_set_anew(kafka: Broker) -> None:
    topic = fresh()
    async with opened(kafka.bootstrap, topic) as (sink, _):
        await sink.write(batch(1, [1]))
    await made(kafka.bootstrap, topic).set_offset("orders", Offset(9, 4))
    async with opened(kafka.bootstrap, topic) as (_, offset):
        assert offset is not None
        assert (offset.version, offset.index) == (9, 4)
    await made(kafka.bootstrap, topic).set_offset("orders", None)
    async with opened(kafka.bootstrap, topic) as (_, offset):
        assert offset is None


async def test_a_notice_that_passes_over_a_version_is_progress(kafka: Broker) -> None:
    topic = fresh()
    skipped = Notice("skipped_version", 2, 5_000, Offset(2), Offset(3), {"reason": "asked"})
    told = Notice("schema_change", 3, 6_000, Offset(3), Offset(3), {"added": ["x"]})
    options = {"notice_topic": f"{topic}-notices"}
    async with opened(kafka.bootstrap, topic, **options) as (sink, _):
        await sink.write(batch(1, [1]))
        await sink.announce(skipped)
        await sink.announce(told)
    async with opened(kafka.bootstrap, topic) as (sink, offset):
        assert position_of(offset) == (3, 0)
        # Without a topic for them, notices are progress all the same.
        await sink.announce(
            structs.replace(skipped, version=3, offset=Offset(3), next_offset=Offset(4))
        )
    async with opened(kafka.bootstrap, topic) as (_, offset):
        assert position_of(offset) == (4, 0)
    notices = [event.row for event in read_topic(kafka.bootstrap, f"{topic}-notices")]
    assert notices == [skipped.to_json(), told.to_json()]


# --- two daemons


async def stopped_by(work: Callable[[], Awaitable[object]]) -> SinkRejected:
    with pytest.raises(SinkRejected) as caught:
        await work()
    return caught.value


async def test_the_newer_daemon_wins(kafka: Broker) -> None:
    topic = fresh()
    async with opened(kafka.bootstrap, topic) as (older, _):
        await older.write(batch(1, [1]))
        async with opened(kafka.bootstrap, topic) as (newer, offset):
            assert position_of(offset) == (2, 0)
            error = await stopped_by(lambda: older.write(batch(2, [2])))
            assert "taken over by a newer daemon" in str(error)
            assert newer._owner in str(error)
            await newer.write(batch(2, [2]))
            # Not even a restart from within helps the older one.
            again = await stopped_by(lambda: older.open("orders"))
            assert newer._owner in str(again)
            await newer.write(batch(3, [3]))
    assert ids(kafka, topic) == [1, 2, 3]


async def test_a_look_disturbs_nobody_and_makes_nothing(kafka: Broker) -> None:
    topic = fresh()
    assert await made(kafka.bootstrap, topic).look("orders") is None
    assert {topic, f"{topic}-progress"}.isdisjoint(admin(kafka.bootstrap).list_topics().topics)
    async with opened(kafka.bootstrap, topic) as (sink, _):
        await sink.write(batch(1, [1]))
        found = await made(kafka.bootstrap, topic).look("orders")
        assert position_of(found) == (2, 0)
        await sink.write(batch(2, [2]))
        other = made(kafka.bootstrap, topic, progress_topic=fresh("progress"))
        with pytest.raises(SinkRejected, match="there is no progress of feed 'orders'"):
            await other.look("orders")
        lacking = made(kafka.bootstrap, fresh(), create_topics=False)
        with pytest.raises(SinkRejected, match="create_topics is false"):
            await lacking.look("orders")
    assert ids(kafka, topic) == [1, 2]


async def test_two_feeds_with_one_transactional_id_are_told(kafka: Broker) -> None:
    topics = [fresh(), fresh()]
    shared = {"transactional_id": f"{topics[0]}-shared"}
    async with opened(kafka.bootstrap, topics[0], topics[0], **shared) as (first, _):
        await first.write(batch(1, [1]))
        async with opened(kafka.bootstrap, topics[1], topics[1], **shared) as (second, _):
            with pytest.raises(TransientError) as caught:
                await first.write(batch(2, [2]))
            await second.write(batch(1, [1]))
    assert f"has the transactional id {topics[0]}-shared too" in str(caught.value)
    assert ids(kafka, topics[0]) == [1]


async def test_what_a_zombie_left_open_is_never_seen(kafka: Broker) -> None:
    topic = fresh()
    async with opened(kafka.bootstrap, topic, partitions=1) as (zombie, _):
        await zombie.write(batch(1, [1]))
        left = begun(zombie, batch(2, [2], name="zombie"))
        async with opened(kafka.bootstrap, topic) as (newer, _):
            await newer.write(batch(2, [2]))

            def go_on() -> None:
                third = batch(3, [3], name="zombie")
                written(zombie, third)
                left.commit()

            with pytest.raises((Fenced, TransientError)):
                go_on()
            # It asks for no new epoch in the background, which would fence the newer one.
            producer = broker_of(zombie).driver._producer
            assert producer._transaction_manager.has_fatal_error()
            await newer.write(batch(3, [3]))
    rows = events(kafka.bootstrap, topic)
    assert [(row["id"], row["name"]) for row in rows] == [(1, "x"), (2, "x"), (3, "x")]


async def test_a_transaction_that_took_too_long_is_done_again(kafka: Broker) -> None:
    topic = fresh()
    options: dict[str, Any] = {"transaction_timeout_ms": 2000}
    async with opened(kafka.bootstrap, topic, **options) as (sink, _):
        await sink.write(batch(1, [1]))
        late = begun(sink, batch(2, [2]))
        cluster, writer = broker_of(sink).cluster, f"{topic}-writer"

        def ended() -> bool:
            found = cluster.find_transaction(writer)
            return found is not None and found.state == "CompleteAbort"

        await eventually_async(ended, why="the broker ends it")

        def commit() -> None:
            with session_of(sink)._watch_failures():
                late.commit()

        with pytest.raises(TransientError):
            await anyio.to_thread.run_sync(commit)
        assert position_of(await sink.open("orders")) == (2, 0)
        await sink.write(batch(2, [2]))
    assert ids(kafka, topic) == [1, 2]


class Busy:
    """A daemon that commits a transaction and begins the next whenever another one asks the
    coordinator how the last has ended: no worse moment could be."""

    def __init__(self, sink: KafkaSink, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sink = sink
        self.version = 2
        self.driver = begun(sink, batch(2, [2]), progress=True)
        ask = Cluster.find_transaction

        def asked(cluster: Cluster, transactional_id: str) -> TransactionStatus | None:
            if cluster is broker_of(sink).cluster:
                return ask(cluster, transactional_id)
            try:
                self.driver.commit()
            except TailerError:  # it is fenced by now
                return ask(cluster, transactional_id)
            found = ask(cluster, transactional_id)
            while found is not None and found.state == "PrepareCommit":
                found = ask(cluster, transactional_id)
            self.version += 1
            self.driver = begun(sink, batch(self.version, [self.version]), progress=True)
            return found

        monkeypatch.setattr(Cluster, "find_transaction", asked)


async def test_a_zombie_leaves_the_newer_daemons_transaction_open(
    kafka: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = fresh()
    async with opened(kafka.bootstrap, topic, partitions=1) as (older, _):
        await older.write(batch(1, [1]))
        async with opened(kafka.bootstrap, topic) as (newer, _):
            busy = Busy(newer, monkeypatch)
            broker = broker_of(older)
            places = [(topic, 0), (f"{topic}-progress", 0)]
            broker.settlement.settle_after_commit(broker.cluster, places, 5)
            error = await stopped_by(lambda: older.write(batch(2, [2], name="zombie")))
            assert "taken over by a newer daemon" in str(error)
            assert busy.version > 2, "it has looked"
            assert ids(kafka, topic, stable=True) == list(range(1, busy.version))
            busy.driver.commit()
    rows = events(kafka.bootstrap, topic)
    expected = [(version, "x") for version in range(1, busy.version + 1)]
    assert [(row["id"], row["name"]) for row in rows] == expected


async def test_a_take_over_rolls_back_what_the_older_daemon_is_at(
    kafka: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = fresh()
    async with opened(kafka.bootstrap, topic, partitions=1) as (older, _):
        await older.write(batch(1, [1]))
        busy = Busy(older, monkeypatch)
        async with opened(kafka.bootstrap, topic) as (newer, offset):
            assert position_of(offset) == (busy.version, 0), (
                "what was not committed is written again"
            )
            assert ids(kafka, topic) == list(range(1, busy.version))
            await newer.write(batch(busy.version, [busy.version]))
    assert ids(kafka, topic) == list(range(1, busy.version + 1))


async def test_who_is_fenced_while_it_opens_leaves_the_newer_one_alone(
    kafka: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = fresh()
    async with opened(kafka.bootstrap, topic, partitions=1) as (sink, _):
        await sink.write(batch(1, [1]))
    newest = made(kafka.bootstrap, topic)
    look, seen = Settlement.settle_after_fencing, list[list[int]]()

    def looked(self: Settlement, *arguments: Any) -> None:
        monkeypatch.undo()  # the newest one looks, too
        newest._open_session("orders")
        driver = begun(newest, batch(2, [2]), progress=True)
        look(self, *arguments)
        seen.append(ids(kafka, topic, stable=True))
        driver.commit()

    monkeypatch.setattr(Settlement, "settle_after_fencing", looked)
    sentence = await refused(made(kafka.bootstrap, topic), TransientError)
    assert "Kafka ended the transaction" in sentence
    assert seen == [[1]]
    assert ids(kafka, topic) == [1, 2]
    await newest.aclose()
