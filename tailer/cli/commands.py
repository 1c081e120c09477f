"""A command: its help, and how it runs. Only then its module is loaded, and no other's."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Coroutine
from importlib import import_module
from typing import Any, TypeAlias

import anyio
from msgspec import Struct

from tailer.errors import TableError
from tailer.files.spill import sweep_folders
from tailer.process.memory import keep_freed_memory, share_heaps
from tailer.process.signals import EXIT_INTERRUPTED, GRACE_S, find_signal_status, run_until_stopped

Work: TypeAlias = Callable[[argparse.Namespace], Coroutine[Any, Any, int]]


class Command(Struct, frozen=True):
    """One command of the command line.

    ``does`` is its line in the help. ``module`` of this folder has a function of the command's
    name; without a text, the module has that name too. ``writes_rows``: it writes rows, if it has
    an output. ``ends_well``: a signal is its ordinary
    end. ``handles_signals``: it sees to its end itself.
    """

    name: str
    does: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    module: str = ""
    writes_rows: bool = False
    ends_well: bool = False
    handles_signals: bool = False

    def load(self) -> Work:
        """Load the command's function."""
        work: Work = getattr(import_module(f"tailer.cli.{self.module or self.name}"), self.name)
        return work


def run_command(command: Command, arguments: argparse.Namespace) -> int:
    """Run a command until a signal ends it; return the exit status.

    Raises :class:`TableError` if a signal leaves the command's output file unwritten.
    """
    output = getattr(arguments, "output", None)
    if command.writes_rows and output is not None:
        keep_freed_memory()
    else:
        share_heaps()
    work = command.load()
    sweep_folders()
    if command.handles_signals:
        return anyio.run(work, arguments)
    status = anyio.run(_until_stopped, work, arguments)
    if status is not None:
        return status
    if command.ends_well:
        return 0
    if output is not None:
        raise TableError("interrupted; no output file was written", table=arguments.table)
    print(f"tailer: {command.name} was interrupted before its end", file=sys.stderr)
    return find_signal_status() or EXIT_INTERRUPTED


async def _until_stopped(work: Work, arguments: argparse.Namespace) -> int | None:
    """Return the exit status of a command; None if a signal interrupted it."""
    status: int | None = None

    async def run() -> None:
        nonlocal status
        status = await work(arguments)

    await run_until_stopped(run, grace_s=GRACE_S)
    return status
