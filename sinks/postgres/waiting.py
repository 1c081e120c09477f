"""A connection of psycopg that does not wait for ever for a server that says nothing.

libpq has no time-out for an answer, and the kernel of a machine goes on to confirm what a process
that stands still does not read. A server that works for long is not cut off: whether it stands
still is seen by a second connection, which it answers or not. One that answers without end is cut
off: libpq takes as many bytes as a message says that it has.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Generator
from typing import Any

#: The end of all patience: with a server that lives, and a session of it that does not.
_PATIENCE_S = 3600.0
#: So many bytes may come at one statement, or at one row where rows are read one by one.
_ANSWER_BYTES_MAX = 128 * 1024 * 1024
#: Limit for libpq's error buffer, which can exceed what the server sent.
_ERROR_BYTES_MAX = 16 * 1024 * 1024
#: Where struct tcp_info has the number of bytes received (linux/tcp.h).
_RECEIVED = slice(128, 136)


def connection_class(
    silence_s: float, lives: Callable[[], bool], silent: Callable[[float], Exception]
) -> Any:
    """Return the class of connections that raise what ``silent`` returns, for the seconds, if there
    is no answer for ``silence_s`` seconds and the server no longer ``lives``. They raise psycopg's
    OperationalError for an answer without end."""
    from psycopg import Connection, OperationalError

    class Patient(Connection[Any]):
        def wait(self, gen: Any, *arguments: Any, **named: Any) -> Any:
            """See psycopg: all that it waits for is waited for here."""
            bounded = _bounded(gen, self.pgconn, OperationalError)
            return super().wait(_limited(bounded, silence_s, lives, silent), *arguments, **named)

    return Patient


def _bounded(
    steps: Generator[Any, Any, Any], pgconn: Any, error: type[Exception]
) -> Generator[Any, Any, Any]:
    """Yield what ``steps`` wait for, as long as not too many bytes have come."""
    begun = None
    try:
        wanted = next(steps)
        while True:
            ready = yield wanted
            if ready and (received := _received_bytes(pgconn.socket)) is not None:
                begun = received if begun is None else begun
                if received - begun > _ANSWER_BYTES_MAX:
                    raise error(f"an answer of more than {_ANSWER_BYTES_MAX} bytes")
            if len(pgconn.error_message) > _ERROR_BYTES_MAX:
                raise error(f"more than {_ERROR_BYTES_MAX} bytes of messages that are none")
            wanted = steps.send(ready)
    except StopIteration as done:
        return done.value


def _received_bytes(descriptor: int) -> int | None:
    """Return how many bytes have ever come to a socket; None if the system does not count them:
    it is one of this machine, or not Linux."""
    if not hasattr(socket, "TCP_INFO"):
        return None
    connection = socket.socket(fileno=descriptor)
    try:
        counts = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED.stop)
    except OSError:
        return None
    finally:
        connection.detach()
    return int.from_bytes(counts[_RECEIVED], sys.byteorder) if counts[_RECEIVED] else None


def _limited(
    steps: Generator[Any, Any, Any],
    silence_s: float,
    lives: Callable[[], bool],
    silent: Callable[[float], Exception],
) -> Generator[Any, Any, Any]:
    """Yield what ``steps`` wait for. psycopg resumes them when the socket is ready, and several
    times a second when it is not."""
    begun = heard = asked = time.monotonic()
    try:
        wanted = next(steps)
        while True:
            ready = yield wanted
            now = time.monotonic()
            if now - begun >= _PATIENCE_S:
                raise silent(now - begun)
            if ready:
                heard = asked = now
            elif now - asked >= silence_s:
                if not lives():
                    raise silent(now - heard)
                asked = time.monotonic()
            wanted = steps.send(ready)
    except StopIteration as done:
        return done.value
