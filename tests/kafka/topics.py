"""Reading whole topics, quickly, and what a test asks of a broker besides."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it lists no __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from tests.support.waiting import PATIENCE_S, eventually

__all__ = [
    "Event",
    "Reader",
    "admin",
    "create_topic",
    "delete_records",
    "delete_topic",
    "events",
    "read_topic",
    "set_topic_config",
    "topic_config",
]


@dataclass(frozen=True, slots=True)
class Event:
    """One record as a consumer sees it; headers that come once each."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes]
    timestamp_ms: int

    @property
    def id(self) -> str:
        return self.headers["_event_id"].decode()

    @property
    def row(self) -> dict[str, Any]:
        assert self.value is not None
        row: dict[str, Any] = json.loads(self.value)
        return row


class Reader:
    """Reads all partitions of a topic from their beginnings, committed records only if nothing
    else is said."""

    def __init__(
        self, bootstrap: str, topic: str, isolation: str = "read_committed", **settings: Any
    ) -> None:
        self.topic = topic
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "a-test",
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                "check.crcs": True,
                "log_level": 2,  # brokers come and go in these tests
                "fetch.wait.max.ms": 50,
                "reconnect.backoff.max.ms": 500,
                **settings,
            }
        )
        found = self.consumer.list_topics(topic, 10).topics[topic].partitions
        self.partitions = sorted(found)
        self.consumer.assign([TopicPartition(topic, p, 0) for p in self.partitions])
        self.at_end: set[int] = set()

    def poll(self, timeout: float = 0.2) -> Iterator[Event]:
        """What has come; notes which partitions are read to their present end."""
        message: Any  # its methods say None for what a consumed record has
        for message in self.consumer.consume(10_000, timeout):
            error = message.error()
            if error is None:
                self.at_end.discard(message.partition())
                yield Event(
                    message.partition(),
                    message.offset(),
                    message.key(),
                    message.value(),
                    dict(message.headers() or []),
                    message.timestamp()[1],
                )
            elif error.code() == KafkaError._PARTITION_EOF:
                self.at_end.add(message.partition())
            elif not error.retriable() and error.fatal():
                raise KafkaException(error)

    def to_end(self) -> Iterator[Event]:
        """Everything up to the present end of every partition."""
        give_up = time.monotonic() + PATIENCE_S
        while len(self.at_end) < len(self.partitions):
            yield from self.poll()
            assert time.monotonic() < give_up, f"no end of {self.topic} in {PATIENCE_S} s"

    def close(self) -> None:
        self.consumer.close()


def read_topic(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[Event]:
    """All records of a topic, each partition's in order."""
    reader = Reader(bootstrap, topic, isolation)
    try:
        return list(reader.to_end())
    finally:
        reader.close()


def events(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    """The values of a topic's committed records, as rows, in order of partition and offset."""
    found = sorted(read_topic(bootstrap, topic), key=lambda e: (e.partition, e.offset))
    return [event.row for event in found if event.value is not None]


def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})


def create_topic(
    bootstrap: str, topic: str, partitions: int = 1, *, replicas: int = 1, **config: str
) -> str:
    """Make a topic (underscores in ``config`` stand for dots) and return its name."""
    settings = {key.replace("_", "."): value for key, value in config.items()}
    client = admin(bootstrap)  # which must live as long as what it is asked
    made = client.create_topics([NewTopic(topic, partitions, replicas, config=settings)])
    made[topic].result(20)
    return topic


def delete_topic(bootstrap: str, topic: str) -> None:
    """Delete a topic, and wait until it is gone."""
    client = admin(bootstrap)
    client.delete_topics([topic])[topic].result(20)
    eventually(lambda: topic not in client.list_topics(timeout=100).topics, why=f"{topic} is gone")


def topic_config(bootstrap: str, topic: str) -> dict[str, str]:
    """A topic's configuration."""
    client, asked = admin(bootstrap), ConfigResource(ConfigResource.Type.TOPIC, topic)
    found = client.describe_configs([asked])[asked].result(20)
    return {name: entry.value for name, entry in found.items()}


def set_topic_config(bootstrap: str, topic: str, name: str, value: str) -> None:
    """Change one setting of a topic."""
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    asked = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    client = admin(bootstrap)
    client.incremental_alter_configs([asked])[asked].result(20)


def delete_records(bootstrap: str, topic: str) -> None:
    """Cut the first partition of a topic off at its end."""
    client, place = admin(bootstrap), TopicPartition(topic, 0, -1)
    client.delete_records([place])[place].result(20)
