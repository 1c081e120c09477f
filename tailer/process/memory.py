"""What glibc does with freed memory: kept by a process that reads much and ends soon, given back by
one that runs for weeks."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress

#: In glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
#: A larger block is the system's own again when it is freed; glibc knows no higher bound.
_BLOCK_BYTES = 32 * 1024 * 1024
_KEPT_BYTES = 1024 * 1024 * 1024


def keep_freed_memory() -> None:
    """Let each batch reuse the memory of the one before it; to be called before the first thread.

    glibc returns freed memory to the system, and the next rows fault it in again page by page,
    unless it is set to keep it. Threads decode here what another one writes, so they share heaps;
    in a single one they would wait for each other.
    """
    _choose_pool("system")  # the same heaps
    share_heaps()
    with suppress(AttributeError, OSError):  # another C library
        libc = ctypes.CDLL(None)
        libc.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        libc.mallopt(_MMAP_THRESHOLD, _BLOCK_BYTES)


def share_heaps() -> None:
    """Let the threads share as many heaps as there are processors; to be called before the first
    thread. glibc takes eight times as many. What stays for long then lies here and there in all of
    them, and keeps more of their pages each hour. pyarrow's rows go to jemalloc, which returns what
    is freed."""
    _choose_pool("jemalloc")
    with suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).mallopt(_ARENA_MAX, max(2, os.cpu_count() or 2))


def _choose_pool(name: str) -> None:
    """Let pyarrow take its memory from a pool, unless it is loaded already or one was chosen."""
    if sys.platform == "linux":  # elsewhere a wheel may lack it
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", name)


def return_freed_memory() -> None:
    """Give freed memory back to the system; takes milliseconds, and waits for nothing. glibc
    returns by itself only what lies at the end of a heap."""
    with suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
