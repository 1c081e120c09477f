"""Every key of ``CONFIG.toml``: its kind, its default and what it means.

The reading of a file, its refusals and the reference in docs/configuration.md all come from here
or are held to it by a test.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tailer.errors import ConfigError, meant

__all__ = ["DAEMON", "FEED", "Kind", "Setting", "Settings", "read_document"]

#: No number of a file is as great: machines count up to it, and it leaves out infinity.
_TOO_GREAT = 2**63
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")

Kind = Literal["text", "whole", "number", "flag", "texts", "table", "start"]
_TYPES: dict[Kind, tuple[type, ...]] = {
    "text": (str,), "flag": (bool,), "texts": (list,), "table": (dict,), "start": (object,),
}  # fmt: skip
_NAMES: dict[Kind, str] = {
    "text": "a string", "whole": "a whole number", "number": "a number",
    "flag": "true or false", "texts": "a list of strings", "table": "a table", "start": "a start",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Setting:
    """One key. ``default`` None: it is required, unless ``optional``. Numbers are finite, and
    greater than 0: ``zero`` allows 0 too, ``least`` is the smallest one where that is greater.
    ``choices``: the texts that may stand there, all of them where there are none."""

    kind: Kind
    default: Any
    text: str
    choices: tuple[str, ...] = ()
    zero: bool = False
    optional: bool = False
    least: int = 0

    def allowed(self) -> str:
        """What may stand there, for messages and the reference."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.kind in ("whole", "number"):
            least = f"{self.least} or greater" if self.zero or self.least else "greater than 0"
            return f"{_NAMES[self.kind]}, {least}"
        return _NAMES[self.kind]

    def fault(self, value: Any) -> bool:
        """Whether a value may not stand there."""
        if self.kind in ("whole", "number"):
            whole = isinstance(value, int) and not isinstance(value, bool)
            number = whole or (self.kind == "number" and isinstance(value, float))
            if not number or not self.least <= value < _TOO_GREAT:
                return True
            return value == 0 and not self.zero
        if not isinstance(value, _TYPES[self.kind]):
            return True
        if isinstance(value, str):
            return bool(self.choices) and value not in self.choices
        return isinstance(value, list) and not all(isinstance(item, str) for item in value)


DAEMON: dict[str, Setting] = {
    "http": Setting(
        "text", "127.0.0.1:9464", "Where metrics, health and control are; empty: off.",
        optional=True,
    ),
    "state": Setting("text", "state", "Where offsets are kept: a folder, or `s3://bucket/prefix`."),
    "token": Setting(
        "text", "", "The bearer token of the control API; without one there is no control.",
    ),
    "token_file": Setting("text", "", "A file that holds the token, as secrets are mounted."),
    "log_format": Setting("text", "console", "How log lines look.", ("console", "json")),
    "log_level": Setting(
        "text", "info", "From which level on they are written.",
        ("debug", "info", "warning", "error"),
    ),
    "measure_s": Setting(
        "number", 30.0, "Seconds between two looks at what is unread: bytes, time to loss.",
    ),
    "progress_s": Setting(
        "number", 60.0, "Seconds between two log lines of what was delivered; 0: none.", zero=True,
    ),
    "lease_s": Setting(
        "number", 60.0, "With the state on S3: a feed stays its owner's so long without a word.",
    ),
    "lock_folder": Setting(
        "text", "",
        "With the state on S3: a folder of this machine that outlives its containers.",
    ),
}  # fmt: skip

