"""The driver on librdkafka (confluent-kafka, the extra ``librdkafka``): record by record, in C.

For brokers and users that need librdkafka's own transactions. Partitions are chosen as by the other
driver, so a feed may change from one to the other at any restart.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from sinks.formats.records import Records
from sinks.kafka.client.driver import Packed
from sinks.kafka.client.failures import Fenced, raised_as_failures
from sinks.kafka.client.record_batch import cut
from sinks.kafka.options import KafkaOptions
from tailer.errors import RowsRefused, TransientError

__all__ = ["LibrdkafkaDriver"]

#: How long the client waits for room before its errors are checked again, in seconds.
_ROOM_S = 0.05
#: Delivery errors are checked after this many records.
_POLL_EVERY = 10_000
#: The most that the client allows. The topic's own limit is checked before.
_RECORD_BYTES = 1_000_000_000


class _Aside(logging.LoggerAdapter[logging.Logger]):
    """Where the client's own log goes: it reports each try to connect as an error."""

    def log(self, level: int, msg: object, *args: object, **how: Any) -> None:  # noqa: ARG002
        super().log(logging.DEBUG, msg, *args, **how)


class LibrdkafkaDriver:
    """See :class:`sinks.kafka.client.driver.Driver`."""

    def __init__(self, options: KafkaOptions, transactional_id: str | None) -> None:
        from confluent_kafka import Producer

        self._patience_s = options.delivery_timeout_ms / 1000
        self._batch_bytes = options.batch_bytes
        self._in_flight_bytes = options.in_flight_bytes
        self._failed: list[Any] = []
        self._cause = ""  # the last error
        settings = _settings(options) | {
            "on_delivery": self._delivered,
            "error_cb": self._errored,
        }
        if transactional_id is not None:
            settings["transactional.id"] = transactional_id
            settings["transaction.timeout.ms"] = options.transaction_timeout_ms
            # The client allows no other time-out to be longer than the transaction's.
            for key in ("delivery.timeout.ms", "request.timeout.ms", "socket.timeout.ms"):
                settings[key] = min(settings[key], options.transaction_timeout_ms)
        with raised_as_failures("making a producer"):
            self._producer: Any = Producer(
                settings, logger=_Aside(logging.getLogger("tailer.kafka.librdkafka"))
            )

    def _delivered(self, error: Any, _: Any) -> None:
        """Note a failed delivery; the client reports only failures."""
        if error is not None:
            self._failed.append(error)

    def _errored(self, error: Any) -> None:
        """Note any error; the client recovers from most of them by itself."""
        if not self._cause or error.name() != "_ALL_BROKERS_DOWN":
            self._cause = error.str()
        if error.fatal():
            self._failed.append(error)

    def _check(self) -> None:
        if self._failed:
            from confluent_kafka import KafkaException

            with self._failures("writing"):
                raise KafkaException(self._failed[0])

    @contextmanager
    def _failures(self, doing: str) -> Iterator[None]:
        """Raise errors as :func:`raised_as_failures` does; the client's time-outs lack their
        cause."""
        try:
            with raised_as_failures(doing):
                yield
        except TransientError as e:
            if isinstance(e, Fenced) or not self._cause or self._cause in str(e):
                raise
            raise TransientError(f"{e} ({self._cause})") from e.__cause__

    def init_transactions(self) -> None:
        """See :class:`sinks.kafka.client.driver.Driver`."""
        with self._failures("beginning as the one producer of its transactional id"):
            self._producer.init_transactions(self._patience_s)

    def begin(self) -> None:
        """See :class:`sinks.kafka.client.driver.Driver`."""
        with self._failures("beginning a transaction"):
            self._producer.begin_transaction()

    def pack(self, records: Records, places: pa.Int64Array | None = None) -> list[Packed]:
        """See :class:`sinks.kafka.client.driver.Driver`."""
        return list(cut(records if places is None else records.take(places), self._batch_bytes))

    def send(self, topic: str, partition: int, packed: Packed) -> None:
        """See :class:`sinks.kafka.client.driver.Driver`."""
        assert isinstance(packed, Records)
        records = packed
        count, producer = records.num_records, self._producer
        values = records.whole_values().to_pylist()
        keys = [None] * count if records.keys is None else records.keys.to_pylist()
        headers = _headers(records)
        produce, times = producer.produce, records.timestamp_ms
        stamps = [times] * count if isinstance(times, int) else times.to_pylist()
        with self._failures(f"writing to the topic {topic}"):
            for i in range(count):
                key, value, head, time_ms = keys[i], values[i], headers[i], stamps[i]
                while True:
                    try:
                        produce(topic, value, key, partition, None, timestamp=time_ms, headers=head)
                        break
                    except BufferError:  # as many bytes are being sent as allowed
                        self._wait_for_room(topic, len(key or b"") + len(value or b""))
                if i % _POLL_EVERY == 0:
                    producer.poll(0)
                    self._check()

    def _wait_for_room(self, topic: str, size: int) -> None:
        """Wait until fewer records are being sent: there may be room for one of ``size`` bytes."""
        give_up = time.monotonic() + self._patience_s + 5
        before = len(self._producer)
        if not before:
            raise RowsRefused(
                f"a record of {size} bytes for the topic {topic} is larger than in_flight_bytes, "
                f"{self._in_flight_bytes}, and librdkafka takes none that is: raise it, or use the "
                "driver kafka-python"
            )
        while len(self._producer) >= before:
            self._producer.poll(_ROOM_S)
            self._check()
            if time.monotonic() > give_up:
                raise TransientError(
                    f"Kafka has not acknowledged a batch for the topic {topic} in "
                    f"{self._patience_s:g} s"
                )

    def flush(self) -> None:
        """See :class:`sinks.kafka.client.driver.Driver`."""
        try:
            with self._failures("writing"):
                left = self._producer.flush(self._patience_s + 5)
        except TransientError as e:
            self._check()
            if isinstance(e.__cause__, SystemError):  # so a fatal error comes out of flush()
                raise Fenced("librdkafka's producer has failed for good; it may be fenced") from e
            raise
        self._check()
        if left:
            with self._failures("writing"):
                raise TransientError(
                    f"Kafka has not acknowledged {left} records in {self._patience_s:g} s"
                )

    def went_back(self) -> bool | None:
        """None: librdkafka would need a call for each record to know it."""
        return None

    def commit(self) -> None:
        """See :class:`sinks.kafka.client.driver.Driver`."""
        self.flush()
        with self._failures("committing a transaction"):
            self._producer.commit_transaction(self._patience_s)

    def close(self) -> None:
        """See :class:`sinks.kafka.client.driver.Driver`."""
        with raised_as_failures("closing the producer"):
            self._producer.purge()
            self._producer.close(0)


