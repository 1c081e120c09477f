"""The interface to a Kafka client library.

A driver blocks, so all of it runs in a worker thread; calls never overlap. Errors are raised as
:class:`TransientError` or :class:`SinkRejected`. After any error the driver's state is unknown: it
is dropped, and a new one is created.
"""

from __future__ import annotations

import typing

import pyarrow as pa

from sinks.formats.records import Records

__all__ = ["Driver"]


class Driver(typing.Protocol):
    """An idempotent producer (acks=all); with a transactional id, a transactional one."""

    def init_transactions(self) -> None:
        """Fence every older producer of this transactional id, and end what it left open."""

    def begin(self) -> None:
        """Begin a transaction."""

    def send(
        self, topic: str, partition: int, records: Records, places: pa.Int64Array | None = None
    ) -> None:
        """Send records, in order, to one partition, ignoring their ``partitions``. With ``places``
        (int64), only those at these places.

        Returns when they are being sent; before that, waits while too many bytes are being sent.
        """

    def flush(self) -> None:
        """Wait until everything sent was acknowledged by all in-sync replicas."""

    def commit(self) -> None:
        """Flush and commit. When this returns, the transaction's outcome is decided; readers of
        committed records see it all once its markers are written (:mod:`sinks.kafka.settlement`).
        """

    def close(self) -> None:
        """Release everything at once; records that were not flushed or committed are dropped."""
