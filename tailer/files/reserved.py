"""Room on the disk for a file that is being written."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

__all__ = ["give_back", "reserve"]

#: In <linux/falloc.h>: the file's size stays as it is.
_KEEP_SIZE = 1


def reserve(descriptor: int, size: int) -> None:
    """Take room for what will be written behind the end of a file: the system then need not find
    room for each page, which takes a third of its time. Nothing happens where the file system has
    no such call, or no room: the write itself says so.
    """
    with suppress(AttributeError, OSError):  # another C library
        fallocate = ctypes.CDLL(None).fallocate
        fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
        fallocate(descriptor, _KEEP_SIZE, os.fstat(descriptor).st_size, size)


def give_back(descriptor: int) -> None:
    """Give back the room that nothing was written into."""
    with suppress(OSError):
        os.ftruncate(descriptor, os.fstat(descriptor).st_size)
