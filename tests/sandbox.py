"""Programs that see another machine than the tests do: by mounts and capabilities of their own."""

from __future__ import annotations

import shutil
import subprocess

from tests.components import require

__all__ = ["with_proc"]


def with_proc(options: str, *command: str) -> list[str]:
    """A command with a ``/proc`` of its own, mounted with these options.

    Where they hide processes it has no rights of root's, nor root's group: then a process that has
    some is hidden from it. The test is skipped where ``/proc`` can't be mounted so, as without
    being root.
    """
    without = "setpriv --regid=65534 --clear-groups --bounding-set=-all --inh-caps=-all"
    script = f'mount -t proc -o "$0" proc /proc && exec {without * ("hidepid" in options)} "$@"'
    wrapped = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, options]
    works = all(map(shutil.which, ("unshare", "setpriv"))) and not _status([*wrapped, "true"])
    require(f"the right to mount /proc with {options}", works)
    return [*wrapped, *command]


def _status(command: list[str]) -> int:
    return subprocess.run(command, capture_output=True, check=False).returncode
