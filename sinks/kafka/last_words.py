"""A client of kafka-python that hears what a broker says before it hangs up.

A broker that lets nobody in with these credentials says so and closes the connection. When answer
and end are read in one go, kafka-python 3.0 drops the answer, reports a lost connection and tries
again until time is up, and the cause is never told. Here what was read is handed over first, and
the end with the next read.

Goes beneath kafka-python's public API; where its insides are not as expected, its own client is
used as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["attentive_client"]


def attentive_client(**settings: Any) -> Any:
    """A ``KafkaNetClient`` for the keyword ``kafka_client`` of kafka-python's constructors."""
    from kafka.net.compat import KafkaNetClient

    client = KafkaNetClient(**settings)
    manager = getattr(client, "_manager", None)
    build = getattr(manager, "_build_transport", None)
    if manager is None or build is None:
        return client

    async def built(*arguments: Any, **how: Any) -> Any:
        transport = await build(*arguments, **how)
        receive = getattr(transport, "_sock_recv", None)
        if receive is not None:
            transport._sock_recv = _end_last(receive)
        return transport

    manager._build_transport = built
    return client


def _end_last(
    receive: Callable[[], tuple[bytes, Exception | None]],
) -> Callable[[], tuple[bytes, Exception | None]]:
    """``receive`` whose error, where it comes with bytes, is told by the next call."""
    held: list[Exception] = []

    def received() -> tuple[bytes, Exception | None]:
        if held:
            return b"", held[0]
        data, error = receive()
        if data and error is not None:
            held.append(error)
            return data, None
        return data, error

    return received
