"""Kafka, as a session needs it: topics, progress, and transactions that are carried out.

:class:`Broker` is what exactly-once delivery asks for, and the only part of it that blocks;
:class:`KafkaBroker` is the one on kafka-python. A coordinator that reports a transaction as
committed must still write its marker into each partition, and may lose one (see
:mod:`sinks.kafka.settlement`). The next transaction's records in that partition would then share
the outcome of those before them: if both are rolled back, the earlier records would be lost there
without notice. So a background thread checks the markers while the next batch is read and encoded,
and the next transaction begins only once they are all there.
"""

from __future__ import annotations

import json
import threading
import time
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

from sinks.formats.load import load_encoder
from sinks.kafka.client.kafka_python import KafkaPythonDriver
from sinks.kafka.cluster import Cluster, Topic
from sinks.kafka.feed_transactions import SeenTopic, Transaction
from sinks.kafka.options import KafkaOptions, fill_topic_name
from sinks.kafka.progress import Progress, parse_progress
from sinks.kafka.settlement import Settlement
from sinks.kafka.topic_writer import EncodedRows, TopicWriter, make_record
from tailer.changes import ChangeBatch, Notice
from tailer.errors import (
    ConfigError,
    RowsRefused,
    TableError,
    TailerError,
    TargetRefused,
    TransientError,
)
from tailer.network.backoff import Backoff

#: The configuration of a data topic that we create. A record's timestamp is its commit's, and
#: retention by that would delete a table's history as soon as it is written.
_DATA_CONFIG = {"message.timestamp.type": "LogAppendTime"}
#: That of a progress topic: small segments, so that it stays short.
_PROGRESS_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 * 1024 * 1024),
    "min.cleanable.dirty.ratio": "0.1",
}
#: A backlog of small transactions asks for the topics' ids this often, in seconds.
_TOPIC_CHECK_S = 0.5
#: The pause after a failed check of markers, in seconds; doubled up to the second value.
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.05, 1.0


class Broker(typing.Protocol):
    """What :class:`sinks.kafka.exactly_once.ExactlyOnce` needs of Kafka. All of it blocks.

    Raises :class:`TransientError` for what may pass, among them :class:`Fenced`, and
    :class:`SinkRejected` for what does not.
    """

    def check_brokers(self) -> None:
        """Raise if the brokers can't keep the feed's progress, or transactions as long as ours."""

    def connect(self, data_topic: str | None) -> None:
        """Make the producer; ``data_topic`` is the topic that it will write to, if it is known."""

    def fence_producers(self, written: Collection[str]) -> None:
        """Keep every older producer of the feed from writing, and end what it left open.
        ``written`` are the topics that its transactions may have written to."""

    def read_progress(self, *, stable: bool = False) -> Progress | None:
        """Return the feed's last committed progress, waiting for transactions that are open before
        the end of its topic; with ``stable``, the last one before all of these."""

    def check_notice_topic(self) -> None:
        """Raise if the topic of notices can't be created when one is written."""

    def find_topic(self, name: str) -> SeenTopic | None:
        """Return the data topic of that name, or None."""

    def make_topic(self, name: str) -> SeenTopic:
        """Create a data topic."""

    def open_topic(self, name: str) -> None:
        """Get ready to write to a data topic, which exists."""

    def encode(self, name: str, rows: ChangeBatch) -> EncodedRows:
        """Start to encode rows for an open topic. Does not wait."""

    def run(self, transaction: Transaction, rows: Sequence[tuple[str, EncodedRows]]) -> None:
        """Carry a transaction out, with its rows by their topics. When this returns, it is
        committed. After :class:`RowsRefused` and :class:`TableError` it is rolled back, and after
        any other error its outcome is unknown."""

    def close(self) -> None:
        """Release everything at once. An open transaction stays open until it is fenced."""


