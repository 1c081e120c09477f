"""What the brokers know: topics, their limits and ends, and the last record of a key.

On kafka-python's public API, whichever driver writes: these are few requests, at a feed's start.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from sinks.kafka.failures import connected, raised_as_failures
from sinks.kafka.options import KafkaOptions
from tailer.errors import SinkRejected, TransientError

__all__ = ["Cluster", "LastRecord", "Topic", "client_settings"]

#: The broker's default, for clusters whose configuration may not be read.
_MESSAGE_BYTES = 1_048_588
_EARLIEST, _LATEST = -2, -1
_READ_UNCOMMITTED, _READ_COMMITTED = 0, 1
#: Records are looked for from a topic's end, in steps that grow by this factor.
_FIRST_STEP, _STEP_FACTOR = 256, 16
_POLL_MS = 200
_STALLED_S = 3


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic: ``id`` changes when it is deleted and made again (empty before Kafka 2.8)."""

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


def client_settings(options: KafkaOptions) -> dict[str, Any]:
    """The settings that every client of kafka-python is given."""
    security = options.security
    settings: dict[str, Any] = {
        "bootstrap_servers": [part.strip() for part in options.bootstrap_servers.split(",")],
        "client_id": options.client_id,
        "security_protocol": security.security_protocol,
        "request_timeout_ms": options.request_timeout_ms,
        "reconnect_backoff_ms": 50,
        "reconnect_backoff_max_ms": 1_000,
    }
    if security.tls:
        settings["ssl_check_hostname"] = security.ssl_check_hostname
        for key in ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_password"):
            if getattr(security, key):
                settings[key] = getattr(security, key)
    if security.sasl:
        settings["sasl_mechanism"] = security.sasl_mechanism
        if security.sasl_mechanism == "OAUTHBEARER":
            settings["sasl_oauth_token_provider"] = _token_provider(options)
        else:
            settings["sasl_plain_username"] = security.sasl_username
            settings["sasl_plain_password"] = security.sasl_password
    return settings


def _token_provider(options: KafkaOptions) -> Any:
    from kafka.net.sasl.oauth import AbstractTokenProvider

    tokens = options.security.tokens()

    class Provider(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
        def token(self) -> str:
            return tokens.token()

    return Provider()


class Cluster:
    """A connection for questions. Blocking. Raises :class:`TransientError` while no broker
    answers, :class:`SinkRejected` where one refuses."""

    def __init__(self, options: KafkaOptions) -> None:
        from kafka import KafkaAdminClient

        self._options = options
        self._settings = client_settings(options)
        self._admin: Any = connected(
            lambda **how: KafkaAdminClient(**self._settings, **how), options
        )

    def close(self) -> None:
        """Close the connection."""
        self._admin.close()

    def topic(self, name: str) -> Topic | None:
        """The topic of that name, or None if there is none."""
        from kafka.errors import NoError, UnknownTopicOrPartitionError, for_code

        with raised_as_failures(f"describing the topic {name}"):
            found = self._admin.describe_topics([name])[0]
            error = for_code(found["error_code"])
            if error is UnknownTopicOrPartitionError:
                return None
            if error is not NoError:
                raise error
        limits = self._limits(name)
        return Topic(
            name,
            str(found["topic_id"] or ""),
            len(found["partitions"]),
            int(limits.get("max.message.bytes", _MESSAGE_BYTES)),
            limits.get("cleanup.policy", ""),
        )

    def _limits(self, name: str) -> dict[str, str]:
        from kafka.admin import ConfigResource, ConfigResourceType
        from kafka.errors import AuthorizationError

        asked = ConfigResource(ConfigResourceType.TOPIC, name, None)
        try:
            with raised_as_failures(f"reading the configuration of the topic {name}"):
                answer = self._admin.describe_configs([asked], config_filter="all")
        except SinkRejected as e:
            if isinstance(e.__cause__, AuthorizationError):
                return {}  # a cluster may keep its configuration to itself
            raise
        found = answer.get("topic", {}).get(name, {})
        return {key: str(entry["value"]) for key, entry in found.items()}

    def create(self, name: str, partitions: int, replication: int, config: dict[str, str]) -> Topic:
        """Make a topic and wait until it can be written; one that somebody else makes meanwhile
        is taken as it is."""
        from kafka.errors import TopicAlreadyExistsError

        asked = {
            "num_partitions": partitions,
            "replication_factor": replication,
            "configs": config,
        }
        with raised_as_failures(f"creating the topic {name}"):
            try:
                self._admin.create_topics({name: asked}, wait_for_metadata=True)
            except TopicAlreadyExistsError:
                self._admin.wait_for_topics([name])
        topic = self.topic(name)
        if topic is None:
            raise TransientError(f"the topic {name} was created and is not there yet")
        return topic

    def ends(self, topic: Topic) -> list[int]:
        """The offset behind the last record of each partition, committed or not."""
        return [self._offset(topic.name, p, _LATEST) for p in range(topic.partitions)]

    def _offset(self, topic: str, partition: int, which: int, *, stable: bool = False) -> int:
        from kafka import TopicPartition

        place = TopicPartition(topic, partition)
        isolation = _READ_COMMITTED if stable else _READ_UNCOMMITTED
        with raised_as_failures(f"asking for the offsets of the topic {topic}"):
            found = self._admin.list_partition_offsets({place: which}, isolation)
            return int(found[place].offset)

    def last_record(self, topic: str, key: bytes, *, stable: bool = False) -> LastRecord | None:
        """The last committed record with that key in a topic of one partition.

        Everything up to the topic's present end counts. Where other producers have open
        transactions before it, they are waited for, and it is a :class:`TransientError` if one
        stays open longer than a transaction of ours may. With ``stable``, only what lies before
        every open transaction counts, and nothing is waited for.
        """
        end = self._offset(topic, 0, _LATEST, stable=stable)
        beginning = self._offset(topic, 0, _EARLIEST)
        start, step = end, _FIRST_STEP
        while start > beginning:
            stop, start = start, max(beginning, start - step)
            step *= _STEP_FACTOR
            found = self._scan(topic, start, stop, key)
            if found is not None:
                return found
        return None

    def _scan(self, topic: str, start: int, stop: int, key: bytes) -> LastRecord | None:
        """The last committed record with the key from ``start`` to before ``stop``."""
        from kafka import TopicPartition

        place = TopicPartition(topic, 0)
        found, position = None, start
        now = time.monotonic()
        moved, give_up = now, now + self._options.transaction_timeout_ms / 1000 + 10
        consumer = self._consumer(place, position)
        try:
            while position < stop:
                with raised_as_failures(f"reading the topic {topic}"):
                    for record in consumer.poll(_POLL_MS).get(place, ()):
                        if record.offset < stop and record.key == key:
                            found = LastRecord(record.offset, record.value)
                    before, position = position, consumer.position(place, _STALLED_S * 1000)
                position = before if position is None else position
                now = time.monotonic()
                moved = now if position > before else moved
                if now > give_up:
                    raise TransientError(
                        f"the topic {topic} can't be read beyond offset {position}: another "
                        "producer's transaction is open there; end it, or wait for its time-out"
                    )
                if now > moved + _STALLED_S:
                    # Most likely a transaction is open there. But a consumer has also been seen
                    # to get nothing more after its broker was back; a new one does.
                    consumer.close()
                    consumer, moved = self._consumer(place, position), now
        finally:
            consumer.close()
        return found

    def _consumer(self, place: Any, position: int) -> Any:
        from kafka import KafkaConsumer

        consumer: Any = connected(
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