FEED: dict[str, Setting] = {
    "table": Setting(
        "text", None, "The table: a path, `s3://bucket/key`, or a pattern ending in `/` with `*`.",
    ),
    "store": Setting("table", {}, "Options of the table's store, over those of `[store.s3]`."),
    "from": Setting(
        "start", "latest",
        "Where a feed without a saved offset starts: latest, earliest, snapshot, version or time.",
    ),
    "change_source": Setting(
        "text", "auto", "Where changes come from.", ("auto", "cdf", "derived"),
    ),
    "key": Setting("texts", [], "Columns that pair derived deletes and inserts into updates."),
    "columns": Setting("texts", [], "Only these data columns leave; empty: all."),
    "where": Setting("text", "", "Only partitions for which these comparisons hold."),
    "mask": Setting("table", {}, "Column = drop, redact or hash, before anything leaves."),
    "mask_key": Setting("text", "", "The key of hashes, 16 to 64 bytes; from the environment."),
    "on_schema_change": Setting(
        "text", "continue", "At a version with another schema.", ("continue", "pause", "fail"),
    ),
    "on_data_loss": Setting(
        "text", "fail", "When a version or file is gone unread.", ("fail", "skip", "snapshot"),
    ),
    "on_reject": Setting(
        "text", "fail", "When the sink refuses rows for good.", ("fail", "park"),
    ),
    "park": Setting("table", {}, "The sink of refused rows; default: a file beside the state."),
    "ignore_deletes": Setting(
        "flag", False, "Versions that only remove files give no events.",
    ),
    "skip_change_commits": Setting(
        "flag", False, "Versions that remove any file give no events at all.",
    ),
    "max_rows_per_s": Setting("number", 0.0, "Rows a second at most; 0: no bound.", zero=True),
    "heartbeat_s": Setting(
        "number", 0.0, "A heartbeat to the sink after so long a rest; 0: none.", zero=True,
    ),
    "paused": Setting("flag", False, "Start paused, until a resume."),
    "discover_s": Setting("number", 60.0, "Seconds between two looks for tables of a pattern."),
    "batch_rows_max": Setting("whole", 131_072, "Rows of a batch at most."),
    "batch_bytes_max": Setting("whole", 32 * 1024 * 1024, "Bytes of a batch at most, as Arrow."),
    "diff_memory_bytes_max": Setting(
        "whole", 512 * 1024 * 1024, "Memory of the comparison of rewritten rows.",
        least=64 * 1024 * 1024,
    ),
    "spill_folder": Setting("text", "", "Where it and snapshots spill; empty: the system's own."),
    "writer_timezone": Setting(
        "text", "UTC", "The zone of partition timestamps that have none, as an IANA name.",
    ),
    "torn_commit_max_s": Setting("number", 10.0, "How long a half-written commit is waited for."),
    "poll_min_s": Setting("number", 0.5, "The shortest pause between two looks for a commit."),
    "poll_max_s": Setting("number", 5.0, "The longest."),
    "retry_min_s": Setting("number", 0.2, "The shortest pause before a retry."),
    "retry_max_s": Setting("number", 30.0, "The longest."),
    "sink": Setting("table", {}, "Where events go: `type`, and the sink's own options."),
    "sinks": Setting("table", {}, "Several sinks by name, each as `sink`; one reader for all."),
}  # fmt: skip


class Settings:
    """One table of the file. Every key must be among the known ones."""

    def __init__(self, file: Path, name: str, values: Any, known: Mapping[str, Setting]) -> None:
        self.file, self.name, self.known = file, name, known
        if not isinstance(values, dict):
            raise ConfigError(f"{file}: {name} must be a table")
        self.values: dict[str, Any] = values
        for key in values:
            if key == "ignore_changes":
                raise self.wrong(key, "is Delta's deprecated option; use skip_change_commits")
            if key not in known:
                listed = ", ".join(sorted(known))
                raise self.wrong(key, f"is not known{meant(key, known)}; known are {listed}")

    def wrong(self, key: str, what: str) -> ConfigError:
        """The error for one key: a line with file, key and what is wrong."""
        place = f"{self.name}.{key}" if self.name else key
        return ConfigError(f"{self.file}: {place} {what}")

    def __getitem__(self, key: str) -> Any:
        setting = self.known[key]
        value = self.values.get(key)
        if value is None:
            if setting.default is None and not setting.optional:
                raise self.wrong(key, "is missing")
            return setting.default
        if setting.fault(value):
            raise self.wrong(key, f"is {value!r}, and must be {setting.allowed()}")
        return float(value) if setting.kind == "number" else value

    def address(self, key: str) -> tuple[str, int] | None:
        """``host:port`` as (host, port); None where it is empty, and that is allowed."""
        text: str = self[key]
        optional = self.known[key].optional
        if not text and optional:
            return None
        host, _, port = text.rpartition(":")
        if not host or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
            none = ", or empty for none" if optional else ""
            raise self.wrong(key, f"is {text!r}, and must be host:port{none}")
        return host.strip("[]"), int(port)

    def sections(self, key: str, known: Mapping[str, Setting]) -> dict[str, Settings]:
        """The tables below a key, by name; each with the same keys."""
        place = f"{self.name}.{key}" if self.name else key
        return {n: Settings(self.file, f"{place}.{n}", v, known) for n, v in self[key].items()}


def read_document(
    path: Path, environment: Mapping[str, str], left_alone: tuple[str, ...]
) -> dict[str, Any]:
    """A TOML file as a dictionary, with the environment's variables in its strings.

    Tables of the names ``left_alone`` are left out, for another program reads them. Raises
    :class:`ConfigError` for a file that is none, and for a variable that is not set.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise ConfigError(f"{path} can't be read ({e.strerror})") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path} is not TOML: {e}") from e
    document = {key: value for key, value in document.items() if key not in left_alone}
    replaced: dict[str, Any] = _with_variables(document, path, environment)
    return replaced


def _with_variables(value: Any, path: Path, environment: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {k: _with_variables(inner, path, environment) for k, inner in value.items()}
    if isinstance(value, list):
        return [_with_variables(inner, path, environment) for inner in value]
    if not isinstance(value, str):
        return value

    def replaced(match: re.Match[str]) -> str:
        if match[1] not in environment:
            raise ConfigError(f"{path}: the environment variable {match[1]} is not set")
        return environment[match[1]]

    return _VARIABLE.sub(replaced, value)
