"""Runs a program with the system calls that a unit of systemd's allows, and no others.

    python tests/support/system_calls.py UNIT PROGRAM ARGUMENTS...

What the filter's groups are is systemd's own word; the kernel holds the program to it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import subprocess
import sys
from pathlib import Path

_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_PR_SET_MDWE, _EQUAL = 65, 4
_FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}


class _Comparison(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_uint), ("operator", ctypes.c_int),
        ("value", ctypes.c_uint64), ("mask", ctypes.c_uint64),
    )  # fmt: skip


def _settings(unit: str, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", unit, re.MULTILINE)


def _calls(name: str) -> set[str]:
    """The system calls of a group, or the one of that name."""
    if not name.startswith("@"):
        return {name}
    said = subprocess.run(
        ["systemd-analyze", "syscall-filter", name], capture_output=True, text=True, check=True
    )
    lines = [line.strip() for line in said.stdout.splitlines()[1:]]
    return {c for line in lines if line and not line.startswith("#") for c in _calls(line)}


def _allowed(unit: str) -> set[str]:
    allowed: set[str] = set()
    for setting in _settings(unit, "SystemCallFilter"):
        named = {c for name in setting.removeprefix("~").split() for c in _calls(name)}
        allowed = allowed - named if setting.startswith("~") else allowed | named
    return allowed


def _confine(unit: str) -> None:
    seccomp, c = ctypes.CDLL("libseccomp.so.2"), ctypes.CDLL(None, use_errno=True)
    if _settings(unit, "MemoryDenyWriteExecute") == ["yes"] and c.prctl(_PR_SET_MDWE, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "memory that is written and run can't be denied")
    seccomp.seccomp_init.restype = ctypes.c_void_p
    rules = ctypes.c_void_p(seccomp.seccomp_init(_ERRNO | errno.EPERM))
    families = [_FAMILIES[f] for s in _settings(unit, "RestrictAddressFamilies") for f in s.split()]
    for name in _allowed(unit):
        number = seccomp.seccomp_syscall_resolve_name(name.encode())
        if number < 0:
            continue  # not of this machine
        if name != "socket":
            seccomp.seccomp_rule_add_array(rules, _ALLOW, number, 0, None)
            continue
        for family in families:
            only = _Comparison(0, _EQUAL, family, 0)
            seccomp.seccomp_rule_add_array(rules, _ALLOW, number, 1, ctypes.byref(only))
    if seccomp.seccomp_load(rules):
        raise OSError("the filter of system calls was not taken")


if __name__ == "__main__":
    _confine(Path(sys.argv[1]).read_text())
    os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606  # it takes this one's place
