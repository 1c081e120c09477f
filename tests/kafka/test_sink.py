"""What reaches a topic, and what a sink says of topics and rows that it can't use."""

from __future__ import annotations

import time
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer
from kafka.partitioner.default import murmur2

from sinks.kafka.client import producer_internals
from tailer.changes import ChangeBatch, Offset
from tailer.errors import ConfigError, SinkRejected, TableError, TransientError
from tailer.feed.parking import Parking
from tailer.feed.progress import FeedProgress
from tailer.sink import Sink, make_sink
from tailer.testing.batches import change_batch
from tests.kafka.broker import Broker
from tests.kafka.sinks import SCHEMA, batch, broker_of, fresh, made, opened, refused
from tests.kafka.topics import create_topic, events, read_topic, set_topic_config, topic_config
from tests.support.feeds import position_of
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio
DELIVERIES = pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])


class Recorder(Sink):
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.written: list[ChangeBatch] = []

    async def open(self, feed: str) -> None:
        pass

    async def write(self, batch: ChangeBatch) -> None:
        self.written.append(batch)

    async def aclose(self) -> None:
        pass


async def no_save(offset: Offset) -> None:
    """For a sink that keeps its offset."""


async def test_the_sink_is_found_by_its_name(kafka: Broker, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "bootstrap_servers": kafka.bootstrap,
        "topic": fresh(),
        "delivery": "at-least-once",
    }
    sink = make_sink("kafka", options, tmp_path)
    assert await sink.open("orders") is None
    await sink.aclose()


@pytest.mark.parametrize(
    ("compression", "delivery"),
    [
        ("none", "exactly-once"),
        ("none", "at-least-once"),
        ("gzip", "exactly-once"),
        ("snappy", "at-least-once"),
        ("lz4", "exactly-once"),
        ("zstd", "exactly-once"),
    ],
)
async def test_records_arrive_whole(kafka: Broker, delivery: str, compression: str) -> None:
    topic = fresh()
    rows = [{"id": i, "name": f"größe {i} " * (i % 40)} for i in range(500)]
    rows[7]["_change_type"] = "delete"
    changes = change_batch(SCHEMA, rows, version=3, last=True)
    options: dict[str, Any] = {
        "delivery": delivery,
        "compression": compression,
        "key": ["id"],
        "tombstones": True,
        "partitions": 3,
        "batch_bytes": 4_000,
    }
    async with opened(kafka.bootstrap, topic, **options) as (sink, _):
        await sink.write(changes)
    found = read_topic(kafka.bootstrap, topic)
    values = [event.row for event in found if event.value is not None]
    values.sort(key=lambda row: int(row["id"]))
    assert [(row["id"], row["name"]) for row in values] == [
        (row["id"], row["name"]) for row in rows
    ]
    assert {event.id for event in found if event.value} == set(changes.event_ids().to_pylist())
    (tombstone,) = (event for event in found if event.value is None)
    assert tombstone.key == b'{"id":7}'
    assert tombstone.headers["_change_type"] == b"delete"
    # The same as every Java producer would choose, and kafka-python reads it as librdkafka does.
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=kafka.bootstrap,
        auto_offset_reset="earliest",
        consumer_timeout_ms=PATIENCE_S * 1000,
        group_id=None,
    )
    again = list(islice(consumer, len(found)))
    consumer.close()
    assert {(m.partition, m.offset, m.key, m.value) for m in again} == {
        (event.partition, event.offset, event.key, event.value) for event in found
    }
    assert all(m.partition == (murmur2(m.key) & 0x7FFFFFFF) % 3 for m in again)


async def test_without_private_access_send_does_the_same(
    kafka: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_internals, "has_known_internals", lambda _: False)
    topic = fresh()
    async with opened(kafka.bootstrap, topic, key=["id"], partitions=1) as (sink, _):
        await sink.write(batch(1, range(50)))
        assert not broker_of(sink).driver.by_batches
        await sink.write(batch(2, range(50, 60)))
    found = read_topic(kafka.bootstrap, topic)
    assert [event.row["id"] for event in found] == list(range(60))
    assert found[3].headers["_event_id"] == batch(1, range(50)).event_ids()[3].as_py().encode()


@pytest.mark.usefixtures("compiled")
async def test_this_kafka_python_is_one_whose_insides_are_known(kafka: Broker) -> None:
    async with opened(kafka.bootstrap, fresh()) as (sink, _):
        assert broker_of(sink).driver.by_batches


def test_another_kafka_python_is_not_reached_into(monkeypatch: pytest.MonkeyPatch) -> None:
    import kafka as library

    monkeypatch.setattr(library, "__version__", "3.1.0")
    assert not producer_internals.has_known_internals(object())
    monkeypatch.setattr(library, "__version__", "3.0.12")
    assert not producer_internals.has_known_internals(object())


