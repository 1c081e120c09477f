"""A connection of psycopg that does not wait for ever for a server that says nothing.

libpq has no time-out for an answer, and the kernel of a machine still confirms what a stopped
process does not read. A server that works for long is not cut off: whether it is stopped is seen by
a second connection, which it answers or not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any

#: The end of all patience: with a server that lives, and a session of it that does not.
_PATIENCE_S = 3600.0


def make_connection_class(
    silence_s: float, lives: Callable[[], bool], silent: Callable[[float], Exception]
) -> Any:
    """Return the class of connections that raise what ``silent`` returns, for the seconds, if there
    is no answer for ``silence_s`` seconds and the server no longer ``lives``."""
    from psycopg import Connection

    class Patient(Connection[Any]):
        def wait(self, gen: Any, *arguments: Any, **named: Any) -> Any:
            """See psycopg: all that it waits for is waited for here."""
            return super().wait(_limit_silence(gen, silence_s, lives, silent), *arguments, **named)

    return Patient


def _limit_silence(
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
