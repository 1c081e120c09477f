"""How much may be fetched before it is asked for: bytes of one table, and of a whole process."""

from __future__ import annotations

import threading

__all__ = ["Budget"]


class Budget:
    """So many bytes at a time. What is taken of it is taken of ``above`` too. For any thread."""

    def __init__(self, bytes_max: int, above: Budget | None = None) -> None:
        self.bytes_max = bytes_max
        self.taken = 0
        self._above = above
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        """Take so many bytes, if they are there; never waits."""
        with self._lock:
            if self.taken + size > self.bytes_max:
                return False
            if self._above is not None and not self._above.take(size):
                return False
            self.taken += size
            return True

    def give(self, size: int) -> None:
        """Give them back."""
        with self._lock:
            self.taken -= size
        if self._above is not None:
            self._above.give(size)
