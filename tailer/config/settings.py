"""Every key of ``CONFIG.toml``, and the reading of such a file."""

from __future__ import annotations

import codecs
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tailer.errors import ConfigError, unreadable
from tailer.log.starts import STARTS, check_start
from tailer.settings import REQUIRED, WRITER_TIMEZONE_SETTING, Setting, SettingTable

_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "UTF-8 with a byte-order mark",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
#: What stands in a string for another text: an environment variable, or a file's text.
_REFERENCE = re.compile(r"\$\{([^}]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OF_A_FILE = "file:"
#: A path as a shell has it, which nothing here replaces.
_SHELL_PATH = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)/")
_MIB = 1024 * 1024

#: A table whose keys another component checks.
TABLE_OF_OPTIONS = Setting("table", {}, "")


def make_address_parser(*, optional: bool = False) -> Callable[[str], tuple[str, int] | None]:
    """Return a ``parse`` from host:port to (host, port); ``optional``: from "" to None."""

    def parse(text: str) -> tuple[str, int] | None:
        if not text and optional:
            return None
        host, _, port = text.rpartition(":")
        if not host or "/" in host or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
            raise ValueError(text)
        return host.strip("[]"), int(port)

    return parse


def _parse_start(text: Any) -> str:
    try:
        if text != "":  # the default, which depends on the sink
            check_start(str(text))
    except ConfigError as e:
        raise ValueError(text) from e
    return str(text)


def _check_operations(names: list[str]) -> list[str]:
    if not set(names) <= {"insert", "update", "delete"}:
        raise ValueError(names)
    return names


DAEMON: dict[str, Setting] = {
    "http": Setting(
        "text", "127.0.0.1:9464",
        "Address of the metrics, health checks, console and control API; empty disables them.",
        form="host:port, or empty for none", parse=make_address_parser(optional=True),
    ),
    "state": Setting(
        "text", "state", "Where offsets are saved.", form="a folder, s3://bucket/prefix, az:// or gs://",
    ),
    "token": Setting(
        "text", "", "Bearer token of the control API, which is off without one.",
        secret=True,
    ),
    "log_format": Setting(
        "text", "console", "Format of log lines.", choices=("console", "json"), advanced=True,
    ),
    "log_level": Setting(
        "text", "info", "Lowest level to log.",
        choices=("debug", "info", "warning", "error"),
    ),
    "measure_s": Setting(
        "number", 30.0,
        "Interval between measurements of the backlog: unread bytes, time until data loss.",
        unit="seconds", advanced=True,
    ),
    "progress_s": Setting(
        "number", 60.0, "Interval between log lines about delivered rows; 0 means none.",
        unit="seconds", least=0, advanced=True,
    ),
    "stop_s": Setting(
        "number", 15.0,
        "How long the current batch may take after SIGTERM before the process ends; the next start "
        "resumes from the saved offset. Keep it below the kill timeout of the service manager.",
        unit="seconds", advanced=True,
    ),
    "lease_s": Setting(
        "number", 60.0,
        "With `state` on a server: a feed whose owner has not renewed its lease for this long may "
        "be taken over by another daemon.",
        unit="seconds", advanced=True,
    ),
    "lock_folder": Setting(
        "text", "", "With `state` on a server: a local folder that survives container restarts.",
        advanced=True,
    ),
}  # fmt: skip

