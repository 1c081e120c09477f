"""Exactly once: the transactions that are planned, carried out one after the other.

:mod:`sinks.kafka.feed_transactions` has the rules, and decides; a :class:`Broker` does. This is the
loop between them, with the clock.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import zip_longest

from sinks.kafka.broker import Broker
from sinks.kafka.client.failures import Fenced
from sinks.kafka.feed_transactions import FeedTransactions, TopicTransaction
from sinks.kafka.options import KafkaOptions
from sinks.kafka.progress import TopicProgress
from sinks.kafka.topic_writer import EncodedRows
from sinks.shared.routes import Targets
from tailer.changes import ChangeBatch, Notice, Offset
from tailer.errors import TailerError, TargetRefused, TransientError

#: Progress over versions without changes is written at most this often, in seconds.
_IDLE_S = 0.5
#: A newer daemon writes its claim right after it has fenced us: we wait this long to see it.
_CLAIM_S = 3.0
_CLAIM_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Prepared:
    """Rows that a session has started to encode; they travel with their batch."""

    session: object
    rows: ChangeBatch
    encoded: EncodedRows

    def has_rows(self, rows: ChangeBatch) -> bool:
        """Return whether these rows are the ones."""
        ours = self.rows.offset, self.rows.num_rows
        return ours == (rows.offset, rows.num_rows)


def find_prepared(session: object, batch: ChangeBatch) -> Prepared | None:
    """Return what a session has prepared of a batch. That of an earlier session is of no use: its
    producer is gone."""
    found = batch.prepared
    return found if isinstance(found, Prepared) and found.session is session else None


class DataTopics:
    """Names the topics of rows: see :class:`sinks.kafka.options.KafkaOptions`."""

    def __init__(self, options: KafkaOptions, feed: str, targets: Targets) -> None:
        self._options = options
        self._feed = feed
        self._targets = targets
        self.are_routed = bool(options.route.columns)

    def find_common_topic(self) -> str | None:
        """Return the topic of all rows, if that is known before the first one."""
        return self._options.find_common_topic(self._feed)

    def split_by_topic(self, batch: ChangeBatch) -> list[tuple[str, ChangeBatch]]:
        """Return the topics of a batch's rows, and the rows of each; none if it has none."""
        found = list(self._options.split_by_topic(self._feed, batch)) if batch.num_rows else []
        for name, _ in found if self.are_routed else ():
            self._targets.add(name, "the topic")
        return found


