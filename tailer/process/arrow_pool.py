"""Where pyarrow takes its memory from."""

from __future__ import annotations

import os
import sys

__all__ = ["choose_arrow_pool"]


def choose_arrow_pool(name: str) -> None:
    """Let pyarrow take memory from this pool, if it is not loaded yet, and neither the user nor an
    earlier call has chosen one: ``system``, the C library's, or ``jemalloc``, which returns freed
    memory, so that a process keeps little more than it needs. Platforms whose wheel lacks the pool
    report it."""
    if sys.platform == "linux" and "pyarrow" not in sys.modules:
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", name)
