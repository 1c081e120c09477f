"""What a process that reads much and ends soon does first."""

from __future__ import annotations

import ctypes
import threading
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path

from tailer.process.arrow_pool import choose_arrow_pool
from tailer.process.memory import keep_freed_memory

__all__ = ["begin_reading"]

#: This library needs all others of Arrow's, and nothing of Python's.
_ARROW = "libarrow_substrait.so.*"


def begin_reading() -> None:
    """Let all memory come from one heap, and begin to load Arrow's libraries in another thread, the
    process's first one. The system needs 10 ms for them, and none of Python's lock: meanwhile
    modules are loaded, pyarrow last, which finds its libraries there. Where they lie elsewhere than
    the wheels for Linux have them, pyarrow loads them."""
    keep_freed_memory()
    choose_arrow_pool("system")
    threading.Thread(target=_load_arrow).start()


def _load_arrow() -> None:
    package = PathFinder.find_spec("pyarrow")
    for folder in (package and package.submodule_search_locations) or ():
        for library in Path(folder).glob(_ARROW):
            with suppress(OSError):  # pyarrow will say it
                ctypes.CDLL(str(library))
