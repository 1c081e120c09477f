"""Addresses that no store can serve as they are typed, each with the one to type instead."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tailer.errors import ConfigError

_QUOTED = re.compile(r"""(["'`])(.*)\1""", re.DOTALL)
_SQL_PATH = re.compile(r"(?:delta|parquet)\.[`'\"](.+)[`'\"]", re.IGNORECASE | re.DOTALL)
_ONE_SLASH = re.compile(r"(s3[an]?|gs|abfss?|wasbs?|az|adl|hdfs|https?):/?([^/].*)", re.IGNORECASE)
_DBFS = re.compile(r"dbfs:/*(.*)", re.IGNORECASE | re.DOTALL)
_WINDOWS = re.compile(r"([A-Za-z]):[\\/](.*)", re.DOTALL)


def check_address(table: str) -> None:
    """Raise :class:`ConfigError` for the address of a table as other systems write it.

    A local file of that very name comes first.
    """
    if not table.strip():
        raise ConfigError("the table's address is empty: a path, s3://bucket/key or a shared table")
    if "\0" in table:
        raise ConfigError(f"{table!r} has a NUL, which no path has")
    if os.path.lexists(table):
        return
    if (meant := _describe_mistake(table)) is not None:
        raise ConfigError(f"{table!r} {meant}")


def _describe_mistake(table: str) -> str | None:
    """Return what an address is instead, and what to type."""
    if found := _SQL_PATH.fullmatch(table):
        return f"is SQL's way to name a path; type {found[1]}"
    if found := _QUOTED.fullmatch(table):
        return f"has quotes of its own; type {found[2]}"
    if table != table.strip():
        return f"has blanks around it; type {table.strip()}"
    if found := _DBFS.fullmatch(table):
        return (
            "is a path of Databricks' file system, which is on its clusters alone; there type "
            f"/dbfs/{found[1]}, elsewhere the storage's own address, such as s3://bucket/key"
        )
    if found := _ONE_SLASH.fullmatch(table):
        return f"lacks a slash; type {found[1].lower()}://{found[2]}"
    if found := _WINDOWS.fullmatch(table):
        rest = found[2].replace("\\", "/")
        return (
            "is a path of Windows, and this machine has no drives; type where it is mounted, such "
            f"as /mnt/{found[1].lower()}/{rest}"
        )
    if table.startswith("\\\\"):
        return "is a share of Windows' network; mount it, and type the folder that it is mounted at"
    if table.startswith("~"):
        try:
            Path(table).expanduser()
        except RuntimeError:
            return "begins with a home folder that is not known; type the whole path"
    return None
