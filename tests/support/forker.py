"""The process that programs are forked from: ``python -m tests.support.forker DESCRIPTOR``.

Each request that comes by the socket is a child; see :mod:`tests.support.forking`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import struct
import sys
import threading
import warnings
from contextlib import suppress
from typing import Any

#: How process ids and exit statuses are sent.
NUMBER = struct.Struct("=q")
#: The most that a request may have: arguments and an environment.
REQUEST_BYTES = 200_000

# What most programs load, with all that these import.
LOADED = (
    "aiohttp.web",
    "anyio._backends._asyncio",
    "asyncinotify",
    "pyarrow.compute",
    "pyarrow.parquet",
    "sinks.jsonl",
    "tailer.cli.commands",
    "tailer.cli.offsets",
    "tailer.cli.read",
    "tailer.cli.services",
    "tailer.cli.tail",
    "tailer.cli.verify",
    "tailer.config.feeds",
    "tailer.daemon.http_api",
    "tailer.daemon.check",
    "tailer.daemon.run",
    "tailer.offsets.local",
    "tailer.share_server.app",
    "tailer.share_server.serve",
    "tailer.store.local",
)


def main() -> None:
    """Load, then be each program that is asked for; return when nobody can ask any more."""
    load()
    # Who interrupts the tests does not mean this process.
    interrupts = signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as asked:
        request = serve(asked)
    if request is not None:
        become(request, interrupts)


def load() -> None:
    """Import what programs use."""
    from tailer.cli.main import main as run_command

    # As a program begins: it chooses how memory is kept. What it prints would stay in the buffer,
    # and each child would print it once more.
    with contextlib.redirect_stdout(io.StringIO()):
        run_command(["--version"])
    for name in LOADED:
        importlib.import_module(name)
    assert threading.active_count() == 1, "a process with threads can't be forked safely"
    gc.collect()
    gc.freeze()  # or the collector would write to, and so copy, all that is shared


def serve(asked: socket.socket) -> dict[str, Any] | None:
    """Fork a child for each request: it returns what is asked for. The exit statuses of children
    go to those who asked for them; ``None`` when there is no more to do."""
    running: dict[int, tuple[int, int]] = {}  # by pidfd: the process, and where its end is told
    poll = select.poll()
    poll.register(asked, select.POLLIN)
    while True:
        for ready, _ in poll.poll():
            if ready in running:
                poll.unregister(ready)
                _tell_end(ready, *running.pop(ready))
                continue
            message, descriptors, *_ = socket.recv_fds(asked, REQUEST_BYTES, 4)
            if not message:
                return None
            *streams, told = descriptors
            if not (pid := _fork()):
                for descriptor in (told, *running, *(other for _, other in running.values())):
                    os.close(descriptor)
                return {**json.loads(message), "streams": streams}
            for descriptor in streams:
                os.close(descriptor)
            os.write(told, NUMBER.pack(pid))
            descriptor = os.pidfd_open(pid)
            running[descriptor] = pid, told
            poll.register(descriptor, select.POLLIN)


def _fork() -> int:
    with warnings.catch_warnings():
        # The thread that jemalloc has is ended in the child: it knows of forks.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _tell_end(descriptor: int, pid: int, told: int) -> None:
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(BrokenPipeError):
        os.write(told, NUMBER.pack(status))
    os.close(told)
    os.close(descriptor)


def become(request: dict[str, Any], interrupts: Any) -> None:
    """Be the program that is asked for: ``python -m MODULE ARGUMENTS``. ``interrupts`` handles
    SIGINT, as in a program that Python starts here: it may be ignored."""
    for number, descriptor in enumerate(request["streams"]):
        os.dup2(descriptor, number)
        os.close(descriptor)
    faulthandler.enable()
    signal.signal(signal.SIGINT, interrupts)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    module, *arguments = request["words"]
    sys.path[0] = request["folder"]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
