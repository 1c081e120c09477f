"""Limits on the bytes that may be fetched ahead: per table, and per process."""

from __future__ import annotations

import threading


class Budget:
    """A limit of ``bytes_max`` bytes in use.

    Bytes taken here are taken from ``above`` too. Any thread may use it.
    """

    def __init__(self, bytes_max: int, above: Budget | None = None) -> None:
        self.bytes_max = bytes_max
        self.taken = 0
        self._above = above
        self._lock = threading.Lock()

    def try_take(self, size: int) -> bool:
        """Take ``size`` bytes if they are available; never wait."""
        with self._lock:
            if self.taken + size > self.bytes_max:
                return False
            if self._above is not None and not self._above.try_take(size):
                return False
            self.taken += size
            return True

    def give_back(self, size: int) -> None:
        """Give back ``size`` bytes."""
        with self._lock:
            self.taken -= size
        if self._above is not None:
            self._above.give_back(size)
