"""Exactly once: records and their progress in one transaction.

:meth:`ExactlyOnce.open` fences every older producer of the feed, *then* reads the last committed
progress, checks that the topics are those it names, and claims the feed. From then on each
transaction holds records and their progress. After any error the session is dropped, and the next
one starts from the progress in Kafka.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from sinks.kafka.client.driver import send_records
from sinks.kafka.client.failures import Fenced
from sinks.kafka.cluster import Topic
from sinks.kafka.options import KafkaOptions, topic_name
from sinks.kafka.progress import Progress, read_progress
from sinks.kafka.session import Session
from sinks.kafka.settlement import Settlement
from sinks.kafka.topic_writer import TopicWriter, single_record
from sinks.kafka.transactions import Transactions
from sinks.shared.delivery import same_form
from sinks.shared.encode_ahead import Pieces, slices
from tailer.changes import ChangeBatch, Notice, Offset
from tailer.errors import (
    ConfigError,
    RowsRefused,
    TableError,
    TailerError,
    TargetRefused,
    TransientError,
)

__all__ = ["ExactlyOnce"]

#: The configuration of a progress topic that we create: small segments, so that it stays short.
_PROGRESS_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 * 1024 * 1024),
    "min.cleanable.dirty.ratio": "0.1",
}
#: Errors of the rows themselves, which no broker has seen whole.
_OF_ROWS = (RowsRefused, TableError)
#: The most rows of one transaction.
_ROWS_MAX = 131_072
#: Progress over versions without changes is written at most this often, in seconds.
_IDLE_S = 0.5
#: A newer daemon writes its claim right after it has fenced us: we wait this long to see it.
_CLAIM_S = 3.0
_CLAIM_POLL_S = 0.2


class ExactlyOnce(Session):
    """Records and progress in one transaction. ``owner`` names this process; ``claimed`` is the
    epoch of its last claim on the feed, 0 before the first; ``settlement`` is the same for all
    sessions of a sink."""

    def __init__(
        self, options: KafkaOptions, feed: str, owner: str, claimed: int, settlement: Settlement
    ) -> None:
        super().__init__(options, feed)
        self.owner = owner
        self.claimed = claimed
        self._settlement = settlement
        self.progress = Progress(feed)
        self._progress_topic = topic_name(options.progress_topic, feed)
        self._delivery = options.form(feed)
        #: Whether it is opened only for its offset, and will write no records.
        self.only_settles = False
        self._broken = False
        self._passed: Offset | None = None  # by versions without changes, ahead of progress
        self._at: Offset | None = None  # where the feed is: progress, and versions skipped since
        self._saved_at = 0.0
        self._committed_before_refusal: Offset | None = None
        self._schema: tuple[object, str] = (None, "")

    def open(self) -> Offset | None:
        """Open the session. The order of the steps makes it exactly once. See :class:`Session`."""
        # 1. Can the brokers keep the progress, and transactions of this length?
        self._check_progress_topic()
        self._check_timeout()
        # 2. Has a newer daemon claimed the feed since our last claim? Then stop before we fence it.
        #    Our own last transaction may still be open: step 4 ends it, nothing waits for it.
        if self.claimed:
            self._check_claims(self._read(stable=True))
        # 3. Make the producer.
        patience_s = self.options.delivery_timeout_ms / 1000
        driver = self._open_driver(self._settlement.transactional_id)
        self.driver = Transactions(driver, self.cluster, self._settlement, patience_s)
        with self._dropped_on_error():
            # 4. Fence: from here on no older producer can write. Before it, ask how the last
            #    transaction ended, which the coordinator forgets now; markers that a broker has
            #    lost are written before and after.
            topics = self._topics()
            self._settlement.before_fencing(self.cluster, topics, patience_s)
            self.driver.init_transactions()
            self._settlement.after_fencing(self.cluster, topics, self._progress_topic)
            # 5. Read the last progress. Only after the fence: no other producer can write now.
            found = self._read()
            # 6. May we continue from it: not of a newer daemon, not of another kind of delivery?
            self._check_claims(found)
            self.progress = self._accepted(found or Progress(self.feed)).claimed_by(self.owner)
            # 7. Open the topics. The data topic must be the one that the progress names.
            self._open_topics()
            # 8. Claim the feed: progress with our name and a higher epoch, in a transaction.
            self.driver.begin()
            self._send_progress(self.progress)
            self.driver.commit()
            self.claimed = self.progress.epoch
        # 9. The feed starts where the progress is.
        self._at = self.progress.offset
        return self.progress.offset

    def _open_topics(self) -> None:
        name = self._topic_at_once()
        if name is not None:
            self._writers[name] = self._new_writer(self._admitted(name))

    def look(self) -> Offset | None:
        """See :class:`Session`."""
        self._looking = True
        self._check_progress_topic()
        self._check_timeout()
        self.driver = self._open_driver(None)
        if self.cluster.topic(self._progress_topic) is not None:
            self.progress = self._accepted(self._read(stable=True) or self.progress)
        self._look_at_others()
        name = self._topic_at_once()
        if name is not None:
            self._new_writer(self._admitted(name))
        return self.progress.offset

    def _check_progress_topic(self) -> None:
        topic = self._made(self._progress_topic, 1, _PROGRESS_CONFIG)
        if topic.partitions != 1 or topic.cleanup_policy not in ("", "compact"):
            raise TargetRefused(
                f"the progress topic {topic.name} has {topic.partitions} partitions and "
                f"cleanup.policy {topic.cleanup_policy}; it must have one and 'compact', or "
                "progress is lost"
            )

    def _check_timeout(self) -> None:
        """Raise the broker's error for a producer whose transactions may exceed its time limit."""
        allowed = self.cluster.transaction_ms_max()
        if allowed is not None and self.options.transaction_timeout_ms > allowed:
            raise ConfigError(
                f"option 'transaction_timeout_ms' of sink 'kafka' is "
                f"{self.options.transaction_timeout_ms}, and the brokers at "
                f"{self.options.bootstrap_servers} allow {allowed}; lower it"
            )

    def _accepted(self, found: Progress) -> Progress:
        """Return the progress if its delivery matches the options; one that is overwritten accepts
        whatever they say next."""
        if found.delivery is None or self.only_settles:
            return replace(found, delivery=None)
        same_form({"type": "kafka", **self._delivery}, found.delivery, self.feed, found.offset)
        return replace(found, delivery=self._delivery)

    def _topics(self) -> list[str]:
        """Return the topics that this feed's transactions may have written to, as far as known."""
        name, options = self._topic_at_once(), self.options
        written = self.progress.topics
        if name is None and not written:
            last = self._read(stable=True)
            written = {} if last is None else last.topics
        named = [topic_name(options.notice_topic, self.feed)] if options.notice_topic else []
        return sorted({self._progress_topic, *written, *named, *([name] if name else [])})

    def _read(self, *, stable: bool = False) -> Progress | None:
        record = self.cluster.last_record(self._progress_topic, self.feed.encode(), stable=stable)
        try:
            return read_progress(record, self._progress_topic, self.feed)
        except TargetRefused:
            if self.only_settles:  # it is overwritten
                return None
            raise

    def _check_claims(self, found: Progress | None) -> None:
        """Stop if a newer daemon has claimed the feed since we did."""
        if self.claimed and found and found.epoch > self.claimed and found.owner != self.owner:
            raise TargetRefused(
                f"feed {self.feed!r} was taken over by a newer daemon, {found.owner} (epoch "
                f"{found.epoch}, ours was {self.claimed}); this one stops. Run one daemon for a "
                "feed, or give them names, or progress_topic and transactional_id, of their own"
            )

    def _admitted(self, name: str) -> Topic:
        """Return the data topic, see :class:`Session`. Progress and data must belong together: see
        :mod:`sinks.kafka`."""
        known, topic = self.progress.topics.get(name), self.cluster.topic(name)
        self._check_known(name, known, topic, str(self.progress.offset))
        if known is not None and topic is not None:
            return topic
        if topic is None:
            topic = super()._admitted(name)
        elif any(self.cluster.ends(topic)) and not self.only_settles:
            raise TargetRefused(
                f"the topic {name} has been written to, and the topic {self._progress_topic} "
                f"knows no progress of feed {self.feed!r} in it; give the feed a topic of its "
                "own, or, if it may append to what is there, say where it continues by `tailer "
                "offsets set`, or by `reset` for its start"
            )
        topics = {**self.progress.topics, name: topic.id}
        self.progress = replace(self.progress, topics=topics)
        return topic

    def write(self, batch: ChangeBatch) -> None:
        """See :class:`Session`."""
        with self._dropped_on_error():
            if batch.num_rows:
                self._write_rows(batch)
            else:
                self._passed = batch.next_offset
                if time.monotonic() - self._saved_at >= _IDLE_S:
                    self._save_passed()
            self._at = batch.next_offset

    def _write_rows(self, whole: ChangeBatch) -> None:
        batch = self._left_of(whole)
        if not batch.num_rows:
            return
        writer = self._writer(batch)
        # Rows of a snapshot that is taken while the stream continues do not move its offset.
        following = batch.next_offset.position
        stays = batch.offset.snapshot and self._at is not None and following == self._at.position
        for part, pieces in self._begun(writer, batch):
            then = batch.next_offset if stays else part.next_offset
            self._transact(writer, part, pieces, then)
        self._passed = None

    def _left_of(self, batch: ChangeBatch) -> ChangeBatch:
        """Return the rows of a batch that are not committed. After a refusal of rows, a batch comes
        again in pieces, and the transactions before the refused row are committed."""
        done = self._committed_before_refusal
        if done is None or batch.offset.snapshot != done.snapshot:
            return batch
        return batch.slice(batch.rows_before(done), batch.num_rows)

    def announce(self, notice: Notice) -> None:
        """Write a notice, see :class:`Session`. The versions that it skips are progress too, saved
        at once: it must not come again after a restart."""
        assert self.driver is not None
        told, moves = bool(self.options.notice_topic), notice.kind != "heartbeat"
        if told or (moves and notice.next_offset != notice.offset):
            with self._dropped_on_error():
                self.driver.begin()
                if told:
                    self._send_notice(notice)
                if moves:
                    self._passed = notice.next_offset
                self._save(self._behind_passed())
        if moves:
            self._at = notice.next_offset

    def _parts(self, batch: ChangeBatch) -> list[ChangeBatch]:
        return list(slices(batch, _ROWS_MAX, self.options.transaction_bytes))

    def _transact(
        self, writer: TopicWriter, batch: ChangeBatch, pieces: Pieces[Any], then: Offset
    ) -> None:
        """Write one transaction: the records of a batch and the progress after it."""
        assert self.driver is not None
        self.driver.begin()
        self._begin_to_look()
        try:
            writer.write(batch, pieces)
        except _OF_ROWS:
            self.driver.abort()
            self._committed_before_refusal = self.progress.offset
            raise
        self._save(
            replace(
                self.progress,
                offset=then,
                schema=self._schema_id(batch),
                delivery=self._delivery,
            )
        )

    def _behind_passed(self) -> Progress:
        return (
            self.progress if self._passed is None else replace(self.progress, offset=self._passed)
        )

    def _save(self, progress: Progress) -> None:
        """Commit the open transaction, with this progress after all that was sent in it."""
        assert self.driver is not None
        self._send_progress(progress)
        self._end_to_look()
        self.driver.commit()
        self.progress, self._passed, self._saved_at = progress, None, time.monotonic()

    def _send_progress(self, progress: Progress) -> None:
        assert self.driver is not None
        now_ms = int(time.time() * 1000)
        record = single_record(self.feed.encode(), progress.to_bytes(), now_ms)
        send_records(self.driver, self._progress_topic, 0, record)

    def _save_passed(self) -> None:
        """Write the progress over versions without changes."""
        assert self.driver is not None
        self.driver.begin()
        self._save(replace(self.progress, offset=self._passed))

    def set_offset(self, offset: Offset | None) -> None:
        """Overwrite the feed's progress; None: its start decides."""
        self._passed = offset
        with self._dropped_on_error():
            self._save_passed()

    def _schema_id(self, batch: ChangeBatch) -> str:
        text = batch.state.metadata.schema_string
        if self._schema[0] is not text:
            self._schema = (text, blake2b(text.encode(), digest_size=8).hexdigest())
        return self._schema[1]

    @contextmanager
    def _dropped_on_error(self) -> Iterator[None]:
        """Drop the session after any error: it writes nothing more. If it was fenced, the error
        says by whom."""
        if self._broken:
            raise TransientError("the session with Kafka has failed; it is opened again")
        try:
            yield
        except Fenced as e:
            self._broken = True
            self._wait_for_claim()
            raise TransientError(
                f"{e}; no newer daemon has claimed feed {self.feed!r}, so either a transaction "
                f"took longer than transaction_timeout_ms ({self.options.transaction_timeout_ms}), "
                "or another producer, perhaps another feed's, has the transactional id "
                f"{self._settlement.transactional_id} too: each feed needs one of its own"
            ) from e
        except _OF_ROWS:  # its transaction is rolled back, and others may follow
            raise
        except BaseException:
            self._broken = True
            raise

    def _wait_for_claim(self) -> None:
        """Raise if a newer daemon claims the feed; return if none does, because then our
        transaction was only too slow."""
        give_up = time.monotonic() + _CLAIM_S
        while time.monotonic() < give_up:
            with suppress(TransientError):
                self._check_claims(self._read(stable=True))
            time.sleep(_CLAIM_POLL_S)

    def close(self) -> None:
        """Close the session, see :class:`Session`. The progress over versions without changes is
        written first."""
        if self._passed is not None and not self._broken and self.driver is not None:
            with suppress(TailerError):
                self._save_passed()
        super().close()
