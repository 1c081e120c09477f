"""``CONFIG.toml``: read, checked, and turned into values.

Every mistake is one line that names the file, the key and what is allowed. ``${NAME}`` in a string
is the environment variable NAME, so that secrets stay out of the file.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from tailer.decode.engine import DiffOptions
from tailer.decode.plan import ChangeSource
from tailer.decode.rows import DecodeOptions
from tailer.errors import ConfigError
from tailer.feed import FeedOptions, RetryOptions
from tailer.follow import FollowOptions

__all__ = ["Config", "FeedConfig", "load_config"]

T = TypeVar("T")

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True, slots=True)
class FeedConfig:
    """One ``[feeds.NAME]``: a table, a sink and how to get from one to the other."""

    name: str
    table: str
    start: str
    torn_commit_max_s: float
    options: FeedOptions
    sink_type: str
    sink_options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Config:
    """A whole configuration. ``http`` is (host, port), or None where it is off."""

    path: Path
    http: tuple[str, int] | None
    state: Path
    feeds: dict[str, FeedConfig]

    @property
    def folder(self) -> Path:
        """What the relative paths of the file are relative to."""
        return self.path.parent


class _Table:
    """One table of the file; every key must be asked for, or it is unknown."""

    def __init__(self, file: Path, name: str, values: Any) -> None:
        self.file, self.name = file, name
        if not isinstance(values, dict):
            raise ConfigError(f"{file}: {name} must be a table")
        self.values: dict[str, Any] = values
        self.asked: set[str] = set()

    def wrong(self, key: str, what: str) -> ConfigError:
        place = f"{self.name}.{key}" if self.name else key
        return ConfigError(f"{self.file}: {place} {what}")

    def take(self, key: str, kind: type[T], default: T | None = None) -> T:
        """A key of one type; with no default it is required."""
        self.asked.add(key)
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise self.wrong(key, "is missing")
            return default
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.wrong(key, f"is {value!r}, and must be a {kind.__name__}")
        return value

    def choice(self, key: str, allowed: tuple[str, ...], default: str) -> str:
        value = self.take(key, str, default)
        if value not in allowed:
            raise self.wrong(key, f"is {value!r}, and must be one of {', '.join(allowed)}")
        return value

    def positive(self, key: str, kind: type[T], default: T) -> T:
        value = self.take(key, kind, default)
        if not isinstance(value, int | float) or value <= 0:
            raise self.wrong(key, f"is {value!r}, and must be greater than 0")
        return value

    def strings(self, key: str) -> tuple[str, ...]:
        value: list[Any] = self.take(key, list, [])
        if not all(isinstance(item, str) for item in value):
            raise self.wrong(key, f"is {value!r}, and must be a list of strings")
        return tuple(value)

    def table(self, key: str) -> _Table:
        self.asked.add(key)
        return _Table(self.file, f"{self.name}.{key}" if self.name else key, self.values.get(key))

    def finish(self) -> None:
        """Refuse the keys that nobody asked for."""
        for key in self.values:
            if key not in self.asked:
                raise self.wrong(key, f"is not known; known are {', '.join(sorted(self.asked))}")


def load_config(path: Path, environment: Mapping[str, str] = os.environ) -> Config:
    """The configuration in a file. Raises :class:`ConfigError` for the first mistake in it."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise ConfigError(f"{path} can't be read ({e.strerror})") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path} is not TOML: {e}") from e
    top = _Table(path, "", _with_variables(document, path, environment))
    daemon = _Table(path, "daemon", top.take("daemon", dict, {}))
    http = _address(daemon, daemon.take("http", str, "127.0.0.1:9464"))
    state = path.parent / daemon.take("state", str, "state")
    daemon.finish()
    feeds = top.take("feeds", dict)
    top.finish()
    if not feeds:
        raise ConfigError(f"{path}: feeds is empty; describe one as [feeds.NAME]")
    names = _Table(path, "feeds", feeds)
    return Config(path, http, state, {name: _feed(names.table(name), name) for name in feeds})


def _with_variables(value: Any, path: Path, environment: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {k: _with_variables(v, path, environment) for k, v in value.items()}
    if isinstance(value, list):
        return [_with_variables(v, path, environment) for v in value]
    if not isinstance(value, str):
        return value

    def replaced(match: re.Match[str]) -> str:
        if match[1] not in environment:
            raise ConfigError(f"{path}: the environment variable {match[1]} is not set")
        return environment[match[1]]

    return _VARIABLE.sub(replaced, value)


def _address(table: _Table, text: str) -> tuple[str, int] | None:
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65_535:
        raise table.wrong("http", f"is {text!r}, and must be host:port, or empty for none")
    return host.strip("[]"), int(port)


def _feed(table: _Table, name: str) -> FeedConfig:
    sink = table.table("sink")
    sink_type = sink.take("type", str)
    zone = table.take("writer_timezone", str, "UTC")
    try:
        ZoneInfo(zone)
    except (ValueError, OSError, KeyError) as e:  # KeyError: there is none of that name
        raise table.wrong("writer_timezone", f"is {zone!r}, not a time zone's name") from e
    source: ChangeSource = table.choice("change_source", ("auto", "cdf", "derived"), "auto")  # type: ignore[assignment]  # checked there
    config = FeedConfig(
        name=name,
        table=table.take("table", str),
        start=str(table.values.get("from", "latest")),
        torn_commit_max_s=table.positive("torn_commit_max_s", float, 10.0),
        options=FeedOptions(
            change_source=source,
            key=table.strings("key"),
            diff=DiffOptions(
                memory_bytes_max=table.positive("diff_memory_bytes_max", int, 512 * 1024 * 1024),
                spill_folder=table.take("spill_folder", str, "") or None,
            ),
            decode=DecodeOptions(
                batch_rows_max=table.positive("batch_rows_max", int, 65_536),
                batch_bytes_max=table.positive("batch_bytes_max", int, 32 * 1024 * 1024),
                writer_timezone=zone,
            ),
            follow=FollowOptions(
                poll_min_s=table.positive("poll_min_s", float, 0.5),
                poll_max_s=table.positive("poll_max_s", float, 5.0),
            ),
            retry=RetryOptions(
                pause_min_s=table.positive("retry_min_s", float, 0.2),
                pause_max_s=table.positive("retry_max_s", float, 30.0),
            ),
        ),
        sink_type=sink_type,
        sink_options={k: v for k, v in sink.values.items() if k != "type"},
    )
    table.asked.add("from")
    table.finish()
    return config
