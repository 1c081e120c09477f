"""The arguments of the functions, checked: addresses, options of stores, versions and times."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any

from tailer.errors import ConfigError
from tailer.log.starts import check_start
from tailer.log.times import is_moment
from tailer.offset import Offset


def check_address(name: str, address: Any) -> str:
    """Return a path or an address as text. Raises :class:`ConfigError`."""
    text = fspath(address) if isinstance(address, PathLike) else address
    if not isinstance(text, str) or not text:
        raise ConfigError(f"the {name} is {address!r}, and must be a path or an address")
    return text


def check_options(given: Any) -> Mapping[str, Any]:
    """Return the options that are given. Raises :class:`ConfigError` for what are no options."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise ConfigError("storage_options must be a mapping of names to values")
    return {name: value for name, value in given.items() if value is not None}


def check_from(start: Any, after: Any) -> str | None:
    """Return where a read starts as text, unless an offset says it. Raises :class:`ConfigError`."""
    if start is None:
        return None
    if isinstance(after, Offset | str):
        raise ConfigError("start and after are both given; an offset says where to start")
    if start in ("earliest", "latest", "snapshot"):
        return str(start)
    text = check_moment("start", start)
    check_start(text)
    return text


def check_whole(name: str, given: Any) -> int:
    """Check a whole number. Raises :class:`ConfigError`."""
    if not isinstance(given, int) or isinstance(given, bool) or given < 0:
        raise ConfigError(f"{name} is {given!r}, and must be a whole number from 0")
    return given


def check_moment(name: str, given: Any) -> str:
    """Return a version or a time as text. Raises :class:`ConfigError`."""
    text = given
    if isinstance(given, dt.date):  # a datetime is one
        text = given.isoformat()
    elif isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        text = str(given)
    if not isinstance(text, str) or not is_moment(text):
        raise ConfigError(
            f"{name} is {given!r}, and must be a version or a time, such as 12 or "
            "'2026-01-31 12:00:00'"
        )
    return text
