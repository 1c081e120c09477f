"""What glibc does with freed memory."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_MIB = 1024 * 1024
_IS_GLIBC = platform.libc_ver()[0] == "glibc"

_RESIDENT = """
from pathlib import Path
from tailer.process.memory import keep_freed_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

keep_freed_memory()
before = resident()
blocks = [bytearray(4 * 1024 * 1024) for _ in range(20)]
del blocks
print(resident() - before)
"""
#: 100 MB in small blocks that are freed below one that stays, as in a process that runs long.
_RETURNED = """
import ctypes
from pathlib import Path
from tailer.process.memory import return_freed_memory

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

def block():
    at = libc.malloc(1000)
    ctypes.memset(at, 1, 1000)
    return at

blocks = [block() for _ in range(100_000)]
stays = block()
for at in blocks:
    libc.free(ctypes.c_void_p(at))
before = resident()
return_freed_memory()
print(before - resident())
"""
#: 40 threads that are there at once have memory of their own.
_HEAPS = """
import ctypes, re, threading
from pathlib import Path
from tailer.process import memory

memory.os.cpu_count = lambda: 2
memory.share_heaps()
libc = ctypes.CDLL(None)
all_there = threading.Barrier(40)

def work():
    libc.malloc(1000)
    all_there.wait()

threads = [threading.Thread(target=work) for _ in range(40)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
begins = re.findall(r"^([0-9a-f]+)000000-\\S+ rw-p 00000000 00:00 0 *$",
                    Path("/proc/self/maps").read_text(), re.MULTILINE)
print(sum(int(begin, 16) % 4 == 0 for begin in begins))
"""


@pytest.mark.skipif(not _IS_GLIBC, reason="it knows glibc alone")
def test_freed_memory_stays() -> None:
    kept = int(subprocess.check_output([sys.executable, "-c", _RESIDENT], text=True))
    assert kept > 70 * _MIB  # of 80


@pytest.mark.skipif(not _IS_GLIBC, reason="it knows glibc alone")
def test_what_was_freed_is_given_back() -> None:
    given = int(subprocess.check_output([sys.executable, "-c", _RETURNED], text=True))
    assert given >= 80 * _MIB


@pytest.mark.skipif(not _IS_GLIBC, reason="it knows glibc alone")
def test_many_threads_share_as_many_heaps_as_there_are_processors() -> None:
    """A heap of a thread begins at a multiple of 64 MiB."""
    assert int(subprocess.check_output([sys.executable, "-c", _HEAPS], text=True)) <= 2
