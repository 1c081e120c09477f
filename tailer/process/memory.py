"""Memory of a process that reads much and ends soon."""

from __future__ import annotations

import ctypes
from contextlib import suppress

__all__ = ["keep_freed_memory"]

_FREED_BYTES = 8 * 1024 * 1024
#: In glibc's malloc.h.
_ARENA_MAX = -8


def keep_freed_memory() -> None:
    """Let each batch reuse the memory of the one before it; to be called before the first thread.

    glibc returns freed memory to the system, and the next rows fault it in again page by page. How
    much it keeps, it learns from the largest block that was freed: twice that. Nothing is touched
    of this block, and another C library only frees it. Each thread gets memory that no other may
    use, unless glibc is told that all share one: here threads decode what another one writes.
    """
    with suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)
    bytearray(_FREED_BYTES)
