"""The holder of a lease: a process that others can identify, and perhaps prove to be dead.

The lease of a process that is known to have ended need not be waited for. Two things prove it:

- within one pid namespace of one known boot: no process has its number, or the one that has it was
  started at another time;
- a kernel lock on a file, which the process holds until it ends, in any way. The holder of the
  lock knows that every earlier holder is dead. So a container that is restarted in place, where
  process numbers prove nothing, can take its lease back.

A name (a host's, a pod's) proves nothing: two processes may have it at a time. Nor does hidden
information: if the system hides its boot id (``ProcSubset=pid``), two machines look the same, and
if it hides other users' processes (``hidepid``, ``ProtectProc``), live ones are missing from
``/proc``. Then no process counts as dead.

For example, what B concludes about A, which holds the lease:

| A says of itself | B finds | A |
| --- | --- | --- |
| machine m, pid 7, started 100 | machine m; no process 7, or one started at 250 | is dead |
| machine m, pid 7, started 100 | machine n | may live: B waits for the lease |
| pid 1, place p, run r | B holds the lock of p, and its own run is s | is dead |
| pid 1, place p, run r | B has no lock, or another place's | may live: B waits for the lease |

What must never happen: a live process is called dead, for then two of them write. That a dead one
is waited for costs only the lease's time.
"""

from __future__ import annotations

import fcntl
import os
import socket
import uuid
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tailer.errors import ConfigError, may_heal, out_of_reach
from tailer.files.durable import make_folder, open_private

_PROC = Path("/proc")


@cache
def _make_run_id() -> str:
    """Return the id of this process among all that ever have the same place. It is made on first
    use, because a process that is forked later has another one."""
    return uuid.uuid4().hex


class _Place:
    """A lock file in a local folder, held by one process at a time."""

    def __init__(self, folder: Path) -> None:
        try:
            make_folder(folder, private=True)
            self._file = open_private(folder / "tailer.lock", os.O_RDWR | os.O_CREAT)
        except OSError as e:
            if may_heal(e):
                raise out_of_reach(f"{folder} can't be used", e) from e
            raise ConfigError(
                f"{folder} can't be used ({e.strerror}); it must be a folder that this user may "
                "write to"
            ) from e
        self._name: str | None = None

    def acquire_id(self) -> str | None:
        """Return the id of the place once this process has the lock, which it keeps until it ends.

        The file's number is a part of it, because the file may be a copy; so is the boot, because a
        file server may have given the lock to another machine.
        """
        if self._name is None and (boot := _read_boot_id()):
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return None
            found = os.pread(self._file, 64, 0).decode("ascii", "replace")
            if len(found) != len(_make_run_id()):
                found = uuid.uuid4().hex
                os.ftruncate(self._file, 0)
                os.pwrite(self._file, found.encode(), 0)
            status = os.fstat(self._file)
            self._name = f"{boot} {found} {status.st_dev}:{status.st_ino}"
        return self._name

    def close(self) -> None:
        """Release the place."""
        os.close(self._file)


_place: _Place | None = None


def keep_place(folder: Path | None) -> None:
    """Lock a place in a folder for the rest of this process; None releases it.

    Raises :class:`ConfigError` for a folder that can't be used, :class:`TransientError` for one
    that can't be used at the moment.
    """
    global _place  # noqa: PLW0603  # the process owns it
    if _place is not None:
        _place.close()
    _place = None if folder is None else _Place(folder)


def this_process() -> dict[str, Any]:
    """Describe this process to others: host name and process id, and what proves them."""
    here: dict[str, Any] = {"host": socket.gethostname(), "pid": os.getpid(), "run": _make_run_id()}
    if (machine := _read_machine_id()) and (status := _read_status("self")):
        here |= {"machine": machine, "started": status.started}
    place = _place.acquire_id() if _place else None
    return {**here, "place": place} if place else here


def is_dead(owner: dict[str, Any]) -> bool:
    """Return whether a process is known to have ended. False if that can't be known from here."""
    place = owner.get("place")
    if (
        place
        and _place
        and _place.acquire_id() == place
        and owner.get("run") not in (None, _make_run_id())
    ):
        return True
    pid, started, machine = owner.get("pid"), owner.get("started"), _read_machine_id()
    if type(pid) is not int or type(started) is not int or pid <= 0:
        return False
    return machine != "" and owner.get("machine") == machine and _is_gone(pid, started)


def describe_owner(owner: dict[str, Any]) -> str:
    """Return the owner's name for messages."""
    own = " (this one)" if owner.get("run") == _make_run_id() else ""
    return f"process {owner.get('pid')} on {owner.get('host')}{own}"


def _read_boot_id() -> str:
    """Return the id of the running kernel's boot; empty if the system hides it."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _read_machine_id() -> str:
    """Return the scope in which process numbers are comparable; empty if the system hides it.

    It consists of the boot, and the namespaces of process numbers and of clocks.
    """
    boot, namespaces = _read_boot_id(), _PROC / "self/ns"
    try:
        numbers = (namespaces / "pid").readlink()
        clocks = (namespaces / "time").readlink() if (namespaces / "time").is_symlink() else ""
    except OSError:
        return ""
    return f"{boot} {numbers} {clocks}" if boot else ""


def _is_gone(pid: int, started: int) -> bool:
    """Return whether no process of this namespace has that number and start."""
    try:
        os.kill(pid, 0)  # asks the kernel, which hides no process from it
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        pass  # it exists, as another user's
    status = _read_status(str(pid)) if _shows_this_namespace() else None
    if status is None:
        return False
    # Z and X: it has ended, and its parent has not collected it yet.
    return status.state in "ZX" or status.started != started


def _shows_this_namespace() -> bool:
    """Return whether the numbers in ``/proc`` are those of this process's namespace."""
    try:
        return (_PROC / "self").readlink().name == str(os.getpid())
    except OSError:
        return False


class _Status(NamedTuple):
    """The state of a process by its letter in ``/proc``, and its start in ticks since the boot."""

    state: str
    started: int


def _read_status(process: str) -> _Status | None:
    """Return a process's status; None if the system does not show it."""
    try:
        # The name, in brackets, may have spaces in it; the start is the 22nd field of all.
        fields = (_PROC / process / "stat").read_text().rpartition(")")[2].split()
        return _Status(fields[0], int(fields[19]))
    except (OSError, ValueError, IndexError):
        return None
