"""What is checked in threads while a session writes to Kafka.

A coordinator that reports a transaction as committed must still write its marker into each
partition, and may lose one (see :mod:`sinks.kafka.settlement`). The next transaction's records in
that partition would then share the outcome of those before them: if both are rolled back, the
earlier records would be lost there without notice. So the markers are checked while the next batch
is read and encoded, and the next transaction begins only once they are all there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from sinks.kafka.client.kafka_python import KafkaPythonDriver
from sinks.kafka.cluster import Cluster, Partition
from sinks.kafka.settlement import Settlement
from tailer.errors import TransientError
from tailer.network.backoff import Backoff

#: A backlog of small transactions asks for the topics' ids this often, in seconds.
_TOPIC_CHECK_S = 0.5
#: The pause after a failed check of markers, in seconds; doubled up to the second value.
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.05, 1.0


class MarkerCheck:
    """Whether the last transaction is over in all partitions that it has written to."""

    def __init__(self, cluster: Cluster, settlement: Settlement, patience_s: float) -> None:
        self._cluster = cluster
        self._settlement = settlement
        self._patience_s = patience_s
        self._threads = ThreadPoolExecutor(1, "kafka-settle")
        self._check: Future[None] | None = None
        self._error: TransientError | None = None
        self._closed = threading.Event()

    def begin(self, written: Collection[Partition]) -> None:
        """Begin to check the markers of a transaction that has just ended."""
        self._check = self._threads.submit(self._settle, written)

    def wait(self) -> None:
        """Wait until they are all there. Raises :class:`TransientError` if that takes too long."""
        if self._check is None:
            return
        try:
            self._check.result(self._patience_s)
        except TimeoutError as e:
            why = f": {self._error}" if self._error is not None else ""
            raise TransientError(
                f"it is not known after {self._patience_s:g} s whether the last transaction of "
                f"{self._settlement.transactional_id} is over in all partitions{why}"
            ) from e
        self._check = None

    def _settle(self, written: Collection[Partition]) -> None:
        """Check until the outcome is known, however long the brokers are unavailable: readers may
        be stuck."""
        backoff = Backoff(_FIRST_PAUSE_S, _LAST_PAUSE_S)
        while not self._closed.is_set():
            try:
                self._settlement.settle_after_commit(self._cluster, written, self._patience_s)
            except TransientError as e:
                self._error = e
                self._closed.wait(backoff.next_s())
            else:
                self._error = None
                return

    def close(self) -> None:
        """Check no more."""
        self._closed.set()
        self._threads.shutdown(wait=False, cancel_futures=True)


class TopicCheck:
    """Whether topics are deleted, or made again, under a session of a feed."""

    def __init__(self, cluster: Cluster, feed: str) -> None:
        self._cluster = cluster
        self._feed = feed
        self._threads = ThreadPoolExecutor(1, "kafka-topics")
        self._check: Future[None] | None = None
        self._checked_at = time.monotonic()

    def begin(self, topics: Mapping[str, str]) -> None:
        """Ask for the topics' ids, while records are sent, unless that was done just now.

        In between, a topic that was made again is known by its offsets, which begin again."""
        if topics and time.monotonic() - self._checked_at >= _TOPIC_CHECK_S:
            self._check = self._threads.submit(self._compare_ids, topics)

    def finish(self, driver: KafkaPythonDriver, topics: Mapping[str, str]) -> None:
        """Raise :class:`TransientError` if a topic is another one, or gone: before anything that
        was sent to it counts as delivered."""
        check, self._check = self._check, None
        if check is not None:
            check.result()
            return
        driver.flush()
        if driver.went_back:
            self._compare_ids(topics)

    def _compare_ids(self, topics: Mapping[str, str]) -> None:
        self._checked_at = time.monotonic()
        found = self._cluster.find_topic_ids(topics)
        for name, own in topics.items():
            if found.get(name) != own:
                raise TransientError(
                    f"the topic {name} was deleted, or created again, since this session of feed "
                    f"{self._feed!r} was opened; it is opened again"
                )

    def close(self) -> None:
        """Check no more."""
        self._threads.shutdown(wait=False, cancel_futures=True)
