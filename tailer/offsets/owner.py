"""Who holds a lease: a process that others can name, and perhaps see to be dead.

On one machine, within one pid namespace, a process is told for certain by its number and the moment
it was started; a lease of one that is no more need not be waited for.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

__all__ = ["describe", "is_dead", "this_process"]

_PROC = Path("/proc")


def this_process() -> dict[str, Any]:
    """This process, for the world: host name and process id, and what makes them certain."""
    return {"host": socket.gethostname(), "pid": os.getpid(), **_certain(os.getpid())}


def is_dead(owner: dict[str, Any]) -> bool:
    """Whether that process is known to be no more. False where that can't be known from here."""
    here = _certain(os.getpid())
    pid = owner.get("pid")
    if not here or not isinstance(pid, int) or owner.get("machine") != here["machine"]:
        return False
    return _certain(pid).get("started") != owner.get("started")


def describe(owner: dict[str, Any]) -> str:
    """The owner, for messages."""
    return f"process {owner.get('pid')} on {owner.get('host')}"


def _certain(pid: int) -> dict[str, Any]:
    """Boot and namespace, and when the process was started; nothing where the system has no such
    files or no such process."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        namespace = (_PROC / "self/ns/pid").readlink()
        # The name, in brackets, may have spaces in it; the start is the 22nd field of all.
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        if fields[0] in "ZX":  # it has ended, and only waits to be seen so by its parent
            return {}
        return {"machine": f"{boot} {namespace}", "started": int(fields[19])}
    except (OSError, ValueError, IndexError):
        return {}
