"""Three real Kafka brokers that replicate: for tests in which one of them ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Self

from kafka import KafkaAdminClient

from tests.kafka.broker import Broker, kafka_uuid
from tests.kafka.topics import admin
from tests.support.waiting import PATIENCE_S, eventually

#: What makes a cluster lose nothing of what it has acknowledged while one broker is down.
REPLICATED = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    # A follower that is gone is missed soon.
    "replica.lag.time.max.ms": "3000",
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.fetch.timeout.ms": "1000",
}


class Brokers:
    """A cluster of three, each a broker and a controller, with small heaps."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        cluster_id = kafka_uuid()
        self.all = [
            Broker(
                settings={**REPLICATED, **(settings or {})},
                heap="256m",
                node=node,
                cluster_id=cluster_id,
            )
            for node in (1, 2, 3)
        ]
        for broker in self.all:
            broker.voters = [each.voter for each in self.all]

    def __enter__(self) -> Self:
        try:
            for broker in self.all:
                broker.launch()
            for broker in self.all:
                broker.wait_until_it_serves()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all of them and remove their data."""
        for broker in self.all:
            broker.close()

    def __iter__(self) -> Iterator[Broker]:
        return iter(self.all)

    def __getitem__(self, node: int) -> Broker:
        """A broker by its node id."""
        return self.all[node - 1]

    @property
    def bootstrap(self) -> str:
        """The addresses of all of them."""
        return ",".join(broker.bootstrap for broker in self.all)

    def leader(self, topic: str, partition: int = 0) -> Broker:
        """The broker that leads a partition."""
        found = admin(self.bootstrap).list_topics(topic, 10).topics[topic]
        return self[found.partitions[partition].leader]

    def coordinator(self, transactional_id: str) -> Broker:
        """The broker that keeps a producer's transactions."""
        client = KafkaAdminClient(bootstrap_servers=self.bootstrap.split(","))
        try:
            found = client.describe_transactions([transactional_id])[transactional_id]
            return self[found.coordinator_id]
        finally:
            client.close()

    def wait_until_in_sync(self) -> None:
        """Wait until every partition has all of its replicas again, and every broker knows."""
        for broker in self.all:
            why = partial(_out_of_sync, broker)
            eventually(lambda: not why(), PATIENCE_S, why, pause_s=0.1)  # noqa: B023

    def start_again(self, broker: Broker) -> None:
        """Start one that was ended; returns when every broker knows what it leads."""
        broker.start()
        self.wait_until_in_sync()


def _out_of_sync(broker: Broker) -> list[tuple[str | None, int]]:
    """The partitions that lack replicas, as far as this broker knows."""
    client = admin(broker.bootstrap)  # a new one: it knows no other broker that it could ask
    return [
        (topic.topic, number)
        for topic in client.list_topics(timeout=100).topics.values()
        for number, partition in topic.partitions.items()
        if len(partition.isrs) < len(partition.replicas) or partition.leader < 0
    ]
