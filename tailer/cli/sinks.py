"""The sinks that are installed, and what each of them takes: ``tailer sinks``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from inspect import getdoc
from typing import Any

from tailer.errors import ConfigError, printable
from tailer.settings import REQUIRED, Setting
from tailer.sink import installed_sinks, load_sink


async def sinks(arguments: argparse.Namespace) -> int:
    """Print the installed sinks, or the one of a type, with their options; return the exit
    status."""
    if arguments.type is not None:
        load_sink(arguments.type)  # an unknown one is refused
    for kind in sorted(installed_sinks()):
        if arguments.type in (None, kind):
            described = _describe_sink(kind)
            lines = map(printable, _format_lines(described))
            print(json.dumps(described) if arguments.json else "\n".join(lines))
    return 0


def _describe_sink(kind: str) -> dict[str, Any]:
    distribution = installed_sinks()[kind].dist
    description = {
        "type": kind,
        "package": f"{distribution.name} {distribution.version}" if distribution else "",
    }
    try:
        sink = load_sink(kind)
    except ConfigError as e:  # another sink can still be used
        return {**description, "error": str(e)}
    tables = sink.listed_settings()
    return {
        **description,
        "about": (getdoc(sink) or "").partition("\n\n")[0].replace("\n", " "),
        "options": [
            _describe_option(name, setting, of)
            for of in tables
            for name, setting in tables[of].items()
        ],
    }


def _describe_option(name: str, setting: Setting, of: str) -> Mapping[str, Any]:
    return {
        "name": name,
        "of": of,
        "allowed": setting.allowed(),
        "required": setting.default is REQUIRED,
        "default": setting.shown_default(),
        "help": setting.help,
    }


def _format_lines(sink: Mapping[str, Any]) -> Iterator[str]:
    yield f"{sink['type']} ({sink['package']}): {sink.get('about') or sink.get('error')}"
    of = ""
    for option in sink.get("options", ()):
        if option["of"] != of:
            of = option["of"]
            yield f"  {of}:"
        default = option["default"].replace("`", "")
        more = f"; default {default}" if default and not option["required"] else ""
        required = "; required" if option["required"] else ""
        indent = "    " if of else "  "
        yield f"{indent}{option['name']}: {option['help']} ({option['allowed']}{more}{required})"
    yield ""
