"""anyio and asyncio, each loaded when something of it is first used.

To load them takes as long as to read a small table, and local files are read without an event loop.
So the modules of a read import them from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["LOOPLESS", "anyio", "asyncio"]

#: The commands that begin without an event loop if the table's files are local.
LOOPLESS = ("history", "read", "snapshot")

if TYPE_CHECKING:
    import asyncio

    import anyio
else:
    from importlib import import_module

    class _Library:
        """Has what the module of its name has."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            return getattr(import_module(self._name), name)

    anyio, asyncio = _Library("anyio"), _Library("asyncio")
