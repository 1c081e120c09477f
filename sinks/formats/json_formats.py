"""The option `format` of sinks whose events are text, with the options that each format has."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sinks.formats.load import TEXT_FORMATS, encoder_settings, format_setting
from tailer.settings import Setting

FORMAT = format_setting(
    "Format of the events; the sink also takes the format's options.", TEXT_FORMATS
)


def message_settings(format: str) -> Mapping[str, Setting]:  # noqa: A002  # the option's name
    """Return the settings of a format for messages: without those for a log that is compacted by
    key. Debezium's updates are paired by their key."""
    unused = ["name", "tombstones", "topic"]
    if format != "debezium":
        unused.append("key")
    found = encoder_settings(format).items()
    return {name: setting for name, setting in found if name not in unused}


def keyed_settings(format: str) -> Mapping[str, Setting]:  # noqa: A002  # the option's name
    """Return the settings of a format for messages that may have a key."""
    return {**message_settings(format), "key": encoder_settings(format)["key"]}


def all_format_settings(of: Callable[[str], Mapping[str, Setting]]) -> Mapping[str, Setting]:
    """Return the settings of all formats of text; ``of`` returns those that a sink takes of one."""
    return {name: setting for each in TEXT_FORMATS for name, setting in of(each).items()}
