"""What the commands on one table share: its log is opened, and closed at the end."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio

from tailer.errors import ConfigError, TableError
from tailer.log.table import TableLog
from tailer.storage import open_store


def on_table(
    command: Callable[[argparse.Namespace, TableLog], Awaitable[int]],
) -> Callable[[argparse.Namespace], Awaitable[int]]:
    """Wrap a command so that it gets the log of its table."""

    async def opened(arguments: argparse.Namespace) -> int:
        async with _open_log(arguments) as log:
            try:
                return await command(arguments, log)
            except TableError as e:
                raise e.at(table=log.store.root) from None

    return opened


@asynccontextmanager
async def _open_log(arguments: argparse.Namespace) -> AsyncIterator[TableLog]:
    """Open the log of the command's table; close its connections afterwards."""
    options: dict[str, Any] = {}
    for option in arguments.store_options:
        key, separator, value = option.partition("=")
        if not separator:
            raise ConfigError(f"--store-option {option!r} must be KEY=VALUE")
        options[key] = value
    store = open_store(arguments.table, options)
    try:
        yield TableLog(store)
    finally:
        with anyio.CancelScope(shield=True):
            await store.aclose()
