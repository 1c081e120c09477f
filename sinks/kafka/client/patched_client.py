"""A client of kafka-python that reads a broker's answer before it hangs up, and leaks no sockets.

A broker that refuses these credentials says so and closes the connection. If answer and end are
read together, kafka-python 3.0 drops the answer, reports a lost connection and tries again until
time is up, and the cause is never reported. Here the bytes read are passed on first, and the end
with the next read.

It also leaves the socket of each refused connection to the garbage collector: many of them, while a
broker is unavailable. Here they are closed. And it lets 100 ms pass between any two requests for
metadata, whatever its settings, although each topic's first record makes one: here 20.

This uses kafka-python's private API; if its internals are not as expected, its own client is used
unchanged. Remove each part when a release passes on what it read before the end of the connection,
closes sockets that were refused, and respects ``retry_backoff_ms`` for metadata.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from kafka.net import inet
from kafka.net.compat import KafkaNetClient

_METADATA_PAUSE_MS = 20


def attentive_client(**settings: Any) -> Any:
    """Return a ``KafkaNetClient`` for the keyword ``kafka_client`` of kafka-python's
    constructors."""
    if not settings.get("proxy_url"):
        settings["proxy_url"] = _closing_scheme()
    client = KafkaNetClient(**settings)
    manager = getattr(client, "_manager", None)
    build = getattr(manager, "_build_transport", None)
    if manager is None or build is None:
        return client

    async def build_transport(*arguments: Any, **how: Any) -> Any:
        transport = await build(*arguments, **how)
        receive = getattr(transport, "_sock_recv", None)
        if receive is not None:
            transport._sock_recv = _delay_error(receive)
        return transport

    manager._build_transport = build_transport
    settings_of_metadata = getattr(getattr(manager, "cluster", None), "config", None)
    if isinstance(settings_of_metadata, dict):
        settings_of_metadata["retry_backoff_ms"] = _METADATA_PAUSE_MS
    return client


@cache
def _closing_scheme() -> str | None:
    """Return the address of a dummy proxy that makes kafka-python use sockets which are closed when
    they can't connect; None where that is impossible."""
    base: Any = getattr(inet, "KafkaNetSocket", None)
    if not hasattr(base, "sock_connect") or not hasattr(base, "register_class"):
        return None

    class ClosingSocket(base):  # type: ignore[misc]  # kafka-python has no types
        SCHEMES = ("direct",)

        async def sock_connect(self, net: Any, sock: Any, *arguments: Any, **how: Any) -> Any:
            try:
                return await super().sock_connect(net, sock, *arguments, **how)
            except BaseException:
                sock.close()
                raise

    return f"{ClosingSocket.SCHEMES[0]}://"


def _delay_error(
    receive: Callable[[], tuple[bytes, Exception | None]],
) -> Callable[[], tuple[bytes, Exception | None]]:
    """Wrap ``receive`` so that an error that comes with bytes is reported by the next call."""
    held: list[Exception] = []

    def receive_bytes() -> tuple[bytes, Exception | None]:
        if held:
            return b"", held[0]
        data, error = receive()
        if data and error is not None:
            held.append(error)
            return data, None
        return data, error

    return receive_bytes
