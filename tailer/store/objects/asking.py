"""What surrounds each request by obstore: the end of the process, and that of its memory.

A thread of obstore that has just delivered an answer still needs Python's lock. If the interpreter
ended before it had it, the process would be aborted.

obstore reads listings and errors whole, however long they are, and has no limit for it. So the
size of this process is checked while an answer is awaited. What obstore has read is freed when
nobody waits for it any more.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import resource
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tailer.errors import TransientError

#: How long such a thread may need, in seconds.
_LOCK_S = 0.05
#: How long it is waited for on a busy machine, where it gets no processor, and how often it is
#: looked at.
_BUSY_MAX_S, _LOOK_S = 5.0, 0.005
#: What the system calls the threads of obstore's runtime.
_RUNTIME = "(tokio"
#: How often the process's size is checked, first this long after a request: most end before that.
_CHECK_S = 0.1
#: How far the process may grow meanwhile, beyond what was asked for: other feeds are at work, too.
_GROWTH_BYTES_MAX = 384 * 1024 * 1024
_STATM = Path("/proc/self/statm")

_last_s = float("-inf")


class Endless(TransientError):
    """An answer seems to have no end: this process grew too far while it was awaited."""


class asking:  # noqa: N801  # reads as a statement: async with asking(...)
    """Hold this around each await of obstore's: the interpreter does not end right after it, and an
    answer without end is abandoned. ``where`` is for the error, and ``room_bytes`` are asked for.

    Raises :class:`Endless`.
    """

    def __init__(self, where: str, room_bytes: float = 0) -> None:
        self._where, self._most = where, _GROWTH_BYTES_MAX + room_bytes
        self._limit = asyncio.timeout(None)
        self._before: int | None = None

    async def __aenter__(self) -> Self:
        await self._limit.__aenter__()
        self._schedule_check()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        global _last_s  # noqa: PLW0603  # one for the process, which ends once
        self._timer.cancel()
        _last_s = time.monotonic()
        left = self._limit.when() is not None
        try:
            await self._limit.__aexit__(kind, error, trace)
        except TimeoutError:
            if not left:
                raise
            raise Endless(
                f"{self._where}: the server's answer has no end (this process has grown by "
                f"{_GROWTH_BYTES_MAX >> 20} MiB while it was awaited); check the server, and any "
                "proxy between it and this machine"
            ) from None

    def _schedule_check(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_CHECK_S, self._check_growth)

    def _check_growth(self) -> None:
        now = _measure_resident_bytes()
        self._before = now if self._before is None else self._before
        if now - self._before > self._most:
            self._limit.reschedule(asyncio.get_running_loop().time())
        else:
            self._schedule_check()


def _measure_resident_bytes() -> int:
    """Return the memory of this process; where the system does not say it, the most that it had."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


@atexit.register
def _wait_for_lock() -> None:
    until = _last_s + _BUSY_MAX_S
    time.sleep(max(0.0, _last_s + _LOCK_S - time.monotonic()))  # the lock is free meanwhile
    while time.monotonic() < until and _has_runnable_threads():
        time.sleep(_LOOK_S)


def _has_runnable_threads() -> bool:
    """Return whether a thread of obstore's wants the processor; False where the system does not
    say it."""
    for thread in Path("/proc/self/task").glob("*/stat"):
        with suppress(OSError):  # it has ended
            name, _, rest = thread.read_text().partition(") ")
            if _RUNTIME in name and rest.startswith("R"):
                return True
    return False