def _headers(records: Records) -> list[list[tuple[str, bytes]]]:
    """Return each record's headers in the client's form."""
    whole = records.whole_headers()
    columns = [
        [(name, value)] * records.num_records
        if isinstance(value, bytes)
        else [(name, text) for text in value.to_pylist()]
        for name, value in whole
    ]
    lacking = any(value.null_count for _, value in whole if not isinstance(value, bytes))
    if not columns:
        return [[]] * records.num_records
    rows = [list(row) for row in zip(*columns, strict=True)]
    return [[h for h in row if h[1] is not None] for row in rows] if lacking else rows


def _settings(options: KafkaOptions) -> dict[str, Any]:
    security = options.security
    settings: dict[str, Any] = {
        "bootstrap.servers": options.bootstrap_servers,
        "client.id": options.client_id,
        "security.protocol": security.security_protocol,
        "acks": "all",
        "enable.idempotence": True,
        "compression.type": options.compression,
        "batch.size": options.batch_bytes,
        "batch.num.messages": 1_000_000,
        "message.max.bytes": _RECORD_BYTES,
        "linger.ms": options.linger_ms,
        "queue.buffering.max.kbytes": max(1, options.in_flight_bytes // 1024),
        "queue.buffering.max.messages": 0,
        "delivery.timeout.ms": options.delivery_timeout_ms,
        "request.timeout.ms": options.request_timeout_ms,
        "socket.timeout.ms": options.request_timeout_ms,
        "reconnect.backoff.max.ms": 1_000,
        "retry.backoff.ms": 20,
        "delivery.report.only.error": True,
    }
    if security.tls:
        names = {
            "ssl.ca.location": security.ssl_cafile,
            "ssl.certificate.location": security.ssl_certfile,
            "ssl.key.location": security.ssl_keyfile,
            "ssl.key.password": security.ssl_password,
        }
        settings |= {name: value for name, value in names.items() if value}
        settings["ssl.endpoint.identification.algorithm"] = (
            "https" if security.ssl_check_hostname else "none"
        )
    if security.sasl:
        settings["sasl.mechanisms"] = security.sasl_mechanism
        if security.sasl_mechanism == "OAUTHBEARER":
            settings["oauth_cb"] = security.tokens().token_and_expiry
        else:
            settings["sasl.username"] = security.sasl_username
            settings["sasl.password"] = security.sasl_password
    return settings
