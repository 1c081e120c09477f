"""Run the command that the arguments name. Its module is loaded then, and no other command's."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from typing import Any, TypeAlias

from tailer.errors import TableError
from tailer.process import memory
from tailer.process.arrow_pool import choose_arrow_pool
from tailer.process.garbage import collect_from_now_on
from tailer.process.hidden_modules import without_module
from tailer.process.loop_library import LOOPLESS, anyio
from tailer.process.signals import (
    EXIT_INTERRUPTED,
    GRACE_S,
    signalled,
    until_interrupted,
    until_stopped,
)
from tailer.process.threads import BegunWork
from tailer.storage import is_local

__all__ = ["run"]

Command: TypeAlias = Callable[[argparse.Namespace], Coroutine[Any, Any, int]]

#: The modules in this folder whose name is not that of the command. A command is a function of its
#: name.
_MODULES = {"run": "services", "check": "services", "share": "services", "spark": "services"}

#: These load no code of a user's that may need pandas.
_WITHOUT_PANDAS = ("history", "read", "snapshot", "tail", "verify")

#: A signal ends these cleanly, and they handle it themselves.
_WITH_OWN_END = ("run", "share", "spark")

#: These make no temporary folders, so they do not look for those that killed processes left.
_WITHOUT_FOLDERS = (
    "completion", "history", "init", "offsets", "shares", "sinks", "snapshot", "version",
)  # fmt: skip

#: These write rows, if they have an output.
_OF_ROWS = ("read", "snapshot")

#: These run until they are ended.
_LONG = ("run", "share", "tail")


def _command(name: str) -> Command:
    module = importlib.import_module(f"tailer.cli.{_MODULES.get(name, name)}")
    command: Command = getattr(module, name)
    return command


def run(arguments: argparse.Namespace) -> int:
    """Run the command that the arguments name, until a signal ends it; return the exit status.

    Raises :class:`TableError` if a signal leaves the command's output file unwritten.
    """
    # pyarrow loads it at the first value of Python's that becomes one of Arrow's: 0.3 s.
    with without_module("pandas") if arguments.command in _WITHOUT_PANDAS else nullcontext():
        return _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    output = getattr(arguments, "output", None)
    if output is not None and arguments.command in _OF_ROWS:
        memory.keep_freed_memory()
        choose_arrow_pool("system")  # the same heap
    elif arguments.command in _LONG:
        memory.share_heaps()
    choose_arrow_pool("jemalloc")
    command = _command(arguments.command)
    if arguments.command not in _WITHOUT_FOLDERS:
        from tailer.files.spill import sweep

        sweep()
    if arguments.command in _WITH_OWN_END:
        collect_from_now_on()
        return anyio.run(command, arguments)
    if arguments.command != "read":  # which loads more
        collect_from_now_on()
    work = BegunWork(lambda: command(arguments))
    begins = arguments.command in LOOPLESS and is_local(arguments.table)
    if not begins or until_interrupted(work.begin, grace_s=GRACE_S) is False:
        anyio.run(_until_stopped, work)
    if work.result is not None:
        return work.result
    if arguments.command == "tail":
        return 0
    if output is not None:
        raise TableError("interrupted; no output file was written", table=arguments.table)
    print(f"tailer: {arguments.command} was interrupted before its end", file=sys.stderr)
    return signalled() or EXIT_INTERRUPTED


async def _until_stopped(work: BegunWork[int]) -> None:
    """Do a command's work, or the rest of it, until a signal interrupts it."""
    started = False

    async def go_on() -> None:
        nonlocal started
        started = True
        await work.go_on()

    await until_stopped(go_on, grace_s=GRACE_S)
    if not started:
        await work.give_up()
