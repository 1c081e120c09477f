"""Who holds a lease: a process that others can name, and perhaps see to be dead.

A lease of a process that is known to be no more need not be waited for. Two things prove that:

* within one pid namespace of one boot, the process's number and the moment it was started;
* a lock of the kernel's on a file, which is the process's until its end, whatever that is. Who has
  the lock knows that every earlier process that had it is dead: so a container that is started
  again in its own place, where numbers tell nothing, can take up its own lease.

A name (a host's, a pod's) proves nothing: two processes may have it at a time.
"""

from __future__ import annotations

import fcntl
import os
import socket
import uuid
from pathlib import Path
from typing import Any

from tailer.errors import ConfigError

__all__ = ["describe", "is_dead", "keep_place", "this_process"]

_PROC = Path("/proc")
#: This process, told from all others that ever have the same place.
_RUN = uuid.uuid4().hex


class _Place:
    """A lock file in a folder of this machine's, which one process at a time has."""

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(
                folder / "tailer.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
        except OSError as e:
            raise ConfigError(
                f"{folder} can't be used ({e.strerror}); it must be a folder that this user may "
                "write to"
            ) from e
        self._name: str | None = None

    def name(self) -> str | None:
        """What names the place, once this process has the lock; from then on to its end.

        The file's number is a part of it, for the file may be a copy; so is the boot, for a file
        server may have given the lock to another machine.
        """
        if self._name is None and (boot := _boot()):
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return None
            found = os.pread(self._file, 64, 0).decode("ascii", "replace")
            if len(found) != len(_RUN):
                found = uuid.uuid4().hex
                os.ftruncate(self._file, 0)
                os.pwrite(self._file, found.encode(), 0)
            status = os.fstat(self._file)
            self._name = f"{boot} {found} {status.st_dev}:{status.st_ino}"
        return self._name

    def close(self) -> None:
        """Leave the place to others."""
        os.close(self._file)


_place: _Place | None = None


def keep_place(folder: Path | None) -> None:
    """Have this process lock a place in a folder, from now to its end; None leaves it.

    Raises :class:`ConfigError` for a folder that can't be used.
    """
    global _place  # noqa: PLW0603  # it is the process that has it
    if _place is not None:
        _place.close()
    _place = None if folder is None else _Place(folder)


def this_process() -> dict[str, Any]:
    """This process, for the world: host name and process id, and what makes them certain."""
    here = {"host": socket.gethostname(), "pid": os.getpid(), "run": _RUN, **_certain(os.getpid())}
    place = _place.name() if _place else None
    return {**here, "place": place} if place else here


def is_dead(owner: dict[str, Any]) -> bool:
    """Whether that process is known to be no more. False where that can't be known from here."""
    place = owner.get("place")
    if place and _place and _place.name() == place and owner.get("run") not in (None, _RUN):
        return True
    here = _certain(os.getpid())
    pid = owner.get("pid")
    if not here or not isinstance(pid, int) or owner.get("machine") != here["machine"]:
        return False
    return _certain(pid).get("started") != owner.get("started")


def describe(owner: dict[str, Any]) -> str:
    """The owner, for messages."""
    return f"process {owner.get('pid')} on {owner.get('host')}"


def _boot() -> str:
    """What names the running kernel's start; empty where the system does not tell."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _certain(pid: int) -> dict[str, Any]:
    """Boot and namespace, and when the process was started; nothing where the system has no such
    files or no such process."""
    try:
        namespace = (_PROC / "self/ns/pid").readlink()
        # The name, in brackets, may have spaces in it; the start is the 22nd field of all.
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        if fields[0] in "ZX":  # it has ended, and only waits to be seen so by its parent
            return {}
        return {"machine": f"{_boot()} {namespace}", "started": int(fields[19])}
    except (OSError, ValueError, IndexError):
        return {}
