"""The producer, on kafka-python: whole record batches, made by columns.

The client underneath still handles sequence numbers, transactions, retries and compression. All of
it blocks, so it runs in a worker thread; calls never overlap, but for those that only pack records.
Errors are raised as :class:`TransientError` or :class:`SinkRejected`, of options as
:class:`ConfigError`. After any error the producer's state is unknown:
it is dropped, and a new one is created.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
from kafka import KafkaProducer, codec
from kafka.errors import KafkaTimeoutError

from sinks.kafka.client import producer_internals
from sinks.kafka.client.failures import connect_client, translate_errors
from sinks.kafka.client.record_batch import Body, build_record_batches, split_by_bytes
from sinks.kafka.client.settings import client_settings
from sinks.kafka.options import LINGER_MS, KafkaOptions
from tailer.errors import ConfigError, TransientError
from tailer.native import rowbytes
from tailer.sink.encoder import Records

#: Records in the form in which they are sent: those of one batch, which is full except at the end
#: of what they were made of.
Packed: TypeAlias = Body | Records

#: How soon a transaction's next request is tried again; with the default, every commit would take
#: 100 ms.
_RETRY_BACKOFF_MS = 5
_REQUEST_BATCHES = 8
#: The most bytes that are not acknowledged yet.
_IN_FLIGHT_BYTES = 32 * 1024 * 1024
#: Smaller buffers are not kept to be used again: to make one larger copies it.
_SPARE_BYTES_MIN = 128 * 1024


@dataclass(slots=True)
class _Sent:
    """A batch being sent: how to wait for it, its bytes, and the buffer that has them, if it is
    ours."""

    future: Any
    size: int
    topic: str
    partition: int
    count: int
    buffer: bytearray | None = None


class KafkaPythonDriver:
    """An idempotent producer (acks=all); with a transactional id, a transactional one."""

    def __init__(self, options: KafkaOptions, transactional_id: str | None) -> None:
        _check_compression(options.compression)
        self._options = options
        self._batch_bytes = options.batch_bytes
        self._patience_s = options.delivery_timeout_ms / 1000
        settings = client_settings(options) | {
            "acks": "all",
            "enable_idempotence": True,
            "compression_type": None if options.compression == "none" else options.compression,
            "batch_size": options.batch_bytes,
            "max_request_size": max(options.batch_bytes * _REQUEST_BATCHES, 1024 * 1024),
            "linger_ms": LINGER_MS,
            "delivery_timeout_ms": options.delivery_timeout_ms,
            "max_block_ms": options.delivery_timeout_ms,
            "retry_backoff_ms": _RETRY_BACKOFF_MS,
            "metrics_enabled": False,
        }
        if transactional_id is not None:
            settings["transactional_id"] = transactional_id
            settings["transaction_timeout_ms"] = options.transaction_timeout_ms
        self._producer: Any = connect_client(
            lambda **how: KafkaProducer(**settings, **how), options
        )
        producer_internals.stay_fenced(self._producer)
        #: Whether whole batches are sent, which needs the compiled encoder; else record by record.
        self.by_batches = rowbytes.native is not None and producer_internals.has_known_internals(
            self._producer
        )
        self._sent: deque[_Sent] = deque()
        self._sent_bytes = 0
        self._spare: list[bytearray] = []
        self._topics: set[str] = set()
        #: The partitions that the last transaction has written to.
        self.written_partitions: set[tuple[str, int]] = set()
        #: The offsets after what was acknowledged, by partition.
        self._ends: dict[tuple[str, int], int] = {}
        #: Whether records were stored at a lower offset than others before them in their partition,
        #: as in a topic that was made again. Only what was flushed counts.
        self.went_back = False

    def init_transactions(self) -> None:
        """Fence every older producer of this transactional id, and end what it left open."""
        with translate_errors("beginning as the one producer of its transactional id"):
            self._producer.init_transactions()

    def begin_transaction(self) -> None:
        """Begin a transaction."""
        self.written_partitions = set()
        with translate_errors("beginning a transaction"):
            self._producer.begin_transaction()

    def pack_records(self, records: Records, places: pa.Int64Array | None = None) -> list[Packed]:
        """Return records, in order, as they are sent, ignoring their ``partitions``. With
        ``places`` (int64), only those at these places. It may be called at any time, from several
        threads."""
        if not self.by_batches:
            return list(
                split_by_bytes(
                    records if places is None else records.take(places), self._batch_bytes
                )
            )
        return list(
            build_record_batches(records, self._batch_bytes, places, self._take_spare_buffer)
        )

    def send(self, topic: str, partition: int, packed: Packed) -> None:
        """Send what was packed, once, to one partition. Returns when it is being sent; before that,
        waits while too many bytes are being sent."""
        self.written_partitions.add((topic, partition))
        with translate_errors(f"writing to the topic {topic}"):
            if topic not in self._topics:
                self._producer.partitions_for(topic)  # the sender needs to know its leader
                self._topics.add(topic)
            if isinstance(packed, Records):
                self._send_each(topic, partition, packed)
                return
            size = len(packed.buffer)
            self._limit_bytes_in_flight(_IN_FLIGHT_BYTES - size)
            future = producer_internals.append_batch(
                self._producer,
                topic,
                partition,
                packed.buffer,
                packed.num_records,
                (packed.timestamp_ms, packed.timestamp_ms_max),
            )
            self._note_sent_batch(
                _Sent(future, size, topic, partition, packed.num_records, packed.buffer)
            )

    def send_records(self, topic: str, partition: int, records: Records) -> None:
        """Send records, in order, to one partition."""
        for packed in self.pack_records(records):
            self.send(topic, partition, packed)

    def _take_spare_buffer(self) -> bytearray | None:
        """Return the buffer of a batch that was written, if there is one."""
        try:
            return self._spare.pop()
        except IndexError:  # other threads take from it too
            return None

    def _send_each(self, topic: str, partition: int, records: Records) -> None:
        keys, values = records.keys, records.whole_values()
        columns = [
            (name, value if isinstance(value, bytes) else value.cast("binary"))
            for name, value in records.whole_headers()
        ]
        times = records.timestamp_ms
        for i in range(records.num_records):
            headers = [
                (name, value if isinstance(value, bytes) else value[i].as_py())
                for name, value in columns
            ]
            key, value = None if keys is None else keys[i].as_py(), values[i].as_py()
            size = len(key or b"") + len(value or b"")
            self._limit_bytes_in_flight(_IN_FLIGHT_BYTES - size)
            future = self._producer.send(
                topic,
                value,
                key,
                [(name, text) for name, text in headers if text is not None],
                partition,
                times if isinstance(times, int) else times[i].as_py(),
            )
            self._note_sent_batch(_Sent(future, size, topic, partition, 1))

    def _note_sent_batch(self, sent: _Sent) -> None:
        self._sent.append(sent)
        self._sent_bytes += sent.size

    def _limit_bytes_in_flight(self, bytes_max: int) -> None:
        """Wait for the oldest batches until at most ``bytes_max`` bytes are being sent, or none."""
        while self._sent and self._sent_bytes > max(bytes_max, 0):
            sent = self._sent.popleft()
            self._sent_bytes -= sent.size
            # The client gives a batch up after delivery_timeout_ms, and needs a little longer.
            if not self.by_batches:
                self._note_stored_offset(sent, sent.future.get(self._patience_s + 5).offset)
                continue
            if not sent.future.wait(self._patience_s + 5):
                raise TransientError(
                    f"Kafka has not acknowledged a batch for the topic {sent.topic} in "
                    f"{self._patience_s:g} s"
                )
            error = _find_batch_error(sent.future)
            if error is not None:
                raise error
            self._note_stored_offset(sent, sent.future.value[0])
            # Only now: until a batch is acknowledged the client may send its bytes once more.
            if sent.buffer is not None and sent.size >= _SPARE_BYTES_MIN:
                self._spare.append(sent.buffer)

    def _note_stored_offset(self, sent: _Sent, offset: int) -> None:
        """Note at which offset something was stored; a negative one says nothing."""
        place = sent.topic, sent.partition
        if offset >= 0:
            self.went_back = self.went_back or offset < self._ends.get(place, 0)
            self._ends[place] = offset + sent.count

    def _flush_producer(self) -> None:
        """Send everything now: a batch that is not full would wait for more records."""
        try:
            self._producer.flush(self._patience_s + 5)
        except KafkaTimeoutError as e:
            raise TransientError(
                f"Kafka has not acknowledged all batches in {self._patience_s:g} s"
            ) from e

    def flush(self) -> None:
        """Wait until everything sent was acknowledged by all in-sync replicas."""
        with translate_errors("writing"):
            if self.by_batches:
                self._flush_producer()
            self._limit_bytes_in_flight(0)
            while self._sent:  # of no bytes
                self._sent_bytes = 1
                self._limit_bytes_in_flight(0)
            self._sent_bytes = 0

    def commit(self) -> None:
        """Flush and commit. When this returns, the transaction's outcome is decided; readers of
        committed records see it all once its markers are written (:mod:`sinks.kafka.settlement`).
        """
        self.flush()
        with translate_errors("committing a transaction"):
            if self.by_batches:
                done = producer_internals.commit_within(self._producer, self._patience_s)
            else:
                done = _run_within(self._producer.commit_transaction, self._patience_s)
        if not done:
            raise TransientError(
                f"Kafka has not answered in {self._patience_s:g} s whether a transaction is "
                "committed"
            )

    def abort(self) -> None:
        """Roll the transaction back: readers of committed records see nothing of it."""
        # Their buffers too: the client may be sending them still.
        self._sent.clear()
        self._sent_bytes = 0
        with translate_errors("rolling a transaction back"):
            done = _run_within(self._producer.abort_transaction, self._patience_s)
        if not done:
            raise TransientError(
                f"Kafka has not answered in {self._patience_s:g} s whether a transaction is rolled "
                "back"
            )

    def close(self) -> None:
        """Release everything at once; records that were not flushed or committed are dropped."""
        self._sent.clear()
        self._spare.clear()
        with translate_errors("closing the producer"):
            if self.by_batches:
                producer_internals.close_at_once(self._producer)
            else:
                _run_within(lambda: self._producer.close(timeout=0), self._patience_s)


def _check_compression(kind: str) -> None:
    """Raise :class:`ConfigError` if the library for this compression is not installed."""
    if kind != "none" and not getattr(codec, f"has_{kind}")():
        raise ConfigError(
            f"compression = {kind!r} needs a library of its own: install delta-tailer[compression]"
        )


def _find_batch_error(future: Any) -> Exception | None:
    """Return why a batch was not written, or None if it was."""
    if future.failed():
        return future.exception  # type: ignore[no-any-return]
    _, _, error_of_record = future.value
    return None if error_of_record is None else error_of_record(0)


def _run_within(work: Any, seconds: float) -> bool:
    """Return whether a call that may never return has returned in time; its error is raised."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as e:  # noqa: BLE001  # raised again, in the thread that waits
            errors.append(e)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    return not thread.is_alive()
