"""Who holds a kernel lock on a file, as far as the system shows it.

A process of another user that holds a feed's lock is no daemon to stand by for: the file is for
its owner alone, so that process opened it before it was.
"""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class LockHolder:
    """A process, and its user's name. ``strange``: that user has no part in the file."""

    pid: int
    user: str
    strange: bool

    def __str__(self) -> str:
        """Name it in a message."""
        own = " (this one)" if self.pid == os.getpid() else ""
        return f"process {self.pid} of {self.user}{own}"


def find_lock_holder(file: int) -> LockHolder | None:
    """Return the process that holds a lock on an open file; None if the system does not say."""
    status = os.fstat(file)
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    try:
        lines = (_PROC / "locks").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        fields = line.split()  # number, kind, strength, access, pid, device:file, from, to
        if len(fields) == 8 and fields[1] == "FLOCK" and fields[5] == f"{device}:{status.st_ino}":
            return _find_process(int(fields[4]), status.st_uid)
    return None


def _find_process(pid: int, owner: int) -> LockHolder | None:
    if pid <= 0:  # of another pid namespace, or of a lock that several processes inherited
        return None
    try:
        uid = (_PROC / str(pid)).stat().st_uid
    except OSError:  # it has ended, or is hidden: by ProtectProc or hidepid
        return _find_hidden_process(pid, owner)
    return LockHolder(pid, _find_user_name(uid), strange=uid not in (0, os.geteuid(), owner))


def _find_hidden_process(pid: int, owner: int) -> LockHolder | None:
    """Return a process that is not shown, if it is another user's: the kernel hides no process
    from one that may not signal it. It may be root's, unless root owns nothing here."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return LockHolder(pid, "another user", strange=owner == os.geteuid())
    except OSError:
        pass
    return None


def _find_user_name(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"
