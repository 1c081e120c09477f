"""Tables by pattern: ``/lake/*/`` stands for every table in a folder of that folder.

``*`` stands for one folder's name, or for a part of one. A folder is a table if it has a
``_delta_log``. The text that the stars match, joined by ``/``, names the feed: ``NAME/<match>``.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import anyio.to_thread

from tailer.errors import ConfigError, healing
from tailer.store import LOG_DIR

__all__ = ["discover", "is_pattern"]

#: The names of the folders in a folder.
Folders = Callable[[str], Awaitable[list[str]]]


def is_pattern(table: str) -> bool:
    """Return whether a table's address stands for several tables."""
    return "*" in table


async def discover(pattern: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the addresses of the tables that a pattern finds, by the text that the stars match.

    Raises :class:`ConfigError` for an address whose store can't list folders, and
    :class:`TransientError` if the store does not answer.
    """
    scheme, separator, rest = pattern.rpartition("://")
    root = scheme + separator + ("/" if rest.startswith("/") else "")
    parts = [part for part in rest.split("/") if part]
    folders = _store_folders(scheme, options) if separator and scheme != "file" else _local
    found: dict[str, str] = {}
    await _walk(root, parts, (), folders, found)
    return dict(sorted(found.items()))


async def _walk(
    at: str, parts: list[str], matched: tuple[str, ...], folders: Folders, found: dict[str, str]
) -> None:
    while parts and "*" not in parts[0]:
        at, parts = f"{at}{parts[0]}/", parts[1:]
    if not parts:
        if LOG_DIR in await folders(at):
            found["/".join(matched)] = at.rstrip("/")
        return
    texts = [re.escape(text) for text in parts[0].split("*")]
    pattern = re.compile("([^/]*)".join(texts))
    for name in await folders(at):
        match = pattern.fullmatch(name)
        if match and name != LOG_DIR and not name.startswith("."):
            stars = "-".join(match.groups())
            await _walk(f"{at}{name}/", parts[1:], (*matched, stars), folders, found)


async def _local(folder: str) -> list[str]:
    def scan() -> list[str]:
        try:
            path = Path(folder.removeprefix("file://")).expanduser()
            # An unavailable disk has not lost its tables.
            with healing(f"{folder}: it can't be listed"):
                return sorted(entry.name for entry in path.iterdir() if entry.is_dir())
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return []

    return await anyio.to_thread.run_sync(scan)


def _store_folders(scheme: str, options: Mapping[str, Any]) -> Folders:
    if scheme in ("s3", "s3a", "s3n"):
        from tailer.store.s3.folders import list_folders  # on demand

        async def folders(address: str) -> list[str]:
            return await list_folders(address, options)

        return folders
    raise ConfigError(
        f"a pattern can't be looked for at {scheme}://; only local folders and s3:// can"
    )