FEED: dict[str, Setting] = {
    "table": Setting(
        "text", REQUIRED,
        "The table: a path, `s3://bucket/key`, `uc://catalog.schema.table`, "
        "`profile.share#share.schema.table`, or a pattern that contains `*`.",
        form="a path or an address", elsewhere=("location", "path", "uri"),
    ),
    "store": Setting(
        "table", {}, "Options of the table's store; they override those of `[store.s3]`.",
    ),
    "also": Setting(
        "texts", [], "Further folders that may contain its files, as for a shallow clone. A log "
        "that refers to any other file outside the table is refused.", advanced=True,
    ),
    "from": Setting(
        "any", "", "Where a feed without a saved offset starts.", form=STARTS, parse=_parse_start,
        unset="latest; snapshot for a mirror",
    ),
    "change_source": Setting(
        "text", "auto", "Read the change data feed, derive changes from data files, or choose by "
        "version.", choices=("auto", "cdf", "derived"),
    ),
    "key": Setting(
        "texts", [], "Columns by which derived deletes and inserts are paired into updates.",
    ),
    "select": Setting(
        "texts", [], 'Columns to publish: names, or expressions as in `"price * n as total"`; '
        "empty means all.",
        unset="all", elsewhere=("columns",),
    ),
    "where": Setting(
        "text", "", "Publish only the rows that meet this condition.", unset="all",
        elsewhere=("filter", "predicate", "condition"),
    ),
    "unchanged": Setting(
        "text", "keep", "What becomes of an update whose selected columns are equal.",
        choices=("keep", "drop"), advanced=True,
    ),
    "operations": Setting(
        "texts", [], "Changes to publish; empty means all.", unset="all",
        form="a list of insert, update, delete", parse=_check_operations,
    ),
    "mask": Setting("table", {}, 'Columns to mask: `column = "drop"`, `redact` or `hash`.'),
    "mask_key": Setting("text", "", "Key of the hashes, 16 to 64 bytes.", secret=True),
    "on_schema_change": Setting(
        "text", "continue", "What to do when the schema changes.",
        choices=("continue", "pause", "fail"),
    ),
    "on_data_loss": Setting(
        "text", "fail", "What to do when an unread version or file is missing.",
        choices=("fail", "skip", "snapshot"),
    ),
    "on_reject": Setting(
        "text", "fail", "What to do with rows that the sink permanently rejects.",
        choices=("fail", "park"),
    ),
    "on_invalid_text": Setting(
        "text", "replace", "What to do with text that is not valid UTF-8.",
        choices=("replace", "fail"), advanced=True,
    ),
    "park": Setting(
        "table", {}, "Sink for rejected rows.", unset="a JSON lines file beside `state`",
    ),
    "park_bytes_max": Setting(
        "whole", 1024 * _MIB, "Size of the file of rejected rows beside `state` at which the feed "
        "stops.",
        unit="bytes", least=1, advanced=True,
    ),
    "heartbeat_s": Setting(
        "number", 0.0, "Send a heartbeat to the sink after this long without events; 0 means "
        "never.",
        unit="seconds", least=0, advanced=True,
    ),
    "discover_s": Setting(
        "number", 60.0, "Interval between searches for tables that match a pattern.",
        unit="seconds", advanced=True,
    ),
    "batch_rows_max": Setting(
        "whole", 131_072, "Maximum rows per batch.", unit="rows", advanced=True,
    ),
    "batch_bytes_max": Setting(
        "whole", 32 * _MIB, "Maximum bytes per batch, in Arrow format.", unit="bytes",
        advanced=True,
    ),
    "diff_memory_bytes_max": Setting(
        "whole", 512 * _MIB, "Memory limit for comparing rewritten rows.",
        unit="bytes", least=64 * _MIB, advanced=True,
    ),
    "spill_folder": Setting(
        "text", "", "Folder for temporary files of comparisons and snapshots.",
        unset="the system's temporary folder", advanced=True,
    ),
    "page_checksums": Setting(
        "flag", True, "Verify page checksums of data files that have them.", advanced=True,
    ),
    "writer_timezone": WRITER_TIMEZONE_SETTING,
    "poll_max_s": Setting(
        "number", 5.0, "Longest pause between checks for a new commit.", unit="seconds",
        advanced=True,
    ),
    "retry_max_s": Setting(
        "number", 30.0, "Longest pause before a retry.", unit="seconds", advanced=True,
    ),
    "sink": Setting("table", {}, "The sink: its `type` and its own options."),
}  # fmt: skip

#: Options of Delta's readers that mean nothing here: what to do instead.
_ANSWERS = {
    "ignore_changes": "Delta has deprecated this option; set operations",
    "ignore_deletes": 'set operations = ["insert", "update"]',
    "skip_change_commits": 'set operations = ["insert"]',
}