class ExactlyOnce:
    """One run of a feed's sink, from open to close. Blocking; calls never overlap, except for
    :meth:`prepare`.

    ``data`` names the topics of rows. With ``writes_notices``, notices are written. ``fenced_why``
    completes the sentence of a session that was fenced though no newer daemon has claimed the feed.
    """

    def __init__(
        self,
        broker: Broker,
        transactions: FeedTransactions,
        data: DataTopics,
        *,
        writes_notices: bool = False,
        fenced_why: str = "",
    ) -> None:
        self.broker = broker
        self.transactions = transactions
        self._data = data
        self._writes_notices = writes_notices
        self._fenced_why = fenced_why
        self._open_topics: set[str] = set()
        self._saved_at = 0.0

    def open(self) -> Offset | None:
        """Fence, read, check, claim, in this order; return the offset to resume from."""
        transactions, broker = self.transactions, self.broker
        broker.prepare_progress_topic()
        # Stop before we fence a newer daemon. Our own last transaction may still be open: the
        # fencing ends it, and nothing waits for it here.
        name = self._data.find_common_topic()
        asked = transactions.claimed or name is None
        before = self._read_progress(stable=True) if asked else None
        transactions.check_owner(before)
        broker.connect(name)
        with self._watch_failures():
            broker.fence_producers([*(before.topics if before else ()), *([name] if name else ())])
            transactions.resume_from(self._read_progress())
            if name is not None:
                self._open_topic(name)
            self._run_transactions([transactions.claim()])
        return transactions.offset

    def look(self) -> Offset | None:
        """Return what :meth:`open` would, or raise its error, without a fence or a claim. For a
        broker that creates nothing."""
        name = self._data.find_common_topic()
        self.broker.prepare_progress_topic()
        self.broker.connect(name)
        self.transactions.resume_from(self._read_progress(stable=True))
        self.broker.check_notice_topic()
        if name is not None:
            self._open_topic(name)
        return self.transactions.offset

    def _read_progress(self, *, stable: bool = False) -> TopicProgress | None:
        try:
            return self.broker.read_progress(stable=stable)
        except TargetRefused:
            if self.transactions.overwrites:  # whatever it is
                return None
            raise

    def _open_topic(self, name: str) -> None:
        """Get ready to write to a topic that the feed may write to, created if need be."""
        seen = self.broker.find_topic(name)
        if not self.transactions.check_topic(name, seen):
            seen = self.broker.make_topic(name)
        assert seen is not None
        self.transactions.note_topic(name, seen.id)
        self.broker.open_topic(name)
        self._open_topics.add(name)

    def prepare(self, batch: ChangeBatch) -> Prepared | None:
        """Start to encode the first part of a batch. Neither waits nor raises."""
        with suppress(TailerError):
            if not batch.num_rows or self._data.are_routed:
                return None
            ((name, _),) = self._data.split_by_topic(batch)
            if name in self._open_topics:
                part = self.transactions.split_batch(batch)[0]
                return Prepared(self, part, self.broker.encode(name, part))
        return None

    def write(self, batch: ChangeBatch) -> None:
        """Write a batch. Its rows are durable when this returns; the offset of a batch without rows
        comes with those that follow."""
        with self._watch_failures():
            for name, _ in self._data.split_by_topic(batch):
                if name not in self._open_topics:
                    self._open_topic(name)
            planned = self.transactions.plan(batch)
            self._run_transactions(planned, find_prepared(self, batch))
            if not planned and time.monotonic() - self._saved_at >= _IDLE_S:
                self._run_transactions(self.transactions.catch_up())

    def announce(self, notice: Notice) -> None:
        """Write a notice, if they are written, and the offset that it moves to."""
        with self._watch_failures():
            self._run_transactions(
                self.transactions.plan(notice, writes_notice=self._writes_notices)
            )

    def set_offset(self, offset: Offset | None) -> None:
        """Overwrite the feed's progress; None: its start decides."""
        with self._watch_failures():
            self._run_transactions(self.transactions.overwrite(offset))

    def close(self) -> None:
        """Release everything. The progress over versions without changes is written first."""
        with suppress(TailerError):
            if self.transactions.state == "IDLE":
                self._run_transactions(self.transactions.catch_up())
        self.broker.close()

    def _run_transactions(
        self, planned: list[TopicTransaction], prepared: Prepared | None = None
    ) -> None:
        """Carry transactions out. The next one's rows are encoded while one is written."""
        rows = planned[0].rows if planned else None
        if prepared and rows and prepared.has_rows(rows):
            ((name, _),) = self._data.split_by_topic(rows)
            encoded = [(name, prepared.encoded)]
        else:
            encoded = self._encode_rows(rows)
        for transaction, following in zip_longest(planned, planned[1:]):
            later = self._encode_rows(following.rows if following else None)
            self.broker.run(transaction, encoded)
            self.transactions.note_commit(transaction)
            self._saved_at = time.monotonic()
            encoded = later

    def _encode_rows(self, rows: ChangeBatch | None) -> list[tuple[str, EncodedRows]]:
        """Start to encode rows, those of each topic."""
        found = [] if rows is None else self._data.split_by_topic(rows)
        return [(name, self.broker.encode(name, part)) for name, part in found]

    @contextmanager
    def _watch_failures(self) -> Iterator[None]:
        """Report a failure to the transactions. If we were fenced, the error says by whom."""
        try:
            yield
        except Fenced as e:
            self.transactions.note_failure(e)
            self._wait_for_claim()
            raise TransientError(f"{e}; {self._fenced_why}") from e
        except BaseException as e:
            self.transactions.note_failure(e)
            raise

    def _wait_for_claim(self) -> None:
        """Raise if a newer daemon claims the feed; return if none does, because then our
        transaction was only too slow."""
        give_up = time.monotonic() + _CLAIM_S
        while time.monotonic() < give_up:
            with suppress(TransientError):
                self.transactions.check_owner(self.broker.read_progress(stable=True))
            time.sleep(_CLAIM_POLL_S)