async def test_a_compression_that_is_not_installed_is_named(
    kafka: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafka.codec.has_zstd", lambda: False)
    sentence = await refused(made(kafka.bootstrap, fresh(), compression="zstd"), ConfigError)
    assert "install delta-tailer[compression]" in sentence


async def test_a_replay_is_the_same_to_the_byte(kafka: Broker) -> None:
    topic = create_topic(kafka.bootstrap, fresh())
    options: dict[str, Any] = {"delivery": "at-least-once", "key": ["id"]}
    for _ in range(2):
        async with opened(kafka.bootstrap, topic, **options) as (sink, offset):
            assert offset is None
            await sink.write(batch(1, range(20)))
    found = [
        (e.key, e.value, sorted(e.headers.items())) for e in read_topic(kafka.bootstrap, topic)
    ]
    assert len(found) == 40
    assert found[:20] == found[20:]


async def test_keys_keep_their_order_and_no_keys_use_all_partitions(kafka: Broker) -> None:
    keyed, unkeyed = fresh(), fresh()
    options: dict[str, Any] = {"partitions": 4, "batch_bytes": 2_000}
    async with opened(kafka.bootstrap, keyed, key=["name"], **options) as (sink, _):
        for version in range(5):
            await sink.write(batch(version, range(version * 100, version * 100 + 100)))
    async with opened(kafka.bootstrap, unkeyed, **options) as (sink, _):
        for version in range(5):
            await sink.write(batch(version, range(version * 100, version * 100 + 100)))
    found = read_topic(kafka.bootstrap, keyed)
    assert len({event.partition for event in found}) == 1, "there is one key"
    assert [event.row["id"] for event in found] == list(range(500))
    spread = read_topic(kafka.bootstrap, unkeyed)
    assert {event.partition for event in spread} == {0, 1, 2, 3}
    for partition in range(4):
        within = [event.row["id"] for event in spread if event.partition == partition]
        assert within == sorted(within)


async def test_a_missing_topic_is_made_for_its_use(kafka: Broker) -> None:
    name = fresh()
    async with opened(kafka.bootstrap, f"{name}.{{feed}}", "fx") as (sink, _):
        await sink.write(batch(1, range(20)))
    found = topic_config(kafka.bootstrap, f"{name}.fx")
    assert found["message.timestamp.type"] == "LogAppendTime"
    assert topic_config(kafka.bootstrap, f"{name}.{{feed}}-progress".replace("{feed}", "fx"))[
        "cleanup.policy"
    ] == "compact"  # fmt: skip
    assert len(events(kafka.bootstrap, f"{name}.fx")) == 20


async def test_a_topic_named_after_the_table_is_known_at_the_first_batch(kafka: Broker) -> None:
    name = fresh()
    options: dict[str, Any] = {"progress_topic": f"{name}-p", "transactional_id": name}
    async with opened(kafka.bootstrap, f"{name}.{{table}}", **options) as (sink, _):
        with pytest.raises(ConfigError, match="the table has none in its metadata"):
            await sink.write(batch(1, [1]))
    options["table"] = "sales"
    async with opened(kafka.bootstrap, f"{name}.{{table}}", **options) as (sink, _):
        await sink.write(batch(1, [1]))
    assert len(events(kafka.bootstrap, f"{name}.sales")) == 1


# --- topics and rows that can't be used


async def test_a_missing_topic_is_named_where_none_may_be_made(kafka: Broker) -> None:
    topic = fresh()
    create_topic(kafka.bootstrap, f"{topic}-progress", cleanup_policy="compact")
    sentence = await refused(made(kafka.bootstrap, topic, create_topics=False), SinkRejected)
    assert f"there is no topic {topic} at {kafka.bootstrap}, and create_topics is false" in sentence


@DELIVERIES
async def test_an_unknown_key_column_is_named_and_the_offset_stays(
    kafka: Broker, delivery: str
) -> None:
    topic = fresh()
    async with opened(kafka.bootstrap, topic, key=["nr"], delivery=delivery) as (sink, _):
        with pytest.raises(TableError, match="the key column 'nr' does not exist"):
            await sink.write(batch(4, [1]))
    async with opened(kafka.bootstrap, topic, key=["id"], delivery=delivery) as (sink, offset):
        assert offset is None
        await sink.write(batch(4, [1]))
    assert len(read_topic(kafka.bootstrap, topic)) == 1


@DELIVERIES
async def test_an_event_that_is_too_large_is_named(kafka: Broker, delivery: str) -> None:
    topic = create_topic(kafka.bootstrap, fresh(), max_message_bytes="5000")
    rows = [{"id": 1, "name": "x"}, {"id": 2, "name": "y" * 6000}, {"id": 3, "name": "z"}]
    changes = change_batch(SCHEMA, rows, version=9, path="part-7.parquet", last=True)
    options: dict[str, Any] = {"delivery": delivery}
    async with opened(kafka.bootstrap, topic, **options) as (sink, _):
        with pytest.raises(SinkRejected) as caught:
            await sink.write(changes)
    sentence = str(caught.value)
    for part in ("version 9", topic, "of 5000 at most", "part-7.parquet", "on_reject = 'park'"):
        assert part in sentence
    assert changes.event_ids()[1].as_py() in sentence
    assert read_topic(kafka.bootstrap, topic) == []


async def test_a_large_event_goes_where_the_topic_takes_it(kafka: Broker) -> None:
    topic = create_topic(kafka.bootstrap, fresh(), max_message_bytes="6000000")
    async with opened(kafka.bootstrap, topic) as (sink, _):
        await sink.write(batch(1, [1], name="n" * 3_000_000))
        await sink.write(batch(2, [2]))
    assert [len(row["name"]) for row in events(kafka.bootstrap, topic)] == [3_000_000, 1]


async def test_an_event_larger_than_all_that_may_be_under_way_goes(
    kafka: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sinks.kafka.client.kafka_python._IN_FLIGHT_BYTES", 1_000_000)
    topic = create_topic(kafka.bootstrap, fresh(), max_message_bytes="6000000")
    async with opened(kafka.bootstrap, topic) as (sink, _):
        await sink.write(batch(1, [1], name="n" * 500_000))
        await sink.write(batch(2, [2], name="n" * 3_000_000))
    assert [row["id"] for row in events(kafka.bootstrap, topic)] == [1, 2]


@DELIVERIES
async def test_what_is_too_large_is_parked_and_the_rest_comes_once(
    kafka: Broker, delivery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transactions before the refused row are committed; its own is rolled back."""
    monkeypatch.setattr("sinks.kafka.feed_transactions._ROWS_MAX", 4)
    topic = create_topic(kafka.bootstrap, fresh(), max_message_bytes="5000")
    rows = [{"id": i, "name": "y" * (6000 if i == 9 else 1)} for i in range(14)]
    changes = change_batch(SCHEMA, rows, version=9, path="part-7.parquet", last=True)
    park, said = Recorder(), list[str]()
    async with opened(kafka.bootstrap, topic, delivery=delivery) as (sink, _):
        once = delivery == "exactly-once"
        parking = Parking(
            sink,
            park,
            FeedProgress("orders", time.time),
            lambda parked: said.append(str(parked)),
        )
        await parking.write(changes, no_save)
        await sink.write(batch(10, [20]))
        offset = await sink.open("orders")
        assert position_of(offset) == ((11, 0) if once else None)
    ids = [row["id"] for row in events(kafka.bootstrap, topic)]
    expected = [*(i for i in range(14) if i != 9), 20]
    assert (ids if once else list(dict.fromkeys(ids))) == expected
    assert [row["id"] for part in park.written for row in part.rows.to_pylist()] == [9]
    assert "too large for the topic" in said[0]


async def test_batches_stay_below_the_topics_limit(kafka: Broker) -> None:
    topic = create_topic(kafka.bootstrap, fresh(), max_message_bytes="3000")
    async with opened(kafka.bootstrap, topic) as (sink, _):
        await sink.write(batch(1, range(400), name="n" * 100))
    assert len(events(kafka.bootstrap, topic)) == 400


async def test_a_compacted_topic_without_keys_is_named(kafka: Broker) -> None:
    topic = create_topic(kafka.bootstrap, fresh(), cleanup_policy="compact")
    async with opened(kafka.bootstrap, topic) as (sink, _):
        with pytest.raises(SinkRejected, match="is the topic compacted"):
            await sink.write(batch(1, [1]))


async def test_a_limit_that_was_lowered_meanwhile_is_named(kafka: Broker) -> None:
    topic = fresh()
    options: dict[str, Any] = {"partitions": 1, "delivery_timeout_ms": 9_000}
    async with opened(kafka.bootstrap, topic, **options) as (sink, _):
        await sink.write(batch(1, [1]))
        set_topic_config(kafka.bootstrap, topic, "max.message.bytes", "2000")
        with pytest.raises((SinkRejected, TransientError)):
            await sink.write(batch(2, range(100), name="n" * 100))
        await sink.open("orders")
        await sink.write(batch(2, range(100), name="n" * 100))
    assert len(events(kafka.bootstrap, topic)) == 101
