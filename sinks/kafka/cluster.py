"""What the brokers know: topics, their limits and ends, and the last record of a key.

Uses kafka-python's public API: these are few requests, at a feed's start.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition, errors
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import AuthorizationError, NoError, UnknownTopicOrPartitionError, for_code

from sinks.kafka import topic_admin
from sinks.kafka.client import producer_internals
from sinks.kafka.client.failures import connect_client, translate_errors
from sinks.kafka.client.settings import client_settings
from sinks.kafka.options import KafkaOptions
from sinks.messages.messages import parse_limit
from tailer.errors import SinkRejected, TailerError, TransientError
from tailer.network.backoff import Backoff, call_with_retries

#: The broker's default, for clusters whose configuration may not be read or says nonsense.
_MESSAGE_BYTES = 1_048_588
#: The settings of a topic that are needed.
_LIMITS = "max.message.bytes", "cleanup.policy"
_EARLIEST, _LATEST = -2, -1
_READ_UNCOMMITTED, _READ_COMMITTED = 0, 1
#: Records are searched from a topic's end, in steps that grow by this factor.
_FIRST_STEP, _STEP_FACTOR = 256, 16
_POLL_MS = 200

#: A partition: its topic's name and its number.
Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic: ``id`` changes when it is deleted and created again (empty before Kafka 2.8)."""

    name: str
    id: str
    partitions: int
    max_message_bytes: int
    cleanup_policy: str


@dataclass(frozen=True, slots=True)
class LastRecord:
    """The last committed record of a key, and its offset in its partition."""

    offset: int
    value: bytes | None


@dataclass(frozen=True, slots=True)
class TransactionStatus:
    """A producer's last transaction, from its coordinator: Kafka's name of its state, and the
    epoch, which each fencing increases."""

    producer_id: int
    producer_epoch: int
    state: str


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A producer's transaction in one partition that has no marker yet, and its first offset."""

    topic: str
    partition: int
    start: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int


