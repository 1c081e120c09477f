"""A clock for what others do meanwhile."""

from __future__ import annotations

import time


def steady_now() -> float:
    """Return the seconds of a clock that also runs while the process or the machine sleeps."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)
