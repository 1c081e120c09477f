"""The look-up of an encoder by its format's name, and the options that each format takes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sinks.formats.records import Encoder, Registry
from sinks.shared.own_prefix import OWN_PREFIX_SETTING
from tailer.errors import ConfigError, meant
from tailer.settings import Setting, SettingTable

__all__ = ["FORMATS", "LISTED", "SETTINGS", "encoder_settings", "load_encoder"]

_COMMON = ("key", "tombstones", "name", "topic", "table")
#: The formats, by the name that the configuration gives them, and the options of each.
FORMATS: dict[str, tuple[str, ...]] = {
    "rows": (*_COMMON, "ids", "own_prefix"),
    "debezium": (*_COMMON, "schema"),
    "cloudevents": (*_COMMON, "mode"),
    "avro": (*_COMMON, "registry", "subjects", "envelope"),
    "arrow": (*_COMMON, "ids", "own_prefix", "record_bytes_max"),
}
SETTINGS: dict[str, Setting] = {
    "key": Setting("texts", [], "Columns of a record's key, in this order."),
    "tombstones": Setting(
        "flag", False, "Write a tombstone (a record without a value) after each delete, for "
        "compacted topics.",
    ),
    "table": Setting(
        "text", "", "The table's name in events.", unset="the name in its metadata, else its id",
    ),
    "ids": Setting(
        "flag", False, "Formats `rows` and `arrow`: add `_event_id`; `rows` also `_origin` and, "
        "where known, `_row_id`.",
    ),
    "own_prefix": OWN_PREFIX_SETTING,
    "schema": Setting("flag", False, "Format `debezium`: Connect's schema in every record."),
    "mode": Setting(
        "text", "structured", "Format `cloudevents`: the event as the value, or its attributes "
        "as headers.", choices=("structured", "binary"),
    ),
    "registry": Setting("table", {}, "Format `avro`: the schema registry."),
    "subjects": Setting(
        "text", "topic", "Format `avro`: how schema subjects are named.",
        choices=("topic", "record", "topic_record"),
    ),
    "envelope": Setting(
        "text", "rows", "Format `avro`: the row, or Debezium's envelope.",
        choices=("rows", "debezium"),
    ),
    "record_bytes_max": Setting(
        "whole", 900_000, "Format `arrow`: maximum bytes of a record that has several rows.",
        unit="bytes",
    ),
    # The sink fills these in: the feed's name and the topic's.
    "name": Setting("text", "", "The feed's name."),
    "topic": Setting("text", "", "The topic's name."),
}  # fmt: skip
#: Those that a user gives.
LISTED = {name: SETTINGS[name] for name in SETTINGS if name not in ("name", "topic")}


def encoder_settings(format: str) -> dict[str, Setting]:  # noqa: A002  # the option's name
    """Return the settings of a format. Raises :class:`ConfigError` for an unknown one."""
    if format not in FORMATS:
        hint = meant(format, FORMATS)
        raise ConfigError(f"there is no format {format!r}{hint}; known are {', '.join(FORMATS)}")
    return {name: SETTINGS[name] for name in FORMATS[format]}


def load_encoder(
    format: str,  # noqa: A002  # the option's name
    options: Mapping[str, Any],
    registry: Registry | None = None,
    folder: Path | None = None,
) -> Encoder:
    """Return the encoder of a format with its options (:func:`encoder_settings`).

    ``registry`` replaces the one that the options name; ``folder`` is what its files are relative
    to. Raises :class:`ConfigError` naming the invalid format or option.
    """
    taken = SettingTable(f"format {format!r}", encoder_settings(format)).take(options)
    key = tuple(taken["key"])
    if taken["tombstones"] and not key:
        raise ConfigError("tombstones need a key: name its columns in the option 'key'")
    return _made(format, key, taken, registry, folder)


def _made(
    format: str,  # noqa: A002
    key: tuple[str, ...],
    taken: Mapping[str, Any],
    registry: Registry | None,
    folder: Path | None,
) -> Encoder:
    common = {"tombstones": taken["tombstones"]}
    if format == "debezium":
        from sinks.formats.debezium import DebeziumEncoder

        names = {name: taken[name] for name in ("schema", "name", "table")}
        return DebeziumEncoder(key, **names, **common)
    if format == "cloudevents":
        from sinks.formats.cloudevents import CloudEventsEncoder

        binary = taken["mode"] == "binary"
        return CloudEventsEncoder(key, binary=binary, table=taken["table"], **common)
    if format == "avro":
        return _avro(key, taken, registry, folder)
    if format == "arrow":
        from sinks.formats.arrow import ArrowEncoder

        if key:
            raise ConfigError("format 'arrow' has no keys: rows of many keys are in one record")
        of_arrow = ("ids", "own_prefix", "record_bytes_max")
        return ArrowEncoder(**{name: taken[name] for name in of_arrow})
    from sinks.formats.rows import RowsEncoder

    own = {name: taken[name] for name in ("ids", "own_prefix")}
    return RowsEncoder(key, **own, **common)


def _avro(
    key: tuple[str, ...],
    taken: Mapping[str, Any],
    registry: Registry | None,
    folder: Path | None,
) -> Encoder:
    from sinks.formats.avro import AvroEncoder
    from sinks.formats.registry import load_registry

    if registry is None:
        registry = load_registry(taken["registry"], folder)
    return AvroEncoder(
        registry,
        key,
        topic=taken["topic"],
        subjects=taken["subjects"],
        debezium=taken["envelope"] == "debezium",
        tombstones=taken["tombstones"],
        name=taken["name"],
        table=taken["table"],
    )
