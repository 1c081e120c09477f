"""What the sink asks of a Kafka client library.

A driver blocks, so all of it runs in a worker thread; calls never overlap. Errors come out as
:class:`TransientError` or :class:`SinkRejected`. After any of them nothing is known about the
driver: it is dropped, and a new one made.
"""

from __future__ import annotations

import typing

import pyarrow as pa

from sinks.formats.records import Records

__all__ = ["Driver"]


class Driver(typing.Protocol):
    """An idempotent producer (acks=all); with a transactional id, a transactional one."""

    def init_transactions(self) -> None:
        """Fence every older producer of this transactional id, and settle what it left open."""

    def begin(self) -> None:
        """Begin a transaction."""

    def send(
        self, topic: str, partition: int, records: Records, places: pa.Int64Array | None = None
    ) -> None:
        """Send records, in order, to one partition; their own ``partitions`` are not looked at.
        With ``places`` (int64), only those at these places.

        Returns when they are on their way, and waits before while too many bytes are.
        """

    def flush(self) -> None:
        """Wait until everything sent was acknowledged by all in-sync replicas."""

    def commit(self) -> None:
        """Flush and commit. When this returns, readers of committed records see it all."""

    def close(self) -> None:
        """Let go of everything at once; what was not flushed or committed is given up."""