class Cluster:
    """A connection for queries. Blocking. Raises :class:`TransientError` while no broker answers,
    :class:`SinkRejected` if one refuses."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._settings = client_settings(options)
        self._admin: Any = connect_client(
            lambda **how: KafkaAdminClient(**self._settings, **how), options
        )

    def close(self) -> None:
        """Close the connection."""
        with translate_errors("closing a connection"):
            self._admin.close()

    def find_topic(self, name: str) -> Topic | None:
        """Return the topic of that name, or None if there is none."""
        with translate_errors(f"describing the topic {name}"):
            description = self._admin.describe_topics([name])[0]
            error = for_code(description["error_code"])
            if error is UnknownTopicOrPartitionError:
                return None
            if error is not NoError:
                raise error
        limits = self._find_limits(name)
        return Topic(
            name,
            str(description["topic_id"] or ""),
            len(description["partitions"]),
            parse_limit(limits.get("max.message.bytes"), _MESSAGE_BYTES),
            limits.get("cleanup.policy", ""),
        )

    def find_topic_ids(self, names: Collection[str]) -> dict[str, str]:
        """Return the ids of those topics that are there: see :class:`Topic`."""
        with translate_errors(f"describing the topics {', '.join(names)}"):
            descriptions = self._admin.describe_topics(list(names)) if names else []
        return {
            topic["name"]: str(topic["topic_id"] or "")
            for topic in descriptions
            if not topic["error_code"]
        }

    def _find_limits(self, name: str) -> dict[str, str]:
        asked = ConfigResource(ConfigResourceType.TOPIC, name, dict.fromkeys(_LIMITS))
        try:
            with translate_errors(f"reading the configuration of the topic {name}"):
                answer = self._admin.describe_configs([asked], config_filter="all")
        except SinkRejected as e:
            if isinstance(e.__cause__, AuthorizationError):
                return {}  # a cluster may hide its configuration
            raise
        entries = answer.get("topic", {}).get(name, {})
        return {key: str(entry["value"]) for key, entry in entries.items()}

    def create_topic(self, name: str, partitions: int, config: dict[str, str]) -> Topic:
        """Create a topic and wait until it can be written; a topic that another process creates
        meanwhile is used as it is. Raises :class:`ConfigError` if no broker allows it."""
        with translate_errors(f"creating the topic {name}"):
            asked = topic_admin.NewTopic(name, partitions, config)
            topic_admin.create_topic(self._admin, asked)
            self._admin.wait_for_topics([name])

        def find_created() -> Topic:
            topic = self.find_topic(name)
            if topic is None:  # some brokers know it before others
                raise _NotThereYet(f"the topic {name} was created and is not there yet")
            return topic

        return call_with_retries(
            find_created, _NotThereYet, self._options.request_timeout_ms / 1000, _make_backoff()
        )

    def check_topic_creation(self, name: str, partitions: int, config: dict[str, str]) -> None:
        """Ask whether :meth:`create` would succeed; raise the error that it would."""
        with translate_errors(f"creating the topic {name}"):
            asked = topic_admin.NewTopic(name, partitions, config)
            topic_admin.create_topic(self._admin, asked, only_validate=True)

    def find_transaction_ms_max(self) -> int | None:
        """Return the longest transaction time that the brokers allow; None if we may not know."""
        try:
            with translate_errors("reading the configuration of a broker"):
                return topic_admin.find_transaction_ms_max(self._admin)
        except TailerError:  # not needed: the brokers refuse a time that is too long
            return None

    def find_end_offsets(self, topic: Topic) -> list[int]:
        """Return the offset after the last record of each partition, committed or not."""
        return self._find_offsets(topic.name, range(topic.partitions), _LATEST)

    def _find_offset(self, topic: str, partition: int, which: int, *, stable: bool = False) -> int:
        return self._find_offsets(topic, [partition], which, stable=stable)[0]

    def _find_offsets(
        self, topic: str, partitions: Iterable[int], which: int, *, stable: bool = False
    ) -> list[int]:
        places = [TopicPartition(topic, partition) for partition in partitions]
        isolation = _READ_COMMITTED if stable else _READ_UNCOMMITTED
        with translate_errors(f"asking for the offsets of the topic {topic}"):
            answers = self._admin.list_partition_offsets(dict.fromkeys(places, which), isolation)
            return [int(answers[place].offset) for place in places]

    def find_transaction(self, transactional_id: str) -> TransactionStatus | None:
        """Return a producer's last transaction; None if it has none, or we may not know."""
        moving = (
            errors.CoordinatorNotAvailableError,
            errors.CoordinatorLoadInProgressError,
            errors.NotCoordinatorError,
        )

        def describe_transaction() -> TransactionStatus | None:
            try:
                one = self._admin.describe_transactions([transactional_id])[transactional_id]
            except (errors.TransactionalIdNotFoundError, *_list_refusal_errors()):
                return None
            except Exception:
                producer_internals.forget_coordinators(self._admin)
                raise
            return TransactionStatus(one.producer_id, one.producer_epoch, str(one.state.value))

        with translate_errors(f"describing the transactions of {transactional_id}"):
            return call_with_retries(
                describe_transaction,
                moving,
                self._options.delivery_timeout_ms / 1000,
                _make_backoff(),
            )

    def find_partitions(self, topics: Collection[str]) -> list[Partition]:
        """Return the partitions of the existing topics among these.

        Raises :class:`TransientError` while a partition has no leader to query.
        """
        places: list[Partition] = []
        with translate_errors(f"describing the topics {', '.join(topics)}"):
            for topic in self._admin.describe_topics(list(topics)) if topics else []:
                name, error = topic["name"], for_code(topic["error_code"])
                if error is UnknownTopicOrPartitionError:
                    continue
                if error is not NoError:
                    raise error(name)
                for partition in topic["partitions"]:
                    number = partition["partition_index"]
                    if partition["leader_id"] < 0:
                        raise TransientError(f"partition {number} of {name} has no leader")
                    places.append((name, number))
        return places

    def find_open_transactions(
        self, places: Collection[Partition], producer_id: int | None = None
    ) -> list[OpenTransaction]:
        """Return the open transactions of a producer, or of all, in those partitions; none if we
        may not know."""
        asked = [TopicPartition(topic, number) for topic, number in sorted(places)]
        moves = errors.NotLeaderForPartitionError  # the partition of a new topic, or one that moves
        patience_s = self._options.request_timeout_ms / 1000
        with translate_errors(f"describing the producers of {_format_topics(places)}"):
            try:
                ask = partial(self._admin.describe_producers, asked)
                by_partition = (
                    call_with_retries(ask, moves, patience_s, _make_backoff()) if asked else {}
                )
            except _list_refusal_errors():
                return []
        return [
            OpenTransaction(
                topic=place.topic,
                partition=place.partition,
                start=each.current_transaction_start_offset,
                producer_id=each.producer_id,
                producer_epoch=each.producer_epoch,
                coordinator_epoch=each.coordinator_epoch,
            )
            for place, producers in sorted(by_partition.items())
            for each in producers.active_producers
            if each.current_transaction_start_offset >= 0
            and producer_id in (None, each.producer_id)
        ]

    def end_transaction(self, transaction: OpenTransaction, *, committed: bool) -> None:
        """Write the marker that ends a transaction in a partition. Its coordinator must already
        have that outcome. Raises :class:`SinkRejected` if we may not write markers."""
        place = f"partition {transaction.partition} of {transaction.topic}"
        with translate_errors(f"ending the transaction that hangs in {place}"):
            producer_internals.write_marker(
                self._admin,
                transaction.topic,
                transaction.partition,
                (transaction.producer_id, transaction.producer_epoch),
                max(transaction.coordinator_epoch, 0),
                committed=committed,
            )

    def find_last_record(
        self, topic: str, key: bytes, *, stable: bool = False
    ) -> LastRecord | None:
        """Return the last committed record with that key in a topic of one partition.

        Everything up to the topic's present end counts. If other producers have open transactions
        before that end, this waits for them, and raises :class:`TransientError` if one stays open
        longer than our own transactions may. With ``stable``, only records before every open
        transaction count, and it does not wait.
        """
        end = self._find_offset(topic, 0, _LATEST, stable=stable)
        beginning = self._find_offset(topic, 0, _EARLIEST)
        start, step = end, _FIRST_STEP
        while start > beginning:
            stop, start = start, max(beginning, start - step)
            step *= _STEP_FACTOR
            record = self._scan_for_key(topic, start, stop, key)
            if record is not None:
                return record
        return None

    def _scan_for_key(self, topic: str, start: int, stop: int, key: bytes) -> LastRecord | None:
        """Return the last committed record with the key from ``start`` to before ``stop``."""
        place = TopicPartition(topic, 0)
        newest, position = None, start
        give_up = time.monotonic() + self._options.transaction_timeout_ms / 1000 + 10
        consumer = self._open_consumer(place, position)
        try:
            while position < stop:
                with translate_errors(f"reading the topic {topic}"):
                    for record in consumer.poll(_POLL_MS).get(place, ()):
                        if record.offset < stop and record.key == key:
                            newest = LastRecord(record.offset, record.value)
                    reached = consumer.position(place, _POLL_MS)
                position = position if reached is None else reached
                if time.monotonic() > give_up:
                    raise TransientError(self._describe_standstill(topic, position))
        finally:
            consumer.close()
        return newest

    def _describe_standstill(self, topic: str, position: int) -> str:
        """Return why readers of committed records do not advance."""
        said = f"the topic {topic} can't be read beyond offset {position}: "
        for each in self.find_open_transactions([(topic, 0)]):
            if each.start <= position:
                return said + (
                    f"the transaction of producer id {each.producer_id} is open there; end it, or "
                    "wait for its time-out; if its coordinator believes that it has ended "
                    "(kafka-transactions.sh find-hanging), start its feed again, which ends it, or "
                    f"use kafka-transactions.sh abort --topic {topic} --partition "
                    f"{each.partition} --start-offset {each.start}"
                )
        return said + "another producer's transaction is open there"

    def _open_consumer(self, place: Any, position: int) -> Any:
        consumer: Any = connect_client(
            lambda **how: KafkaConsumer(
                **self._settings,
                **how,
                group_id=None,
                enable_auto_commit=False,
                isolation_level="read_committed",
                auto_offset_reset="earliest",
                retry_backoff_ms=20,
            ),
            self._options,
        )
        consumer.assign([place])
        consumer.seek(place, position)
        return consumer


class _NotThereYet(TransientError):
    """A new topic is not known to every broker yet."""


def _make_backoff() -> Backoff:
    return Backoff(0.05, 0.2)


def _format_topics(places: Collection[Partition]) -> str:
    return ", ".join(sorted({topic for topic, _ in places}))


def _list_refusal_errors() -> tuple[type[Exception], ...]:
    """Return the errors of a broker that is too old to answer, or that refuses to answer us."""
    return (
        errors.AuthorizationError,
        errors.IncompatibleBrokerVersion,
        errors.UnsupportedVersionError,
    )