class KafkaBroker:
    """See :class:`Broker`. Calls never overlap, except for :meth:`encode`.

    With at-least-once delivery, :meth:`write` and :meth:`announce` take the place of :meth:`run`.
    ``settlement`` is the same for all sessions of a sink. With ``dry_run``, nothing is created.
    """

    def __init__(
        self,
        options: KafkaOptions,
        feed: str,
        settlement: Settlement,
        *,
        dry_run: bool = False,
    ) -> None:
        self.options = options
        self.feed = feed
        if options.notice_topic:
            fill_topic_name(options.notice_topic, feed)  # before anything is written
        self.cluster = Cluster(options)
        self.settlement = settlement
        self.progress_topic = fill_topic_name(options.progress_topic, feed)
        self._dry_run = dry_run
        self._driver: KafkaPythonDriver | None = None
        self._seen: dict[str, Topic] = {}
        self._writers: dict[str, TopicWriter] = {}
        self._batch_bytes = options.batch_bytes
        self._patience_s = options.delivery_timeout_ms / 1000
        self._notices: str | None = None
        self._encoding = ThreadPoolExecutor(1, "kafka-encode")
        self._background = ThreadPoolExecutor(1, "kafka-topics")
        self._marker_threads = ThreadPoolExecutor(1, "kafka-settle")
        self._marker_check: Future[None] | None = None
        self._marker_error: TransientError | None = None
        self._closed = threading.Event()
        self._topic_check: Future[None] | None = None
        self._topics_checked_at = time.monotonic()

    # Topics

    def find_topic(self, name: str) -> SeenTopic | None:
        topic = self.cluster.find_topic(name)
        if topic is None:
            return None
        self._seen[name] = topic
        return SeenTopic(topic.id, any(self.cluster.find_end_offsets(topic)))

    def make_topic(self, name: str) -> SeenTopic:
        topic = self._seen[name] = self._find_or_create_topic(name, -1, _DATA_CONFIG)
        return SeenTopic(topic.id, has_records=False)

    def open_topic(self, name: str) -> None:
        topic = self._seen[name]
        if topic.max_message_bytes < self._batch_bytes:
            raise TargetRefused(
                f"the topic {topic.name} takes batches of {topic.max_message_bytes} bytes at most "
                f"(max.message.bytes), and batch_bytes is {self._batch_bytes}; lower it"
            )
        own = {**self.options.encoder, "name": self.feed, "topic": topic.name}
        encoder = load_encoder(self.options.format, own)
        self._writers[name] = TopicWriter(self.driver, encoder, topic, self._encoding)

    def find_topic_ids(self) -> dict[str, str]:
        """Return the topics that are open, with their ids, where brokers have them."""
        ids = {name: writer.topic.id for name, writer in self._writers.items()}
        return {name: own for name, own in ids.items() if own}

    def check_notice_topic(self) -> None:
        if self.options.notice_topic:
            self._find_or_create_topic(fill_topic_name(self.options.notice_topic, self.feed), 1, {})

    def _find_or_create_topic(self, name: str, partitions: int, config: dict[str, str]) -> Topic:
        topic = self.cluster.find_topic(name)
        if topic is not None:
            return topic
        if not self.options.create_topics:
            raise TargetRefused(
                f"there is no topic {name} at {self.options.bootstrap_servers}, and create_topics "
                "is false; create it"
            )
        if self._dry_run:
            self.cluster.check_topic_creation(name, partitions, config)
            return Topic(name, "", 1, self._batch_bytes, "")
        return self.cluster.create_topic(name, partitions, config)

    # Progress

    def check_brokers(self) -> None:
        topic = self._find_or_create_topic(self.progress_topic, 1, _PROGRESS_CONFIG)
        if topic.partitions != 1 or topic.cleanup_policy not in ("", "compact"):
            raise TargetRefused(
                f"the progress topic {topic.name} has {topic.partitions} partitions and "
                f"cleanup.policy {topic.cleanup_policy}; it must have one and 'compact', or "
                "progress is lost"
            )
        allowed = self.cluster.find_transaction_ms_max()
        if allowed is not None and self.options.transaction_timeout_ms > allowed:
            raise ConfigError(
                f"option 'transaction_timeout_ms' of sink 'kafka' is "
                f"{self.options.transaction_timeout_ms}, and the brokers at "
                f"{self.options.bootstrap_servers} allow {allowed}; lower it"
            )

    def read_progress(self, *, stable: bool = False) -> Progress | None:
        if self._dry_run and self.cluster.find_topic(self.progress_topic) is None:
            return None
        record = self.cluster.find_last_record(
            self.progress_topic, self.feed.encode(), stable=stable
        )
        return parse_progress(record, self.progress_topic, self.feed)

    # Writing

    @property
    def driver(self) -> KafkaPythonDriver:
        """Return the producer, which :meth:`connect` makes."""
        assert self._driver is not None
        return self._driver

    def connect(self, data_topic: str | None) -> None:
        """See :class:`Broker`. Record batches fit the limits of the topic, if it is known."""
        topic = None if data_topic is None else self.cluster.find_topic(data_topic)
        if topic is not None:
            self._batch_bytes = min(self._batch_bytes, topic.max_message_bytes)
        options = replace(self.options, batch_bytes=self._batch_bytes)
        transacts = options.exactly_once and not self._dry_run
        own = self.settlement.transactional_id if transacts else None
        self._driver = KafkaPythonDriver(options, own)

    def fence_producers(self, written: Collection[str]) -> None:
        """See :class:`Broker`. The coordinator forgets how the last transaction ended when a
        producer is fenced, so it is asked before; markers that a broker has lost are written before
        and after."""
        topics = {*written, self.progress_topic}
        if self.options.notice_topic:
            topics.add(fill_topic_name(self.options.notice_topic, self.feed))
        self.settlement.settle_before_fencing(self.cluster, sorted(topics), self._patience_s)
        self.driver.init_transactions()
        self.settlement.settle_after_fencing(self.cluster, sorted(topics), self.progress_topic)

    def encode(self, name: str, rows: ChangeBatch) -> EncodedRows:
        return self._writers[name].encode(rows)

    def run(self, transaction: Transaction, rows: Sequence[tuple[str, EncodedRows]]) -> None:
        self._wait_until_settled()
        self.driver.begin_transaction()
        try:
            if rows:
                self._begin_topic_check()
            for name, encoded in rows:
                self._writers[name].write(encoded)
            if transaction.notice is not None:
                self._send_notice(transaction.notice)
        except (RowsRefused, TableError):
            self._end_transaction(self.driver.abort)
            raise
        self._send_progress(transaction.after)
        self._finish_topic_check()
        self._end_transaction(self.driver.commit)

    def write(self, rows: Sequence[tuple[str, EncodedRows]]) -> None:
        """Write rows without a transaction; durable when this returns."""
        self._begin_topic_check()
        for name, encoded in rows:
            self._writers[name].write(encoded)
        self.driver.flush()
        self._finish_topic_check()

    def announce(self, notice: Notice) -> None:
        """Write a notice without a transaction; durable when this returns."""
        self._send_notice(notice)
        self.driver.flush()

    def close(self) -> None:
        self._closed.set()
        for threads in (self._encoding, self._background, self._marker_threads):
            threads.shutdown(wait=False, cancel_futures=True)
        with suppress(TailerError):
            if self._driver is not None:
                self._driver.close()
        with suppress(TailerError):
            self.cluster.close()

    def _send_progress(self, progress: Progress) -> None:
        now_ms = int(time.time() * 1000)
        record = make_record(self.feed.encode(), progress.to_bytes(), now_ms)
        self.driver.send_records(self.progress_topic, 0, record)

    def _send_notice(self, notice: Notice) -> None:
        if self._notices is None:
            name = fill_topic_name(self.options.notice_topic, self.feed)
            self._notices = self._find_or_create_topic(name, 1, {}).name
        text = json.dumps(notice.to_json(), ensure_ascii=False, separators=(",", ":"))
        record = make_record(self.feed.encode(), text.encode(), notice.timestamp_ms)
        self.driver.send_records(self._notices, 0, record)

    # The markers of the last transaction

    def _end_transaction(self, end: Callable[[], None]) -> None:
        """End the transaction, and begin to check its markers."""
        end()
        self._marker_check = self._marker_threads.submit(
            self._check_markers, self.driver.written_partitions
        )

    def _wait_until_settled(self) -> None:
        if self._marker_check is None:
            return
        try:
            self._marker_check.result(self._patience_s)
        except TimeoutError as e:
            why = f": {self._marker_error}" if self._marker_error is not None else ""
            raise TransientError(
                f"it is not known after {self._patience_s:g} s whether the last transaction of "
                f"{self.settlement.transactional_id} is over in all partitions{why}"
            ) from e
        self._marker_check = None

    def _check_markers(self, written: Collection[tuple[str, int]]) -> None:
        """Check until the outcome is known, however long the brokers are unavailable: readers may
        be stuck."""
        backoff = Backoff(_FIRST_PAUSE_S, _LAST_PAUSE_S)
        while not self._closed.is_set():
            try:
                self.settlement.settle_after_commit(self.cluster, written, self._patience_s)
            except TransientError as e:
                self._marker_error = e
                self._closed.wait(backoff.next_s())
            else:
                self._marker_error = None
                return

    # Topics that are deleted under the session

    def _begin_topic_check(self) -> None:
        """Ask for the topics' ids, while records are sent, unless that was done just now.

        In between, a topic that was made again is known by its offsets, which begin again."""
        topics = self.find_topic_ids()
        if topics and time.monotonic() - self._topics_checked_at >= _TOPIC_CHECK_S:
            self._topic_check = self._background.submit(self._check_topics, topics)

    def _check_topics(self, topics: Mapping[str, str]) -> None:
        self._topics_checked_at = time.monotonic()
        found = self.cluster.find_topic_ids(topics)
        for name, own in topics.items():
            if found.get(name) != own:
                raise TransientError(
                    f"the topic {name} was deleted, or created again, since this session of feed "
                    f"{self.feed!r} was opened; it is opened again"
                )

    def _finish_topic_check(self) -> None:
        """Raise :class:`TransientError` if a topic is another one, or gone: before anything that
        was sent to it counts as delivered."""
        check, self._topic_check = self._topic_check, None
        if check is not None:
            check.result()
            return
        self.driver.flush()
        if self.driver.went_back:
            self._check_topics(self.find_topic_ids())
