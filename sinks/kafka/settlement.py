"""Ends what Kafka believes to be ended: transactions whose markers a broker has lost.

A transaction's outcome is decided by its coordinator, which then writes a marker into each
partition. A broker of Kafka 4.x takes a partition that has no leader at that moment, because its
brokers are just being started again, for a deleted one: it leaves the marker out and calls the
transaction complete. Readers of committed records then stand still before it for good; that the
next transaction's outcome covers this one's records too may even turn a commit into an abort.

The coordinator still knows how it ended until the producer's next fencing. So that is asked for
before, and the markers that are missing are written as an administrator's tool would.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection

from sinks.kafka.cluster import Cluster, OpenTransaction
from tailer.errors import SinkRejected, TransientError

__all__ = ["Settlement"]

#: What a transaction's state says of its outcome. An ongoing one is aborted by the fencing.
_OUTCOMES = {
    "CompleteCommit": True,
    "CompleteAbort": False,
    "Ongoing": False,
    "PrepareEpochFence": False,
}
_COMPLETE = ("CompleteCommit", "CompleteAbort")
_UNDER_WAY = ("PrepareCommit", "PrepareAbort")
_POLL_S = 0.02


class Settlement:
    """What is known of the outcome of one producer's last transaction, over all its sessions."""

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self._committed: bool | None = None

    def before_fencing(self, cluster: Cluster, topics: Collection[str], patience_s: float) -> None:
        """Learn how the last transaction ended; if it is over, write the markers that it lacks.

        Raises :class:`TransientError` if the coordinator does not get it over in ``patience_s``
        seconds, :class:`SinkRejected` if we may not write markers.
        """
        give_up = time.monotonic() + patience_s
        found = cluster.transaction(self.transactional_id)
        while found is not None and found.state in _UNDER_WAY:
            if time.monotonic() > give_up:
                raise TransientError(
                    f"Kafka has not ended the last transaction of {self.transactional_id} in "
                    f"{patience_s:g} s (it is in the state {found.state})"
                )
            time.sleep(_POLL_S)
            found = cluster.transaction(self.transactional_id)
        if found is None:
            return
        self._committed = _OUTCOMES.get(found.state, self._committed)
        if found.state in _COMPLETE:
            self._end(cluster, cluster.left_open(topics, found.producer_id))

    def after_fencing(self, cluster: Cluster, topics: Collection[str], progress: str) -> None:
        """Write the markers that the fencing should have written. From here on nothing of this
        producer may be open; ``progress`` is the topic that every transaction ends with."""
        found = cluster.transaction(self.transactional_id)
        left = [] if found is None else cluster.left_open(topics, found.producer_id)
        if left and self._committed is None:
            # Nobody knows any more. Where progress is open too, nothing of it has been seen.
            if progress not in {each.topic for each in left}:
                raise SinkRejected(
                    f"Kafka has lost the outcome of a transaction of {self.transactional_id}: "
                    f"{_places(left)} of it, and its progress is not; find out with "
                    "kafka-transactions.sh whether its records are in other partitions, and end "
                    "it with kafka-transactions.sh abort"
                )
            self._committed = False
        self._end(cluster, left)
        self._committed = None

    def between(self, cluster: Cluster, topics: Collection[str]) -> None:
        """Write what markers the last transaction lacks while the producer is idle and goes on."""
        found = cluster.transaction(self.transactional_id)
        if found is not None and found.state in _COMPLETE:
            self._committed = _OUTCOMES[found.state]
            self._end(cluster, cluster.left_open(topics, found.producer_id))

    def _end(self, cluster: Cluster, left: list[OpenTransaction]) -> None:
        for each in left:
            assert self._committed is not None
            cluster.end_transaction(each, committed=self._committed)
            logging.getLogger("tailer.kafka").warning(
                "Kafka had lost the end of a transaction of %s: %s; it is %s now",
                self.transactional_id,
                _places([each]),
                "committed" if self._committed else "aborted",
            )


def _places(left: list[OpenTransaction]) -> str:
    named = [f"partition {o.partition} of {o.topic} is open from offset {o.start}" for o in left]
    return ", ".join(named)
