"""The interface to a Kafka client library.

A driver blocks, so all of it runs in a worker thread; calls never overlap. Errors are raised as
:class:`TransientError` or :class:`SinkRejected`. After any error the driver's state is unknown: it
is dropped, and a new one is created.
"""

from __future__ import annotations

import typing
from typing import TypeAlias

import pyarrow as pa

from sinks.formats.records import Records
from sinks.kafka.client.record_batch import Body

__all__ = ["Driver", "Packed", "send_records"]

#: Records in the form in which a driver sends them: those of one batch, which is full except at the
#: end of what they were made of.
Packed: TypeAlias = Body | Records


class Driver(typing.Protocol):
    """An idempotent producer (acks=all); with a transactional id, a transactional one."""

    def init_transactions(self) -> None:
        """Fence every older producer of this transactional id, and end what it left open."""

    def begin(self) -> None:
        """Begin a transaction."""

    def pack(self, records: Records, places: pa.Int64Array | None = None) -> list[Packed]:
        """Return records, in order, as they are sent, ignoring their ``partitions``. With
        ``places`` (int64), only those at these places.

        Other than the rest, it may be called at any time, from several threads.
        """

    def send(self, topic: str, partition: int, packed: Packed) -> None:
        """Send what was packed, once, to one partition.

        Returns when it is being sent; before that, waits while too many bytes are being sent.
        """

    def flush(self) -> None:
        """Wait until everything sent was acknowledged by all in-sync replicas."""

    def went_back(self) -> bool:
        """Return whether records were stored at a lower offset than others before them in their
        partition, as in a topic that was made again. Only what was flushed counts."""

    def commit(self) -> None:
        """Flush and commit. When this returns, the transaction's outcome is decided; readers of
        committed records see it all once its markers are written (:mod:`sinks.kafka.settlement`).
        """

    def abort(self) -> None:
        """Roll the transaction back: readers of committed records see nothing of it."""

    def close(self) -> None:
        """Release everything at once; records that were not flushed or committed are dropped."""


def send_records(driver: Driver, topic: str, partition: int, records: Records) -> None:
    """Send records, in order, to one partition."""
    for packed in driver.pack(records):
        driver.send(topic, partition, packed)
