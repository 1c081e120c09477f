"""`tailer completion`: what completes commands, options and files in a shell.

The script is complete in itself: no Python is started when the user presses a key.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import shtab

from tailer.cli.main import build_parser

#: What arguments of these names are completed with.
_FILES = ("TABLE", "CONFIG.toml", "PROFILE", "FILE")
_FOLDERS = ("FOLDER",)


async def completion(arguments: argparse.Namespace) -> int:
    """Print the script of a shell; return the exit status."""
    whole = build_parser()
    for action in _list_actions(whole):
        if action.metavar in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar in _FOLDERS:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    print(shtab.complete(whole, shell=arguments.shell))
    return 0


def _list_actions(of: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a parser and of its commands."""
    for action in of._actions:  # noqa: SLF001 - argparse has no other way to its arguments
        yield action
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for command in action.choices.values():
                yield from _list_actions(command)
