"""Memory that was freed, and whose it is then."""

from __future__ import annotations

import subprocess
import sys

from tests.support.source import ROOT

#: 100 MB in small blocks that are freed below one that stays, as in a process that runs long.
_PROGRAM = """
import ctypes
from pathlib import Path

from tailer.process.memory import return_freed_memory

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
if not hasattr(libc, "malloc_trim"):
    raise SystemExit(77)


def resident_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) // 256


def block():
    at = libc.malloc(1000)
    ctypes.memset(at, 1, 1000)
    return at


blocks = [block() for _ in range(100_000)]
stays = block()
for at in blocks:
    libc.free(ctypes.c_void_p(at))
kept = resident_mib()
return_freed_memory()
print(kept - resident_mib())
"""


def test_what_was_freed_is_given_back() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode == 77:
        return  # another C library keeps its own ways
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 80
