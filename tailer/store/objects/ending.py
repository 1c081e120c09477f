"""The end of a process that reads or writes by obstore.

A thread of obstore that has just delivered an answer still needs Python's lock. If the interpreter
ended before it had it, the process would be aborted.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["asking"]

#: How long such a thread may need, in seconds.
_LOCK_S = 0.05

_last_s = float("-inf")


@contextmanager
def asking() -> Iterator[None]:
    """Hold this around each await of obstore's: the interpreter does not end right behind it."""
    global _last_s  # noqa: PLW0603  # one for the process, which ends once
    try:
        yield
    finally:
        _last_s = time.monotonic()


@atexit.register
def _wait() -> None:
    time.sleep(max(0.0, _last_s + _LOCK_S - time.monotonic()))
