"""The option `format` of sinks whose events are JSON, with the options that each format has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import structs

from sinks.formats.load import encoder_settings, format_setting
from tailer.settings import Setting, SettingTable

#: The formats whose values are JSON.
JSON_FORMATS = ("rows", "debezium", "cloudevents")
FORMAT = format_setting(
    "Format of the events; the sink also takes the format's options.", JSON_FORMATS
)
#: The settings that a sink takes of a format.
OfFormat = Callable[[str], Mapping[str, Setting]]


def message_settings(format: str) -> Mapping[str, Setting]:  # noqa: A002  # the option's name
    """Return the settings of a format for messages: without those for a log that is compacted by
    key. Debezium's updates are paired by their key."""
    unused = ["name", "tombstones", "topic"]
    if format != "debezium":
        unused.append("key")
    found = encoder_settings(format).items()
    return {name: setting for name, setting in found if name not in unused}


def listed_options(
    settings: Mapping[str, Setting], of_format: OfFormat = message_settings
) -> Mapping[str, Mapping[str, Setting]]:
    """Return the options of a sink with a format: see :class:`tailer.sink.ListsSettings`."""
    more = {name: setting for each in JSON_FORMATS for name, setting in of_format(each).items()}
    return {"": settings, "format": more}


def take_options(
    kind: str,
    settings: Mapping[str, Setting],
    options: Mapping[str, Any],
    of_format: OfFormat = message_settings,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a sink's options, and those of the format that it names."""
    table = SettingTable(f"sink {kind!r}", settings)
    more = of_format(table.value("format", options))
    taken = structs.replace(table, settings={**more, **settings}).take(options)
    return {name: taken[name] for name in settings}, {name: taken[name] for name in more}
