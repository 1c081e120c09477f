"""The look-up of an encoder by its format's name, and the options that each format takes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from sinks.formats import oversize
from sinks.formats.subjects import STRATEGIES
from tailer.errors import ConfigError, meant
from tailer.plugins.entry_points import installed_points, load_point
from tailer.settings import OWN_PREFIX_SETTING, Setting, SettingTable
from tailer.sink.encoder import GROUP, Encoder

if TYPE_CHECKING:
    from sinks.formats.registry import Registry

#: The options of values that are too large for a message.
LARGE = tuple(oversize.SETTINGS)
_COMMON = ("key", "tombstones", "name", "topic", "table", *LARGE)
#: The formats of this package, by the name that the configuration gives them, and the options of
#: each. Another package names its own by an entry point: see :class:`tailer.sink.encoder.Encoder`.
FORMATS: dict[str, tuple[str, ...]] = {
    "rows": (*_COMMON, "ids", "own_prefix"),
    "debezium": (*_COMMON, "schema"),
    "cloudevents": _COMMON,
    "avro": (*_COMMON, "registry", "envelope", "subject_name_strategy"),
    "json_schema": (*_COMMON, "registry", "envelope", "subject_name_strategy"),
    "protobuf": (*_COMMON, "registry", "envelope", "subject_name_strategy"),
    "upsert": ("key", "name", "topic", *LARGE),
}
#: The class of each, which is imported when it is chosen: it takes these options, with a registry
#: that is open.
_ENCODERS = {
    "rows": "sinks.formats.rows:RowsEncoder",
    "debezium": "sinks.formats.debezium:DebeziumEncoder",
    "cloudevents": "sinks.formats.cloudevents:CloudEventsEncoder",
    "avro": "sinks.formats.avro:AvroEncoder",
    "json_schema": "sinks.formats.json_schema:JsonSchemaEncoder",
    "protobuf": "sinks.formats.protobuf:ProtobufEncoder",
    "upsert": "sinks.formats.upsert:UpsertEncoder",
}
#: Those whose values are lines of text (:attr:`tailer.sink.encoder.Encoder.is_text`), for sinks
#: that take no other. They are listed because to ask the encoders would load all of them.
TEXT_FORMATS = ("rows", "debezium", "cloudevents")
SETTINGS: dict[str, Setting] = {
    "key": Setting("texts", [], "Columns of a record's key, in this order."),
    "tombstones": Setting(
        "flag", False, "Write a tombstone (a record without a value) after each delete, for "
        "compacted topics.", advanced=True,
    ),
    "table": Setting(
        "text", "", "The table's name in events.", unset="the name in its metadata, else its id",
        advanced=True,
    ),
    "ids": Setting(
        "flag", False, "Format `rows`: add `_event_id`, `_origin` and, where known, `_row_id`.",
    ),
    "own_prefix": OWN_PREFIX_SETTING,
    "schema": Setting("flag", False, "Format `debezium`: Connect's schema in every record.",
        advanced=True),
    "registry": Setting(
        "table", {}, "Formats `avro`, `json_schema` and `protobuf`: the schema registry.",
    ),
    "envelope": Setting(
        "text", "rows", "The same: the row, Debezium's envelope, or as in format `upsert`.",
        choices=("rows", "debezium", "upsert"), advanced=True,
    ),
    "subject_name_strategy": Setting(
        "text", "topic", "The same: what names a schema's subject: the topic with `-key` or "
        "`-value`, the record's full name, or the topic and that.",
        choices=STRATEGIES, advanced=True,
    ),
    **oversize.SETTINGS,
    # The sink fills these in: the feed's name and the topic's.
    "name": Setting("text", "", "The feed's name."),
    "topic": Setting("text", "", "The topic's name."),
}  # fmt: skip
#: Those that a user gives.
LISTED = {name: SETTINGS[name] for name in SETTINGS if name not in ("name", "topic")}


def format_setting(help: str, names: tuple[str, ...] = tuple(FORMATS)) -> Setting:  # noqa: A002
    """Return the option `format` of a sink that takes these formats of this package, and those of
    others: only those whose values are text, if it does not take all of this package."""

    def parse(name: str) -> str:
        if name in names:
            return name
        if name in FORMATS or name not in installed_points(GROUP):
            raise ValueError(name)
        if not _load_installed(name).is_text and len(names) < len(FORMATS):
            raise ConfigError(f"the format {name!r} is no text, and this sink takes text alone")
        return name

    form = f"one of {', '.join(names)}, or a format that is installed"
    return Setting("text", "rows", help, form=form, parse=parse)


def encoder_settings(format: str) -> Mapping[str, Setting]:  # noqa: A002  # the option's name
    """Return the settings of a format. Raises :class:`ConfigError` for an unknown one."""
    if format in FORMATS:
        return {name: SETTINGS[name] for name in FORMATS[format]}
    return {
        "name": SETTINGS["name"],
        "topic": SETTINGS["topic"],
        **_load_installed(format).settings,
    }


def _load_installed(name: str) -> type[Encoder]:
    """Return the format of another package. Raises :class:`ConfigError`."""
    points = installed_points(GROUP)
    if name not in points:
        known = (*FORMATS, *points)
        raise ConfigError(
            f"there is no format {name!r}{meant(name, known)}; known are {', '.join(known)}"
        )
    encoder = load_point(points[name], f"the format {name!r}")
    if not (isinstance(encoder, type) and issubclass(encoder, Encoder)):
        raise ConfigError(f"the format {name!r} is no tailer.sink.encoder.Encoder")
    return encoder


def load_encoder(
    format: str,  # noqa: A002  # the option's name
    options: Mapping[str, Any],
    registry: Registry | None = None,
    folder: Path | None = None,
    *,
    dry: bool = False,
) -> Encoder:
    """Return the encoder of a format with its options (:func:`encoder_settings`).

    ``registry`` replaces the one that the options name; ``folder`` is what its files are relative
    to. A ``dry`` one registers no schema, and writes no value that is too large elsewhere. Raises
    :class:`ConfigError` naming the invalid format or option.
    """
    settings = encoder_settings(format)
    taken = SettingTable(f"format {format!r}", settings).take(options)
    if format not in FORMATS:
        return _load_installed(format).from_options(taken)
    if taken.get("tombstones") and not taken["key"]:
        raise ConfigError("tombstones need a key: name its columns in the option 'key'")
    if "registry" in taken:
        from sinks.formats.registry import load_registry

        if registry is None:
            registry = load_registry(taken["registry"], folder, dry=dry)
        taken = {**taken, "registry": registry}
        if taken["envelope"] == "upsert" and taken["tombstones"]:
            raise ConfigError("upserts have tombstones by themselves: leave 'tombstones' out")
    encoder: type[Encoder] = resolve_name(_ENCODERS[format])
    return oversize.limit_values(encoder.from_options(taken), format, taken, dry=dry)
