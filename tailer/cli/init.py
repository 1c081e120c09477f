"""`tailer init`: a commented configuration file for one table, checked."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import anyio.to_thread

from tailer.cli.table import on_table
from tailer.config.feeds import load_config
from tailer.config.settings import DAEMON, FEED
from tailer.daemon.check import check_feeds
from tailer.delta.features import cdf_enabled
from tailer.delta.snapshot import TableState
from tailer.delta.types import PrimitiveType
from tailer.errors import ConfigError
from tailer.log.table import TableLog
from tailer.settings import REQUIRED, Setting
from tailer.sink import installed_sinks, load_sink
from tailer.storage import is_local

#: The sink of a file that nobody was asked about.
_SINK = "jsonl"

#: What required options of sinks are set to, for `{name}` of the feed.
_VALUES = {
    "bootstrap_servers": "127.0.0.1:9092",
    "topic": "{name}",
}
#: The endings of files that sinks keep; the others keep folders.
_SUFFIXES = {"duckdb": ".duckdb", "jsonl": ".jsonl", "sqlite": ".db"}

_HEAD = """\
# Made by `tailer init`. docs/configuration.md has every key. A line that starts with "#" and a key
# shows its default; ${NAME} in a string is an environment variable, ${file:PATH} a file's text.
#
#     tailer check FILE    says where the feed would start
#     tailer run FILE      runs it
"""


@on_table
async def init(arguments: argparse.Namespace, log: TableLog) -> int:
    """Write the file and check it; return the exit status."""
    path = Path(arguments.output)
    _check_free(path)
    state = (await log.load_snapshot()).state
    kind = arguments.sink or await _ask_user(
        f"sink ({', '.join(sorted(installed_sinks()))})", default=_SINK
    )
    load_sink(kind)  # an unknown one is refused before anything is asked
    name = _make_feed_name(state, log.store.root)
    answers = {
        option: await _ask_user(
            f"{option}, {setting.allowed()}", default=_suggest_value(kind, option, name)
        )
        for option, setting in load_sink(kind).listed_settings()[""].items()
        if setting.default is REQUIRED
    }
    options = dict(option.partition("=")[::2] for option in arguments.store_options)
    text = format_configuration(
        name, _resolve_from(path, arguments.table), state, kind, answers, options
    )
    _write_file(path, text.replace("FILE", str(path)))
    print(f"{path} is written", file=sys.stderr)
    return await check_feeds(load_config(path))


def _check_free(path: Path) -> None:
    if path.exists():
        raise ConfigError(f"{path} is there already; name another with --output, or remove it")


def _resolve_from(path: Path, table: str) -> str:
    """Return a table's address as a file has it: relative paths are relative to the file's
    folder."""
    here = not is_local(table) or path.parent == Path()
    return table if here else str(Path(table).absolute())


def _write_file(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as e:
        raise ConfigError(f"{path} can't be written ({e.strerror})") from None


async def _ask_user(question: str, *, default: str) -> str:
    """Return what the user answers, or the default: also where there is nobody to ask."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return default
    print(f"{question} [{default}]: ", end="", file=sys.stderr, flush=True)
    line = await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
    return line.strip() or default


def _make_feed_name(state: TableState, root: str) -> str:
    """Return a name for the feed: the table's, in letters that topics and folders may have."""
    last = state.metadata.name or root.rstrip("/").rpartition("/")[2]
    return re.sub(r"[^\w-]+", "_", last, flags=re.ASCII).strip("_") or "table"


def _suggest_value(kind: str, option: str, name: str) -> str:
    if option == "path":
        return f"{name}{_SUFFIXES.get(kind, '-' + kind)}"
    return _VALUES.get(option, "").format(name=name)


def find_likely_key(state: TableState, name: str) -> tuple[str, str] | None:
    """Return a column that is likely to identify a row, and how that is known; None if no column
    is. Delta tables declare no keys."""
    fields = [field for field in state.schema if isinstance(field.type, PrimitiveType)]
    for field in fields:
        if "delta.identity.start" in field.metadata:
            return field.name, "an identity column"
    by_name = {field.name.lower(): field.name for field in fields}
    table = name.lower()
    for wanted in ("id", f"{table}_id", f"{table.removesuffix('s')}_id", "key", "uuid"):
        if wanted in by_name:
            return by_name[wanted], "found by its name: check that it identifies a row"
    return None


def format_configuration(
    name: str,
    table: str,
    state: TableState,
    kind: str,
    answers: Mapping[str, str],
    store: Mapping[str, str],
) -> str:
    """Return the file's text: a feed of that name from the table to a sink of that kind.

    ``answers`` are the sink's required options, ``store`` those of the table's store.
    """
    key = find_likely_key(state, name)
    settings = load_sink(kind).listed_settings()
    lines = [_HEAD, "[daemon]"]
    for option in ("http", "state"):
        lines += _format_option(option, DAEMON[option], DAEMON[option].default)
    lines += _format_option("token", DAEMON["token"])
    lines += ["", f"[feeds.{name}]", f"table = {_format_toml(table)}"]
    if store:
        pairs = ", ".join(f"{option} = {_format_toml(value)}" for option, value in store.items())
        lines.append(f"store = {{ {pairs} }}")
    lines += _format_option("from", FEED["from"], "snapshot")
    if cdf_enabled(state.protocol, state.metadata):
        lines += _format_option("key", FEED["key"])  # its updates need none
    else:
        lines += _format_key(FEED["key"], key)
    for option in ("select", "on_schema_change", "on_data_loss", "on_reject"):
        lines += _format_option(option, FEED[option])
    lines += ["", f"[feeds.{name}.sink]", f"type = {_format_toml(kind)}"]
    for options in settings.values():
        for option, setting in options.items():
            if option == "key":
                lines += _format_key(setting, key)
            elif option in answers:
                lines += _format_option(option, setting, answers[option])
            elif not setting.advanced:
                lines += _format_option(option, setting)
    return "\n".join(lines) + "\n"


def _format_key(setting: Setting, key: tuple[str, str] | None) -> Iterator[str]:
    if key is None:
        yield from _format_option("key", setting)
        return
    column, how = key
    yield f"# {setting.help} {column!r} is {how}."
    yield f"key = {_format_toml([column])}"


def _format_option(name: str, setting: Setting, value: Any = None) -> Iterator[str]:
    """Yield the lines of an option: what it is, then its value, or as a comment its default."""
    yield f"# {setting.help} ({setting.allowed()})"
    if value is not None:
        yield f"{name} = {_format_toml(value)}"
    else:
        default = None if setting.default is REQUIRED else setting.default
        yield f"#{name} = {'' if default is None else _format_toml(default)}".rstrip()


def _format_toml(value: Any) -> str:
    """Return a value as TOML, whose texts, numbers, truths and lists are JSON's."""
    return json.dumps(value, ensure_ascii=False, default=str)
