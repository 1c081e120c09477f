"""Ends what Kafka believes to be ended: transactions whose markers a broker has lost.

A transaction's outcome is decided by its coordinator, which then writes a marker into each
partition. A broker of Kafka 4.x takes a partition that has no leader at that moment, because its
brokers are just being started again, for a deleted one: it leaves the marker out and calls the
transaction complete. Readers of committed records then stand still before it for good; that the
next transaction's outcome covers this one's records too may even turn a commit into an abort.

The coordinator still knows how it ended until the producer's next fencing. So that is asked for
before, and the markers that are missing are written as an administrator's tool would.

Another daemon may be at work with the same producer: an older one, not yet fenced, or a newer one
that has fenced us. Its open transaction must be left alone. So a marker counts as missing only if
the transaction was open in the partition, then its coordinator called it complete, and it was open
still, from the same offset.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection

from sinks.kafka.cluster import Cluster, OpenTransaction, Transaction
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
#: How often a session that goes on looks for markers that Kafka has lost, in seconds.
_PERIOD_S = 30.0


class Settlement:
    """What is known of the outcome of one producer's last transaction, over all its sessions.

    ``period_s`` is how often :meth:`between` looks, in seconds.
    """

    def __init__(self, transactional_id: str, period_s: float = _PERIOD_S) -> None:
        self.transactional_id = transactional_id
        self.period_s = period_s
        self._looked_at = 0.0
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
            self._settle(cluster, topics)

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
        self._end(cluster, left, committed=bool(self._committed))
        self._committed = None
        self._looked_at = time.monotonic()

    def due(self) -> bool:
        """Whether it is time to look again."""
        return time.monotonic() - self._looked_at >= self.period_s

    def between(self, cluster: Cluster, topics: Collection[str]) -> None:
        """Write what markers the last transaction lacks while the producer is idle and goes on.

        Raises as :meth:`before_fencing`.
        """
        self._looked_at = time.monotonic()
        self._settle(cluster, topics)

    def _settle(self, cluster: Cluster, topics: Collection[str]) -> None:
        """Write the markers that the last transaction lacks, if it is over."""
        before = cluster.left_open(topics)
        found = cluster.transaction(self.transactional_id) if before else None
        if found is not None and found.state in _COMPLETE:
            left = _still_open(cluster, before, found)
            self._end(cluster, left, committed=_OUTCOMES[found.state])

    def _end(self, cluster: Cluster, left: list[OpenTransaction], *, committed: bool) -> None:
        for each in left:
            cluster.end_transaction(each, committed=committed)
            logging.getLogger("tailer.kafka").warning(
                "Kafka had lost the end of a transaction of %s: %s; it is %s now",
                self.transactional_id,
                _places([each]),
                "committed" if committed else "aborted",
            )


def _still_open(
    cluster: Cluster, before: list[OpenTransaction], found: Transaction
) -> list[OpenTransaction]:
    """Those of the producer that were open before its coordinator said that all is complete, and
    are open now."""
    own = [each for each in before if each.producer_id == found.producer_id]
    if not own:
        return []
    places = {(each.topic, each.partition, each.start) for each in own}
    now = cluster.left_open({each.topic for each in own}, found.producer_id)
    return [each for each in now if (each.topic, each.partition, each.start) in places]


def _places(left: list[OpenTransaction]) -> str:
    named = [f"partition {o.partition} of {o.topic} is open from offset {o.start}" for o in left]
    return ", ".join(named)