class Section:
    """One table of the file, checked. ``given`` holds the keys in the file, without defaults."""

    def __init__(
        self,
        file: Path,
        name: str,
        given: Any,
        settings: Mapping[str, Setting],
    ) -> None:
        self.file, self.name = file, name
        if not isinstance(given, dict):
            raise ConfigError(f"{file}: {name} must be a table")
        self.given: dict[str, Any] = given
        place = f"{file}: {name}." if name else f"{file}: "
        self._settings = SettingTable(name, settings, answers=_ANSWERS, place=place)
        self._values = self._settings.take(given)

    def make_error(self, key: str, what: str) -> ConfigError:
        """Return the error for one key: a line with file, key and what is wrong."""
        return self._settings.wrong(key, what)

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def list_sections(self, key: str, settings: Mapping[str, Setting]) -> dict[str, Section]:
        """Return the tables below a key, by name; each with the same keys."""
        place = f"{self.name}.{key}" if self.name else key
        return {n: Section(self.file, f"{place}.{n}", v, settings) for n, v in self[key].items()}


def read_document(
    path: Path, environment: Mapping[str, str], left_alone: tuple[str, ...]
) -> dict[str, Any]:
    """Read a TOML file as a dictionary, with the environment's variables in its strings.

    Tables of the names ``left_alone`` are left out, because another program reads them. Raises
    :class:`ConfigError` for an invalid file, and for a variable that is not set.
    """
    if (path / "_delta_log").is_dir():
        raise ConfigError(f"{path} is a table, and not a configuration: `tailer tail {path}`")
    try:
        data = path.read_bytes()
    except OSError as e:
        raise unreadable(str(path), path, e) from e
    mark = next((mark for mark in _BYTE_ORDER_MARKS if data.startswith(mark)), None)
    if mark is not None:
        raise ConfigError(f"{path} is saved as {_BYTE_ORDER_MARKS[mark]}; save it as UTF-8")
    try:
        document = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        remedy = next((then for mark, then in _TOML_REMEDIES.items() if mark in str(e)), "")
        raise ConfigError(f"{path} is not TOML: {e}{remedy}") from e
    document = {key: value for key, value in document.items() if key not in left_alone}
    replaced: dict[str, Any] = _replace_variables(document, path, environment)
    return replaced


#: What is meant by the parser's words.
_TOML_REMEDIES = {
    "Invalid value": "; a text stands in quotes",
    "Illegal character '\\n'": "; the text of this line lacks its closing quote",
    "Unescaped": "; write a backslash twice, or the text in single quotes",
    "Invalid hex": "; write a backslash twice, or the text in single quotes",
    "twice": "; leave one out, or give it another name",
}


def _replace_variables(value: Any, path: Path, environment: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {k: _replace_variables(inner, path, environment) for k, inner in value.items()}
    if isinstance(value, list):
        return [_replace_variables(inner, path, environment) for inner in value]
    if not isinstance(value, str):
        return value

    def replaced(match: re.Match[str]) -> str:
        return _resolve_reference(match[1], path, environment)

    shell = _SHELL_PATH.match(value)
    if shell is not None and shell[1] in environment:
        raise ConfigError(f"{path}: write ${{{shell[1]}}} for ${shell[1]}, as in {value!r}")
    return _REFERENCE.sub(replaced, value)


def _resolve_reference(name: str, path: Path, environment: Mapping[str, str]) -> str:
    """Return the text that ``${name}`` stands for."""
    if name.startswith(_OF_A_FILE):
        file = path.parent / name.removeprefix(_OF_A_FILE)
        try:
            text = file.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as e:
            raise ConfigError(f"{path}: ${{{name}}} can't be read ({e})") from None
        if not text:
            raise ConfigError(f"{path}: ${{{name}}} is an empty file")
        return text
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{path}: ${{{name}}} is not known; ${{NAME}} is an environment variable, and "
            "${file:PATH} the text of a file"
        )
    if name not in environment:
        raise ConfigError(f"{path}: the environment variable {name} is not set")
    return environment[name]
