"""What glibc does with freed memory: kept by a process that reads much and ends soon, given back by
one that runs for weeks."""

from __future__ import annotations

import ctypes
from contextlib import suppress

__all__ = ["keep_freed_memory", "return_freed_memory"]

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


def return_freed_memory() -> None:
    """Give freed memory back to the system; takes milliseconds, and waits for nothing.

    glibc returns by itself only what lies at the end of one of its regions, of which a process with
    many threads has dozens. What is freed between two blocks that stay would be the process's for
    ever, a little more each hour.
    """
    with suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
