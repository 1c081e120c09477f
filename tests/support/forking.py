"""Programs without the time that they take to start: each is forked from a process that has loaded
what they use.

    process = start("tailer", "run", "tailer.toml", dev=True)

To start Python and to load this project takes most of a short program's processor time, and tests
start a thousand of them. A forked program is a process like any other, with its own arguments,
environment, folder and streams; signals reach it, and a kill ends it. Tests of the start itself use
:mod:`subprocess`, as :func:`start` does where a program can't be forked.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from tests.support.forker import NUMBER
from tests.support.source import ROOT

# What Python and libraries of C read once, as they start.
READ_AT_START = (
    "ARROW_", "LANG", "LC_", "LD_", "MALLOC_", "MIMALLOC_", "OPENSSL_", "PYTHON", "SSL_", "TZ"
)  # fmt: skip
#: What the program sets itself before it loads what reads it, also in tests that call its `main`.
SET_BY_PROGRAM = {"ARROW_DEFAULT_MEMORY_POOL": "jemalloc"}
#: Development mode without its slow memory allocator: that is a fifth of a program's start, and the
#: compiled part has tests under sanitizers.
DEVELOPMENT = {"PYTHONMALLOC": "pymalloc"}
# Before a test has changed it.
ENVIRONMENT = dict(os.environ)


class Forked:
    """A program that was forked: the part of :class:`subprocess.Popen` that tests use."""

    def __init__(self, pid: int, ending: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ending = ending
        self._turns = threading.Lock()

    def poll(self) -> int | None:
        """The exit status, or ``None`` while it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; returns the exit status."""
        if self.returncode is None:
            if not select.select([self._ending], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"program {self.pid}", timeout or 0.0)
            with self._turns:
                if self.returncode is None:
                    self.returncode = _number(self._ending)
                    os.close(self._ending)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it as a power cut would."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """End it as its operator would."""
        self.send_signal(signal.SIGTERM)


Process = Forked | subprocess.Popen[bytes]


class Forker:
    """The process that programs are forked from; ``environment`` is what it was started with."""

    def __init__(self, options: Sequence[str], environment: Mapping[str, str]) -> None:
        self.environment = environment
        self._turns = threading.Lock()
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *options, "-m", "tests.support.forker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()], cwd=ROOT, env=dict(environment),
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            )  # fmt: skip
        atexit.register(self.close)

    def close(self) -> None:
        """End it. Programs that still run go on."""
        self._requests.close()
        self._process.wait()

    def fork(
        self, words: Sequence[str], environment: Mapping[str, str], folder: Path, streams: list[int]
    ) -> Forked:
        """Start a program: a module and its arguments."""
        request = {"words": words, "environment": environment, "folder": str(folder)}
        ending, told = os.pipe()
        with self._turns:
            socket.send_fds(self._requests, [json.dumps(request).encode()], [*streams, told])
        os.close(told)
        return Forked(_number(ending), ending)


def start(
    *words: str | Path,
    dev: bool = False,
    within: Sequence[str] = (),
    folder: Path | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
) -> Process:
    """Start ``python -m MODULE ARGUMENTS``, in Python's development mode or not. ``within`` is
    a command that runs it in other surroundings, as the same process. The streams are descriptors,
    those of this process where none are given."""
    texts = [str(word) for word in words]
    environment = {**os.environ, **(DEVELOPMENT if dev else {})}
    for name in SET_BY_PROGRAM.keys() - ENVIRONMENT.keys():
        environment.pop(name, None)  # a command that a test has called chose it for this process
    forker = None if within else _forker(dev)
    if forker is None or _read_at_start(environment) != _read_at_start(forker.environment):
        command = [*within, sys.executable, *_options(dev), "-m", *texts]
        return subprocess.Popen(command, env=environment, cwd=folder, stdout=stdout, stderr=stderr)
    streams = [0, 1 if stdout is None else stdout, 2 if stderr is None else stderr]
    return forker.fork(texts, environment, folder or Path.cwd(), streams)


@cache
def _forker(dev: bool) -> Forker | None:  # noqa: FBT001 - one for each mode
    if not hasattr(os, "pidfd_open"):
        return None
    more = DEVELOPMENT if dev else {}
    return Forker(_options(dev), {**SET_BY_PROGRAM, **ENVIRONMENT, **more})


def _options(dev: bool) -> list[str]:  # noqa: FBT001
    return ["-X", "dev"] if dev else []


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    found = {**SET_BY_PROGRAM, **environment}
    return {k: v for k, v in found.items() if k.startswith(READ_AT_START)}


def _number(descriptor: int) -> int:
    got = os.read(descriptor, NUMBER.size)
    assert got, "the process that programs are forked from has ended"
    return int(NUMBER.unpack(got)[0])
