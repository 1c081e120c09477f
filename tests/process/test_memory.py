"""What glibc does with freed memory."""

from __future__ import annotations

import mmap
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tailer.process import memory

_MIB = 1024 * 1024
_IS_GLIBC = platform.libc_ver()[0] == "glibc"

_MAPS = """
import sys
from pathlib import Path
from tailer.process import memory

memory._free_huge_bytes = lambda: int(sys.argv[1])
memory._are_returned = lambda: sys.argv[2:] == ["returned"]
memory.keep_freed_memory()
print(Path("/proc/self/smaps").read_text())
"""
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


def _advised(free_bytes: int, *returned: str) -> int:
    """Return how much memory is to lie in huge pages where so much of them is free."""
    command = [sys.executable, "-c", _MAPS, str(free_bytes), *returned]
    smaps = subprocess.check_output(command, text=True)
    regions = re.findall(r"^Size: +(\d+) kB\n(?:.*\n)*?VmFlags:(.*)", smaps, re.MULTILINE)
    assert len(regions) > 10
    return sum(int(size) * 1024 for size, flags in regions if "hg" in flags.split())


@pytest.mark.skipif(not _IS_GLIBC or mmap.PAGESIZE != 4096, reason="it knows glibc alone")
def test_the_heap_has_huge_pages_only_where_they_are_free() -> None:
    if not Path("/sys/kernel/mm/transparent_hugepage").exists():
        pytest.skip("the system has no huge pages")
    enough = _advised(2**40)
    assert 128 * _MIB <= enough < 192 * _MIB
    assert _advised(128 * _MIB) == _advised(0) == _advised(2**40, "returned") == 0


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


@pytest.mark.skipif(mmap.PAGESIZE != 4096, reason="huge pages are others")
def test_free_huge_pages_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = tmp_path / "buddyinfo"
    monkeypatch.setattr(memory, "_FREE_BLOCKS", blocks)
    assert memory._free_huge_bytes() == 0  # a container may not show them
    blocks.write_text(
        "Node 0, zone    DMA32   4906   3800   3278   1961   1317   917   585   375   235    3 4\n"
        "Node 0, zone   Normal 226187 206980  72074  11838   4091  1428   765   562   188    5 0\n"
    )
    assert memory._free_huge_bytes() == (3 + 2 * 4 + 5) * 2 * _MIB


def test_a_machine_that_returns_free_pages_to_its_host_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "page_reporting_order"
    monkeypatch.setattr(memory, "_RETURNED", told)
    assert not memory._are_returned()  # an older kernel
    for order in ("0", "9"):
        told.write_text(f"{order}\n")
        assert memory._are_returned()
    for order in ("-1", "11", "4294967295", ""):
        told.write_text(f"{order}\n")
        assert not memory._are_returned()
