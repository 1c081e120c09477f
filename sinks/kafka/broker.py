"""Kafka, as a session needs it: topics, progress, and transactions that are carried out.

:class:`Broker` is what exactly-once delivery asks for, and blocks;
:class:`KafkaBroker` is the one on kafka-python. What is checked beside the writing, whether the
last transaction is over and whether the topics are the same, is in
:mod:`sinks.kafka.background_checks`.
"""

from __future__ import annotations

import json
import time
import typing
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

from sinks.formats.load import load_encoder
from sinks.kafka.background_checks import MarkerCheck, TopicCheck
from sinks.kafka.client.kafka_python import KafkaPythonDriver
from sinks.kafka.cluster import Cluster, Topic
from sinks.kafka.feed_transactions import SeenTopic, TopicTransaction
from sinks.kafka.options import KafkaOptions, fill_topic_name
from sinks.kafka.progress import TopicProgress, parse_progress
from sinks.kafka.settlement import Settlement
from sinks.kafka.topic_writer import EncodedRows, TopicWriter, make_record
from tailer.changes import ChangeBatch, Notice
from tailer.errors import (
    ConfigError,
    RowsRefused,
    TableError,
    TailerError,
    TargetRefused,
)

#: The configuration of a data topic that we create. A record's timestamp is its commit's, and
#: retention by that would delete a table's history as soon as it is written.
_DATA_CONFIG = {"message.timestamp.type": "LogAppendTime"}
#: That of a progress topic: small segments, so that it stays short.
_PROGRESS_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 * 1024 * 1024),
    "min.cleanable.dirty.ratio": "0.1",
}


class Broker(typing.Protocol):
    """What :class:`sinks.kafka.exactly_once.ExactlyOnce` needs of Kafka. All of it blocks.

    Raises :class:`TransientError` for what may pass, among them :class:`Fenced`, and
    :class:`SinkRejected` for what does not.
    """

    def prepare_progress_topic(self) -> None:
        """Create the progress topic if need be. Raise if the brokers can't keep the feed's
        progress, or transactions as long as ours."""

    def connect(self, data_topic: str | None) -> None:
        """Make the producer; ``data_topic`` is the topic that it will write to, if it is known."""

    def fence_producers(self, written: Collection[str]) -> None:
        """Keep every older producer of the feed from writing, and end what it left open.
        ``written`` are the topics that its transactions may have written to."""

    def read_progress(self, *, stable: bool = False) -> TopicProgress | None:
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

    def run(self, transaction: TopicTransaction, rows: Sequence[tuple[str, EncodedRows]]) -> None:
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
        self.markers = MarkerCheck(self.cluster, settlement, self._patience_s)
        self._topic_check = TopicCheck(self.cluster, feed)

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

    def prepare_progress_topic(self) -> None:
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

    def read_progress(self, *, stable: bool = False) -> TopicProgress | None:
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

    def run(self, transaction: TopicTransaction, rows: Sequence[tuple[str, EncodedRows]]) -> None:
        self.markers.wait()
        self.driver.begin_transaction()
        try:
            if rows:
                self._topic_check.begin(self.find_topic_ids())
            for name, encoded in rows:
                self._writers[name].write(encoded)
            if transaction.notice is not None:
                self._send_notice(transaction.notice)
        except (RowsRefused, TableError):
            self.driver.abort()
            self.markers.begin(self.driver.written_partitions)
            raise
        self._send_progress(transaction.after)
        self._topic_check.finish(self.driver, self.find_topic_ids())
        self.driver.commit()
        self.markers.begin(self.driver.written_partitions)

    def write(self, rows: Sequence[tuple[str, EncodedRows]]) -> None:
        """Write rows without a transaction; durable when this returns."""
        self._topic_check.begin(self.find_topic_ids())
        for name, encoded in rows:
            self._writers[name].write(encoded)
        self.driver.flush()
        self._topic_check.finish(self.driver, self.find_topic_ids())

    def announce(self, notice: Notice) -> None:
        """Write a notice without a transaction; durable when this returns."""
        self._send_notice(notice)
        self.driver.flush()

    def close(self) -> None:
        self._encoding.shutdown(wait=False, cancel_futures=True)
        self.markers.close()
        self._topic_check.close()
        with suppress(TailerError):
            if self._driver is not None:
                self._driver.close()
        with suppress(TailerError):
            self.cluster.close()

    def _send_progress(self, progress: TopicProgress) -> None:
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
