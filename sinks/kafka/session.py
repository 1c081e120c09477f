"""One run of a feed's sink, from open to close: what both kinds of delivery share.

The simpler kind, at least once, is here too; the other is in :mod:`sinks.kafka.exactly_once`.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from sinks.formats.load import load_encoder
from sinks.formats.records import Encoder
from sinks.kafka.client.driver import Driver, send_records
from sinks.kafka.client.kafka_python import KafkaPythonDriver
from sinks.kafka.cluster import Cluster, Topic
from sinks.kafka.options import KafkaOptions, topic_name
from sinks.kafka.topic_writer import TopicWriter, single_record
from sinks.shared.encode_ahead import Ahead, Pieces
from tailer.changes import ChangeBatch, Notice, Offset
from tailer.errors import TailerError, TargetRefused, TransientError

__all__ = ["AtLeastOnce", "Session"]

#: A backlog of small transactions asks for the topics' ids this often, in seconds.
_LOOK_S = 0.5

#: The configuration of a data topic that we create. A record's timestamp is its commit's, and
#: retention by that would delete a table's history as soon as it is written.
_DATA_CONFIG = {"message.timestamp.type": "LogAppendTime"}


class Session(ABC):
    """What both kinds of delivery share. Blocking. Calls never overlap, except for
    `prepare`, which may run while a batch is being written."""

    def __init__(
        self, options: KafkaOptions, feed: str, written: Mapping[str, str] | None = None
    ) -> None:
        self.options = options
        #: The topics that earlier sessions have written to, with their ids.
        self.written = dict(written or {})
        self.feed = feed
        if options.notice_topic:
            topic_name(options.notice_topic, feed)  # before anything is written
        self.cluster = Cluster(options)
        self.driver: Driver | None = None
        self._writers: dict[str, TopicWriter] = {}
        self._batch_bytes = options.batch_bytes
        self._notices: str | None = None
        self._looking = False
        self._threads = ThreadPoolExecutor(1, "kafka-encode")
        self._looks = ThreadPoolExecutor(1, "kafka-topics")
        self._look_at_topics: Future[None] | None = None
        self._looked_at = time.monotonic()
        self._ahead = Ahead[tuple[list[ChangeBatch], Pieces[Any]]]()

    @abstractmethod
    def open(self) -> Offset | None:
        """Get ready; return the offset to resume from, if Kafka keeps it."""

    @abstractmethod
    def look(self) -> Offset | None:
        """Return what :meth:`open` would return, without writing, fencing or creating anything."""

    @abstractmethod
    def write(self, batch: ChangeBatch) -> None:
        """Write a batch; it is durable when this returns."""

    @abstractmethod
    def announce(self, notice: Notice) -> None:
        """Write a notice, if there is a topic for notices; durable when this returns."""

    def prepare(self, batch: ChangeBatch) -> None:
        """Start to encode a batch that is written next. Neither waits nor raises."""
        with suppress(TailerError):
            writer = self._writers.get(self._topic_of(batch)) if batch.num_rows else None
            if writer is not None:
                parts = self._parts(batch)
                self._ahead.begin(batch, (parts, writer.begin(parts[0])))

    def _parts(self, batch: ChangeBatch) -> list[ChangeBatch]:
        """Return the batch as it is written: whole, or in consecutive parts."""
        return [batch]

    def _begun(
        self, writer: TopicWriter, batch: ChangeBatch
    ) -> Iterator[tuple[ChangeBatch, Pieces[Any]]]:
        """Yield a batch's parts in order, each with its pieces; the next part's pieces are started
        by then."""
        begun = self._ahead.take(batch)
        if begun is None:
            parts = self._parts(batch)
            begun = parts, writer.begin(parts[0])
        parts, pieces = begun
        for part, following in zip_longest(parts, parts[1:]):
            later = pieces if following is None else writer.begin(following)
            yield part, pieces
            pieces = later

    def close(self) -> None:
        """Release everything."""
        for threads in (self._threads, self._looks):
            threads.shutdown(wait=False, cancel_futures=True)
        with suppress(TailerError):
            if self.driver is not None:
                self.driver.close()
        with suppress(TailerError):
            self.cluster.close()

    def topics(self) -> dict[str, str]:
        """Return the topics that the session writes to, with their ids, where brokers have them."""
        ids = {name: writer.topic.id for name, writer in self._writers.items()}
        return {name: own for name, own in ids.items() if own}

    def _begin_to_look(self) -> None:
        """Ask for the topics' ids, while records are sent, unless that was done just now.

        In between, a topic that was made again is known by its offsets, which begin again."""
        assert self.driver is not None
        topics = self.topics()
        recent = time.monotonic() - self._looked_at < _LOOK_S
        if topics and not recent:
            self._look_at_topics = self._looks.submit(self._look_at, topics)

    def _look_at(self, topics: Mapping[str, str]) -> None:
        self._looked_at = time.monotonic()
        found = self.cluster.ids(topics)
        for name, own in topics.items():
            if found.get(name) != own:
                raise TransientError(
                    f"the topic {name} was deleted, or created again, since this session of feed "
                    f"{self.feed!r} was opened; it is opened again"
                )

    def _end_to_look(self) -> None:
        """Raise :class:`TransientError` if a topic is another one, or gone: before anything that
        was sent to it counts as delivered."""
        assert self.driver is not None
        look, self._look_at_topics = self._look_at_topics, None
        if look is not None:
            look.result()
            return
        self.driver.flush()
        if self.driver.went_back():
            self._look_at(self.topics())

    def _check_known(self, name: str, known: str | None, topic: Topic | None, at: str) -> None:
        """Raise :class:`TargetRefused` if a topic that the feed has written to is another one."""
        if known is None:
            return
        if topic is None:
            raise TargetRefused(
                f"the topic {name} is gone, and feed {self.feed!r} had written to it up to "
                f"{at}; restore it, or give the feed another topic or name"
            )
        if known != topic.id:
            raise TargetRefused(
                f"the topic {name} was deleted and created again since feed {self.feed!r} wrote to "
                f"it up to {at} (its id was {known}, and is {topic.id}); give the feed another "
                "name to write the table to it again"
            )

    def _topic_at_once(self) -> str | None:
        """Return the topic's name, if it is known before the first batch."""
        template, table = self.options.topic, self.options.encoder.get("table") or None
        if "{table}" in template and table is None:
            return None
        return topic_name(template, self.feed, table)

    def _writer(self, batch: ChangeBatch) -> TopicWriter:
        name = self._topic_of(batch)
        if name not in self._writers:
            self._writers[name] = self._new_writer(self._admitted(name))
        return self._writers[name]

    def _topic_of(self, batch: ChangeBatch) -> str:
        table = self.options.encoder.get("table") or batch.state.metadata.name
        return topic_name(self.options.topic, self.feed, table)

    def _new_writer(self, topic: Topic) -> TopicWriter:
        assert self.driver is not None
        if topic.max_message_bytes < self._batch_bytes:
            raise TargetRefused(
                f"the topic {topic.name} takes batches of {topic.max_message_bytes} bytes at most "
                f"(max.message.bytes), and batch_bytes is {self._batch_bytes}; lower it"
            )
        encoder = self._encoder(topic.name)
        return TopicWriter(self.driver, encoder, topic, self._threads)

    def _open_driver(self, transactional_id: str | None) -> Driver:
        """Open a driver whose batches fit the data topic's limits, if these are known by now."""
        name = self._topic_at_once()
        topic = None if name is None else self.cluster.topic(name)
        if topic is not None:
            self._batch_bytes = min(self._batch_bytes, topic.max_message_bytes)
        options = replace(self.options, batch_bytes=self._batch_bytes)
        return KafkaPythonDriver(options, transactional_id)

    def _encoder(self, topic: str) -> Encoder:
        own = {**self.options.encoder, "name": self.feed, "topic": topic}
        return load_encoder(self.options.format, own)

    def _admitted(self, name: str) -> Topic:
        """Return the data topic of that name, created if that is allowed."""
        return self._made(name, -1, _DATA_CONFIG)

    def _send_notice(self, notice: Notice) -> None:
        assert self.driver is not None
        if self._notices is None:
            name = topic_name(self.options.notice_topic, self.feed)
            self._notices = self._made(name, 1, {}).name
        text = json.dumps(notice.to_json(), ensure_ascii=False, separators=(",", ":"))
        record = single_record(self.feed.encode(), text.encode(), notice.timestamp_ms)
        send_records(self.driver, self._notices, 0, record)

    def _made(self, name: str, partitions: int, config: dict[str, str]) -> Topic:
        topic = self.cluster.topic(name)
        if topic is not None:
            return topic
        if not self.options.create_topics:
            raise TargetRefused(
                f"there is no topic {name} at {self.options.bootstrap_servers}, and create_topics "
                "is false; create it"
            )
        if self._looking:
            self.cluster.could_create(name, partitions, config)
            return Topic(name, "", 1, self._batch_bytes, "")
        return self.cluster.create(name, partitions, config)

    def _look_at_others(self) -> None:
        """Look at the topic that is created when something is written to it."""
        if self.options.notice_topic:
            self._made(topic_name(self.options.notice_topic, self.feed), 1, {})


class AtLeastOnce(Session):
    """No transactions: the feed's offset store keeps the offset, and after a failure the batch
    being sent may come again, with the same ids."""

    def open(self) -> Offset | None:
        """See :class:`Session`."""
        self.driver = self._open_driver(None)
        name = self._topic_at_once()
        if name is not None:
            self._writers[name] = self._new_writer(self._admitted(name))
        return None

    def look(self) -> Offset | None:
        """See :class:`Session`."""
        self._looking = True
        self._look_at_others()
        return self.open()

    def _admitted(self, name: str) -> Topic:
        """See :class:`Session`."""
        if (known := self.written.get(name)) is not None:
            self._check_known(name, known, self.cluster.topic(name), "the saved offset")
        return super()._admitted(name)

    def write(self, batch: ChangeBatch) -> None:
        """See :class:`Session`."""
        assert self.driver is not None
        if batch.num_rows:
            writer = self._writer(batch)
            self._begin_to_look()
            for part, pieces in self._begun(writer, batch):
                writer.write(part, pieces)
            self.driver.flush()
            self._end_to_look()

    def announce(self, notice: Notice) -> None:
        """See :class:`Session`."""
        if self.options.notice_topic and self.driver is not None:
            self._send_notice(notice)
            self.driver.flush()
