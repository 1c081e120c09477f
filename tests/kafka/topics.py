"""Reading whole topics, quickly, and what a test asks of a broker besides."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it lists no __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
)

from tests.support.waiting import PATIENCE_S, eventually


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
        self.bootstrap = bootstrap
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
        #: The partitions that are read to where readers may read at present, with that offset.
        self.at_end: dict[int, int] = {}

    def poll(self, timeout: float = 0.2) -> Iterator[Event]:
        """What has come; notes which partitions are read as far as they can be."""
        message: Any  # its methods say None for what a consumed record has
        for message in self.consumer.consume(10_000, timeout):
            error = message.error()
            if error is None:
                self.at_end.pop(message.partition(), None)
                yield Event(
                    message.partition(),
                    message.offset(),
                    message.key(),
                    message.value(),
                    dict(message.headers() or []),
                    message.timestamp()[1],
                )
            elif error.code() == KafkaError._PARTITION_EOF:
                self.at_end[message.partition()] = message.offset()
            elif not error.retriable() and error.fatal():
                raise KafkaException(error)

    def to_end(self, *, stable: bool = False) -> Iterator[Event]:
        """Everything up to the end that every partition has now; with ``stable``, only up to the
        first open transaction.

        A commit returns before the marker is in every partition, and readers of committed records
        are at an end in front of it until then.
        """
        ends = dict.fromkeys(self.partitions, 0) if stable else self._ends()
        give_up = time.monotonic() + PATIENCE_S
        while any(self.at_end.get(partition, -1) < end for partition, end in ends.items()):
            yield from self.poll()
            assert time.monotonic() < give_up, (
                f"no end of {self.topic} in {PATIENCE_S} s: {self.at_end} of {ends}"
            )

    def _ends(self) -> dict[int, int]:
        """The offset behind the last record of each partition, committed or not."""
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = {TopicPartition(self.topic, p): latest for p in self.partitions}
        client = admin(self.bootstrap)
        found = client.list_offsets(asked, isolation_level=IsolationLevel.READ_UNCOMMITTED)
        return {place.partition: future.result(20).offset for place, future in found.items()}

    def close(self) -> None:
        self.consumer.close()


def read_topic(
    bootstrap: str, topic: str, isolation: str = "read_committed", *, stable: bool = False
) -> list[Event]:
    """All records of a topic, each partition's in order: see :meth:`Reader.to_end`."""
    reader = Reader(bootstrap, topic, isolation)
    try:
        return list(reader.to_end(stable=stable))
    finally:
        reader.close()


def events(bootstrap: str, topic: str, *, stable: bool = False) -> list[dict[str, Any]]:
    """The values of a topic's committed records, as rows, in order of partition and offset."""
    found = read_topic(bootstrap, topic, stable=stable)
    found.sort(key=lambda e: (e.partition, e.offset))
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
