"""What glibc does with freed memory: kept by a process that reads much and ends soon, given back by
one that runs for weeks."""

from __future__ import annotations

import ctypes
import mmap
import os
from contextlib import suppress
from pathlib import Path

__all__ = ["keep_freed_memory", "return_freed_memory", "share_heaps"]

#: In glibc's malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8
#: A larger block is the system's own again when it is freed; glibc knows no higher bound.
_BLOCK_BYTES = 32 * 1024 * 1024
_KEPT_BYTES = 1024 * 1024 * 1024
#: glibc's own: how much more than it needs it takes from the system at once.
_MORE_BYTES = 128 * 1024
#: How much of the heap lies in huge pages, each of 2^9 small ones; in <linux/mman.h>.
_HUGE_BYTES, _HUGE_ORDER, _MADV_HUGEPAGE = 128 * 1024 * 1024, 9, 14
_SMALL_PAGE_BYTES = 4096
#: Zone by zone, how many blocks of 1, 2, 4, 8, ... pages are free.
_FREE_BLOCKS = Path("/proc/buddyinfo")
#: Of how many pages, as a power of two, the blocks are that a virtual machine returns to its host
#: when they are free; another number where it returns none.
_RETURNED = Path("/sys/module/page_reporting/parameters/page_reporting_order")


def keep_freed_memory() -> None:
    """Let each batch reuse the memory of the one before it; to be called before the first thread.

    glibc returns freed memory to the system, and the next rows fault it in again page by page,
    unless it is told to keep it. Each thread gets memory that no other may use, unless all share
    one heap: here threads decode what another one writes. Where the system has many huge pages
    free, and keeps them, the heap's begin lies in them: one fault brings as much as 512 do.
    """
    with suppress(AttributeError, OSError):  # another C library
        libc = ctypes.CDLL(None)
        libc.mallopt(_ARENA_MAX, 1)
        libc.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        libc.mallopt(_MMAP_THRESHOLD, _BLOCK_BYTES)
        if _free_huge_bytes() >= 2 * _HUGE_BYTES and not _are_returned():
            _take_huge_pages(libc)


def share_heaps() -> None:
    """Let the threads of a process that runs for weeks share as many heaps as there are processors;
    to be called before the first thread. glibc takes eight times as many. What stays for long then
    lies here and there in all of them, and keeps more of their pages each hour."""
    with suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).mallopt(_ARENA_MAX, max(2, os.cpu_count() or 2))


def return_freed_memory() -> None:
    """Give freed memory back to the system; takes milliseconds, and waits for nothing. glibc
    returns by itself only what lies at the end of a heap."""
    with suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def _take_huge_pages(libc: ctypes.CDLL) -> None:
    """Let the heap grow, and have huge pages from its end on. None is taken before it is used."""
    libc.malloc.restype = libc.sbrk.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.mallopt(_TOP_PAD, _HUGE_BYTES)
    block = libc.malloc(_BLOCK_BYTES // 2)  # the heap must grow for it
    libc.mallopt(_TOP_PAD, _MORE_BYTES)
    end = libc.sbrk(0)
    begin = -(-(block or end) // _SMALL_PAGE_BYTES) * _SMALL_PAGE_BYTES
    if begin < end:
        libc.madvise(begin, end - begin, _MADV_HUGEPAGE)
    libc.free(block)


def _free_huge_bytes() -> int:
    """Return how much lies in free huge pages. Without them the system would make some at once,
    by moving what lies in their way, which takes longer than all small pages do."""
    if mmap.PAGESIZE != _SMALL_PAGE_BYTES:
        return 0
    try:
        zones = _FREE_BLOCKS.read_text().splitlines()
    except OSError:
        return 0
    free = 0
    for zone in zones:  # such as: Node 0, zone Normal 37 24 11 ...
        for order, count in enumerate(zone.split()[4:]):
            if order >= _HUGE_ORDER:
                free += int(count) << order
    return free * _SMALL_PAGE_BYTES


def _are_returned() -> bool:
    """Return whether this is a virtual machine that returns free huge pages to its host. To get
    them again takes longer than small pages do, of which none is returned."""
    try:
        return 0 <= int(_RETURNED.read_text()) <= _HUGE_ORDER
    except (OSError, ValueError):
        return False
