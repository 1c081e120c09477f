"""Transactions that begin only after the one before is over in every partition.

A coordinator that reports a transaction as committed must still write its marker into each
partition, and may lose one (see :mod:`sinks.kafka.settlement`). The next transaction's records in
that partition would then share the outcome of those before them: if both are rolled back, the
earlier records would be lost there without notice. So a background thread checks the markers while
the next batch is read and encoded, and that batch's first record waits for them.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa

from sinks.formats.records import Records
from sinks.kafka.client.driver import Driver, Packed
from sinks.kafka.cluster import Cluster, Place
from sinks.kafka.settlement import Settlement
from tailer.backoff import Backoff
from tailer.errors import TransientError

__all__ = ["Transactions"]

#: The pause after a failed check, in seconds; doubled up to the second value.
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.05, 1.0


class Transactions:
    """A driver (see :class:`sinks.kafka.client.driver.Driver`) whose transactions are checked.

    ``patience_s`` is how long the next one waits for the last one's markers, in seconds.
    """

    def __init__(
        self, driver: Driver, cluster: Cluster, settlement: Settlement, patience_s: float
    ) -> None:
        self.driver = driver
        self._cluster = cluster
        self._settlement = settlement
        self._patience_s = patience_s
        self._written: set[Place] = set()
        self._closed = threading.Event()
        self._threads = ThreadPoolExecutor(1, "kafka-settle")
        self._settled: Future[None] | None = None
        self._trouble: TransientError | None = None

    def init_transactions(self) -> None:
        """See :class:`Driver`."""
        self.driver.init_transactions()

    def begin(self) -> None:
        """Begin a transaction, see :class:`Driver`. Raises :class:`TransientError` if the last
        transaction is not over in time, :class:`SinkRejected` if it lacks a marker that we may not
        write."""
        self._wait_until_settled()
        self._written = set()
        self.driver.begin()

    def pack(self, records: Records, places: pa.Int64Array | None = None) -> list[Packed]:
        """See :class:`Driver`."""
        return self.driver.pack(records, places)

    def send(self, topic: str, partition: int, packed: Packed) -> None:
        """See :class:`Driver`."""
        self._written.add((topic, partition))
        self.driver.send(topic, partition, packed)

    def flush(self) -> None:
        """See :class:`Driver`."""
        self.driver.flush()

    def went_back(self) -> bool:
        """See :class:`Driver`."""
        return self.driver.went_back()

    def commit(self) -> None:
        """See :class:`Driver`."""
        self.driver.commit()
        self._settled = self._threads.submit(self._settle, self._written)

    def abort(self) -> None:
        """See :class:`Driver`."""
        self.driver.abort()
        self._settled = self._threads.submit(self._settle, self._written)

    def close(self) -> None:
        """See :class:`Driver`."""
        self._closed.set()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.driver.close()

    def _wait_until_settled(self) -> None:
        if self._settled is None:
            return
        try:
            self._settled.result(self._patience_s)
        except TimeoutError as e:
            why = f": {self._trouble}" if self._trouble is not None else ""
            raise TransientError(
                f"it is not known after {self._patience_s:g} s whether the last transaction of "
                f"{self._settlement.transactional_id} is over in all partitions{why}"
            ) from e
        self._settled = None

    def _settle(self, written: set[Place]) -> None:
        """Check until the outcome is known, however long the brokers are unavailable: readers may
        be stuck."""
        backoff = Backoff(_FIRST_PAUSE_S, _LAST_PAUSE_S)
        while not self._closed.is_set():
            try:
                self._settlement.after_commit(self._cluster, written, self._patience_s)
            except TransientError as e:
                self._trouble = e
                self._closed.wait(backoff.next_s())
            else:
                self._trouble = None
                return
