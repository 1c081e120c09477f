"""Run the command that the arguments name. Its module is loaded then, and no other command's."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import anyio

from tailer.errors import TableError
from tailer.process.signals import EXIT_INTERRUPTED, signalled, until_stopped

__all__ = ["run"]

Command: TypeAlias = Callable[[argparse.Namespace], Awaitable[int]]

#: The modules in this folder whose name is not that of the command. A command is a function of its
#: name.
_MODULES = {"run": "services", "check": "services", "share": "services", "spark": "services"}

#: A signal ends these cleanly, and they handle it themselves.
_WITH_OWN_END = ("run", "share", "spark")

#: These make no temporary folders, so they do not look for those that killed processes left.
_WITHOUT_FOLDERS = ("history", "offsets", "shares", "sinks", "snapshot")


def _command(name: str) -> Command:
    module = importlib.import_module(f"tailer.cli.{_MODULES.get(name, name)}")
    command: Command = getattr(module, name)
    return command


def run(arguments: argparse.Namespace) -> int:
    """Run the command that the arguments name, until a signal ends it."""
    command = _command(arguments.command)
    if arguments.command not in _WITHOUT_FOLDERS:
        from tailer.files.spill import sweep

        sweep()
    if arguments.command in _WITH_OWN_END:
        return anyio.run(command, arguments)
    return anyio.run(_until_stopped, command, arguments)


async def _until_stopped(command: Command, arguments: argparse.Namespace) -> int:
    """Run a command that a signal only interrupts. Raises :class:`TableError` if the interrupt
    leaves its output file unwritten."""
    status: int | None = None

    async def work() -> None:
        nonlocal status
        status = await command(arguments)

    await until_stopped(work)
    if status is not None:
        return status
    if arguments.command == "tail":
        return 0
    if getattr(arguments, "output", None) is not None:
        raise TableError("interrupted; no output file was written", table=arguments.table)
    print(f"tailer: {arguments.command} was interrupted before its end", file=sys.stderr)
    return signalled() or EXIT_INTERRUPTED
