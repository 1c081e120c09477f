"""Writes the missing markers of transactions that Kafka considers complete.

A transaction's outcome is decided by its coordinator, which then writes a marker into each
partition. If a partition has no leader at that moment, because its brokers are just being
restarted, a broker of Kafka 4.x takes it for a deleted one: it leaves the marker out and calls the
transaction complete. Readers of committed records are then stuck before it for good. The next
transaction's marker also ends this one, which may even turn a commit into an abort.

The coordinator still knows the outcome until the producer's next fencing. So it is queried before
that, and missing markers are written as an administrator's tool would write them.

Another daemon may be using the same producer: an older one, not yet fenced, or a newer one that has
fenced us. Its open transaction must be left alone. So a marker counts as missing only if the
transaction was open in the partition, then its coordinator called it complete, and it was still
open, from the same offset. After our own fencing, one counts that has an older epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from sinks.kafka.cluster import Cluster, OpenTransaction, Partition, TransactionStatus
from tailer.errors import TargetRefused, TransientError
from tailer.network.backoff import Backoff, call_with_retries

#: The outcome that a transaction's state implies. An ongoing one is aborted by the fencing.
_OUTCOMES = {
    "CompleteCommit": True,
    "CompleteAbort": False,
    "Ongoing": False,
    "PrepareEpochFence": False,
}
_COMPLETE = ("CompleteCommit", "CompleteAbort")
_UNDER_WAY = ("PrepareCommit", "PrepareAbort")


class _NotEnded(TransientError):
    """The coordinator is still ending a transaction."""


class Settlement:
    """What is known of the outcome of one producer's last transaction, over all its sessions."""

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self._committed: bool | None = None
        self._producer_id: int | None = None

    def settle_before_fencing(
        self, cluster: Cluster, topics: Collection[str], patience_s: float
    ) -> None:
        """Find out how the last transaction ended; if it is over, write the markers that it lacks.

        Raises :class:`TransientError` if the coordinator does not end it in ``patience_s`` seconds,
        :class:`SinkRejected` if we may not write markers.
        """
        status = self._wait_until_ended(cluster, patience_s)
        if status is not None:
            self._committed = _OUTCOMES.get(status.state, self._committed)
            if status.state in _COMPLETE:
                self._write_missing_markers(cluster, cluster.find_partitions(topics))

    def settle_after_fencing(
        self, cluster: Cluster, topics: Collection[str], progress: str
    ) -> None:
        """Write the markers that the fencing should have written. From here on no transaction of an
        older epoch may be open; ``progress`` is the topic that every transaction ends with."""
        status = cluster.find_transaction(self.transactional_id)
        left = []
        if status is not None:
            self._producer_id = status.producer_id
            # A newer daemon may have fenced us meanwhile, and be active.
            of_all = cluster.find_open_transactions(
                cluster.find_partitions(topics), status.producer_id
            )
            left = [each for each in of_all if each.producer_epoch < status.producer_epoch]
        if left and self._committed is None:
            # The outcome is unknown now. If progress is open too, no reader has seen any of it.
            if progress not in {each.topic for each in left}:
                raise TargetRefused(
                    f"Kafka has lost the outcome of a transaction of {self.transactional_id}: "
                    f"{_format_places(left)} of it, and its progress is not; find out with "
                    "kafka-transactions.sh whether its records are in other partitions, and end "
                    "it with kafka-transactions.sh abort"
                )
            self._committed = False
        self._end_transactions(cluster, left, committed=bool(self._committed))
        self._committed = None

    def settle_after_commit(
        self, cluster: Cluster, written: Collection[Partition], patience_s: float
    ) -> None:
        """Wait until the transaction just committed is over in the partitions that it has written
        to, and write the markers that it lacks. Until then no other may begin.

        Raises as :meth:`settle_before_fencing`.
        """
        if cluster.find_open_transactions(written, self._producer_id):
            status = self._wait_until_ended(cluster, patience_s)
            if status is not None and status.state in _COMPLETE:
                self._write_missing_markers(cluster, written)

    def _wait_until_ended(self, cluster: Cluster, patience_s: float) -> TransactionStatus | None:
        """Return the last transaction, once its coordinator is no longer ending it."""

        def find_ended() -> TransactionStatus | None:
            status = cluster.find_transaction(self.transactional_id)
            if status is not None and status.state in _UNDER_WAY:
                raise _NotEnded(
                    f"Kafka has not ended the last transaction of {self.transactional_id} in "
                    f"{patience_s:g} s (it is in the state {status.state})"
                )
            return status

        return call_with_retries(find_ended, _NotEnded, patience_s, Backoff(0.002, 0.05))

    def _write_missing_markers(self, cluster: Cluster, places: Collection[Partition]) -> None:
        """Write the markers that the last transaction lacks, if it is over."""
        before = cluster.find_open_transactions(places)
        status = cluster.find_transaction(self.transactional_id) if before else None
        if status is not None and status.state in _COMPLETE:
            left = _find_still_open(cluster, before, status)
            self._end_transactions(cluster, left, committed=_OUTCOMES[status.state])

    def _end_transactions(
        self, cluster: Cluster, left: list[OpenTransaction], *, committed: bool
    ) -> None:
        for each in left:
            cluster.end_transaction(each, committed=committed)
            logging.getLogger("tailer.kafka").warning(
                "Kafka had lost the end of a transaction of %s: %s; it is %s now",
                self.transactional_id,
                _format_places([each]),
                "committed" if committed else "aborted",
            )


def _find_still_open(
    cluster: Cluster, before: list[OpenTransaction], status: TransactionStatus
) -> list[OpenTransaction]:
    """Return the producer's transactions that were open before its coordinator said that all is
    complete, and are still open."""
    own = [each for each in before if each.producer_id == status.producer_id]
    if not own:
        return []
    places = {(each.topic, each.partition, each.start) for each in own}
    now = cluster.find_open_transactions(
        {(each.topic, each.partition) for each in own}, status.producer_id
    )
    return [each for each in now if (each.topic, each.partition, each.start) in places]


def _format_places(left: list[OpenTransaction]) -> str:
    named = [f"partition {o.partition} of {o.topic} is open from offset {o.start}" for o in left]
    return ", ".join(named)
