"""Programs that see another machine than the tests do: by mounts and rights of their own.

Each function gives the beginning of a command line, which ends by running the rest of it as the
same process. Mounts are that process's own. A test is skipped where this machine does not allow
them, as without being root.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

from tests.support.components import require

_UNSHARED = ("unshare", "--mount", "--propagation", "private")
_NO_RIGHTS = "--bounding-set=-all --inh-caps=-all"


def with_proc(options: str, *command: str) -> list[str]:
    """A command with a ``/proc`` of its own, mounted with these options.

    Where they hide processes it has no rights of root's, nor root's group: then a process that has
    some is hidden from it.
    """
    without = f"setpriv --regid=65534 --clear-groups {_NO_RIGHTS}" * ("hidepid" in options)
    begun = _begun(f'mount -t proc -o "$0" proc /proc && exec {without} "$@"', options)
    return [*begun, *command]


def with_disk(folder: Path, size: str) -> list[str]:
    """A small disk of the program's own in a folder. Others find it below ``/proc/PID/root``."""
    return _begun(f'mount -t tmpfs -o size={size} tmpfs "$0" && exec "$@"', str(folder))


def with_root(folder: Path, *command: str) -> list[str]:
    """A command whose root is a view of this machine's: what it writes is in ``folder/upper``, and
    stays for the next one."""
    for name in ("upper", "work", "root"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    script = (
        'mount -t overlay overlay -o "lowerdir=/,upperdir=$0/upper,workdir=$0/work" "$0/root" && '
        'for at in dev proc; do mount --rbind /$at "$0/root/$at" || exit 1; done && '
        'exec chroot "$0/root" "$@"'
    )
    return [*_begun(script, str(folder)), *command]


def within_unit(unit: Path, state: Path) -> list[str]:
    """The sandbox of a unit of systemd's, as far as a program shows it: all is read-only but its
    state folder and its own temporary one, ``/proc`` shows its own user's processes, no rights, no
    memory that is written and run, and the system calls and addresses that the unit allows."""
    own = [state, Path(sys.prefix), Path(__file__)]
    free = ("/var/tmp", "/srv", "/media")  # noqa: S108  # hidden by a file system of the program's own
    temporary = next(at for at in free if not any(map(Path.is_relative_to, own, [Path(at)] * 3)))
    script = (
        f'mount --bind "$0" "$0" && mount -t tmpfs tmpfs {temporary} && '
        "mount -t proc -o hidepid=invisible proc /proc && "
        "for at in $(cut -d' ' -f2 /proc/self/mounts | sort -u); do case $at in "
        f'"$0"|{temporary}|/proc*|/sys/*) ;; '
        "*) mount -o remount,bind,ro $at || exit 1;; esac; done && "
        f"export TMPDIR={temporary} && umask 0077 && "
        f'exec setpriv --no-new-privs {_NO_RIGHTS} "$@"'
    )
    begun = _begun(script, str(state))
    return [*begun, sys.executable, str(Path(__file__).with_name("system_calls.py")), str(unit)]


def _begun(script: str, argument: str) -> list[str]:
    require("the right to mount (root's), and unshare and setpriv,", _may_mount())
    return [*_UNSHARED, "sh", "-c", script, argument]


@cache
def _may_mount() -> bool:
    trial = "mount -t proc -o subset=pid,hidepid=invisible proc /proc && setpriv true"
    try:
        done = subprocess.run([*_UNSHARED, "sh", "-c", trial], capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0
