"""A broker loses the marker that ends a transaction: the session that comes next writes it.

Kafka 4.x leaves out the marker of a partition that has no leader at that moment, and calls
the transaction complete all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import anyio
import pytest
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # it lists no __all__

from sinks.kafka.cluster import Cluster
from sinks.kafka.sink import KafkaSink
from tailer.errors import SinkRejected, TransientError
from tests.kafka.broker import Broker
from tests.kafka.brokers import Brokers
from tests.kafka.sinks import batch, begun, fresh, made, opened, refused
from tests.kafka.topics import admin, events
from tests.support.feeds import position_of
from tests.support.waiting import eventually, eventually_async

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(600)]
IMPATIENT: dict[str, Any] = {
    "delivery_timeout_ms": 4_000,
}


@pytest.fixture
def apart(brokers: Brokers) -> Iterator[tuple[str, Broker]]:
    """A topic on a broker that has neither its progress nor the transactions, and that broker."""
    topic = fresh()
    client = admin(brokers.bootstrap)
    eventually(lambda: was_opened(brokers.bootstrap))  # so that there is a coordinator
    coordinator = brokers.leader("__transaction_state")
    other = next(broker for broker in brokers if broker is not coordinator)
    for name, place, policy in (
        (topic, other.node, "delete"),
        (f"{topic}-progress", coordinator.node, "compact"),
    ):
        config = {"min.insync.replicas": "1", "cleanup.policy": policy}
        asked = NewTopic(name, 1, replica_assignment=[[place]], config=config)
        client.create_topics([asked])[name].result(20)
    yield topic, other
    if other.process is None or other.process.poll() is not None:
        other.start()
    brokers.wait_until_in_sync()


def was_opened(bootstrap: str) -> bool:
    """Open a feed; as a feed does, try again where some brokers do not know a new topic yet."""

    async def open_and_close() -> None:
        async with opened(bootstrap, fresh("warm"), "warm"):
            pass

    try:
        anyio.run(open_and_close)
    except TransientError:
        return False
    return True


def without_leader(brokers: Brokers, topic: str, broker: Broker) -> None:
    """Kill a topic's only broker, and wait until the cluster knows."""
    broker.kill()
    client = admin(brokers.bootstrap)

    def no_leader() -> bool:
        return client.list_topics(timeout=100).topics[topic].partitions[0].leader < 0

    eventually(no_leader, why=f"{topic} has a leader")


async def commits_without_marker(
    sink: KafkaSink, brokers: Brokers, topic: str, broker: Broker
) -> None:
    """Write versions 1 and 2; the marker of the second one's transaction is lost."""
    await sink.write(batch(1, [1]))
    driver = begun(sink, batch(2, [2]), progress=True)
    without_leader(brokers, topic, broker)
    driver.commit()  # Kafka says that it is done


def ids(brokers: Brokers, topic: str) -> list[int]:
    """What readers of committed records see, up to where they get."""
    return [row["id"] for row in events(brokers.bootstrap, topic, stable=True)]


async def test_what_was_committed_is_seen(brokers: Brokers, apart: tuple[str, Broker]) -> None:
    topic, broker = apart
    async with opened(brokers.bootstrap, topic) as (sink, _):
        await commits_without_marker(sink, brokers, topic, broker)
    brokers.start_again(broker)
    assert ids(brokers, topic) == [1], "and yet nobody sees it"
    async with opened(brokers.bootstrap, topic) as (sink, offset):
        assert position_of(offset) == (3, 0)
        assert ids(brokers, topic) == [1, 2]
        await sink.write(batch(3, [3]))
    assert ids(brokers, topic) == [1, 2, 3]


async def test_a_daemon_that_goes_on_sees_it(
    brokers: Brokers, apart: tuple[str, Broker], caplog: pytest.LogCaptureFixture
) -> None:
    topic, broker = apart
    async with opened(brokers.bootstrap, topic) as (sink, _):
        await commits_without_marker(sink, brokers, topic, broker)
        brokers.start_again(broker)
        begun(sink, batch(3, [3]))
        assert ids(brokers, topic) == [1, 2]
        assert position_of(await sink.open("orders")) == (3, 0)
        assert ids(brokers, topic) == [1, 2], "what is rolled back takes nothing with it"
        await sink.write(batch(3, [3]))
        assert ids(brokers, topic) == [1, 2, 3]
    assert f"partition 0 of {topic} is open from offset 2" in caplog.text
    assert "it is committed now" in caplog.text


async def test_it_is_seen_when_nothing_comes_after_it(
    brokers: Brokers, apart: tuple[str, Broker]
) -> None:
    topic, broker = apart
    async with opened(brokers.bootstrap, topic) as (sink, _):
        await commits_without_marker(sink, brokers, topic, broker)
        brokers.start_again(broker)
        await eventually_async(lambda: ids(brokers, topic) == [1, 2], why="both rows are there")


async def test_no_transaction_begins_before_the_last_one_is_over(
    brokers: Brokers, apart: tuple[str, Broker]
) -> None:
    topic, broker = apart
    async with opened(brokers.bootstrap, topic, **IMPATIENT) as (sink, _):
        await commits_without_marker(sink, brokers, topic, broker)
        with pytest.raises(TransientError, match="is over in all partitions"):
            await sink.write(batch(3, [3]))
        brokers.start_again(broker)
        assert position_of(await sink.open("orders")) == (3, 0)
        await sink.write(batch(3, [3]))
    assert ids(brokers, topic) == [1, 2, 3]


async def test_what_was_rolled_back_holds_nobody_up(
    brokers: Brokers, apart: tuple[str, Broker]
) -> None:
    topic, broker = apart
    async with opened(brokers.bootstrap, topic, **IMPATIENT) as (sink, _):
        await sink.write(batch(1, [1]))
        begun(sink, batch(2, [2]))
        without_leader(brokers, topic, broker)
        with pytest.raises(TransientError):
            await sink.open("orders")  # its fencing rolls back, and the marker is lost
        brokers.start_again(broker)
        stranger = made(brokers.bootstrap, topic, **IMPATIENT)
        sentence = await refused(stranger, SinkRejected)
        assert "has lost the outcome of a transaction" in sentence
        assert f"partition 0 of {topic} is open from offset 2" in sentence
        assert position_of(await sink.open("orders")) == (2, 0), "who fenced knows how it ended"
        await sink.write(batch(2, [2]))
    assert ids(brokers, topic) == [1, 2]


def test_a_leader_that_does_not_lead_yet_is_asked_again(
    brokers: Brokers, apart: tuple[str, Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, leader = apart
    taken_for_it = [broker.node for broker in brokers if broker is not leader]
    with closing(Cluster(made(brokers.bootstrap, topic).options)) as cluster:
        leaders = cluster._admin._async_get_leader_for_partitions

        async def at_first_others(places: set[Any]) -> Any:
            return {taken_for_it.pop(): places} if taken_for_it else await leaders(places)

        monkeypatch.setattr(cluster._admin, "_async_get_leader_for_partitions", at_first_others)
        assert cluster.find_open_transactions([(topic, 0)]) == []
    assert taken_for_it == []
