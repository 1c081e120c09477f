"""The look-up of an encoder by its format's name, and the options that each format takes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sinks.formats.records import Encoder, Registry
from tailer.errors import ConfigError
from tailer.sink import take_options

__all__ = ["FORMATS", "encoder_options", "load_encoder"]

#: The formats, by the name that the configuration gives them.
FORMATS = ("rows", "debezium", "cloudevents", "avro", "arrow")

#: What every format takes. ``name`` is the feed's name and ``topic`` the topic's, which the sink
#: fills in; ``table`` the table's name in the events, if not the one in its metadata.
_COMMON: dict[str, tuple[type, Any]] = {
    "key": (list, []),
    "tombstones": (bool, False),
    "name": (str, ""),
    "topic": (str, ""),
    "table": (str, ""),
}
_OWN: dict[str, dict[str, tuple[type, Any]]] = {
    "rows": {"ids": (bool, False)},
    "debezium": {"schema": (bool, False)},
    "cloudevents": {"mode": (str, "structured")},
    "avro": {
        "registry": (dict, {}),
        "subjects": (str, "topic"),
        "envelope": (str, "rows"),
    },
    "arrow": {"ids": (bool, False), "record_bytes_max": (int, 900_000)},
}


def encoder_options(format: str) -> dict[str, tuple[type, Any]]:  # noqa: A002  # the option's name
    """The options of a format: type and default of each, as :func:`tailer.sink.take_options` takes
    them. Raises :class:`ConfigError` for a format that there is not."""
    if format not in FORMATS:
        raise ConfigError(f"there is no format {format!r}; there are: {', '.join(FORMATS)}")
    return {**_COMMON, **_OWN.get(format, {})}


def load_encoder(
    format: str,  # noqa: A002  # the option's name
    options: Mapping[str, Any],
    registry: Registry | None = None,
    folder: Path | None = None,
) -> Encoder:
    """The encoder of a format with its options (:func:`encoder_options`).

    ``registry`` stands in for the one that the options name; ``folder`` is what its files are
    relative to. Raises :class:`ConfigError` naming the format or the option that is wrong.
    """
    taken = take_options(format, options, encoder_options(format), what="format")
    key = tuple(taken["key"])
    if not all(isinstance(name, str) for name in key):
        raise ConfigError(f"option 'key' of format {format!r} is not a list of column names")
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

        binary = _choice(format, "mode", taken, ("structured", "binary")) == "binary"
        return CloudEventsEncoder(key, binary=binary, table=taken["table"], **common)
    if format == "avro":
        return _avro(key, taken, registry, folder)
    if format == "arrow":
        from sinks.formats.arrow import ArrowEncoder

        if key:
            raise ConfigError("format 'arrow' has no keys: rows of many keys are in one record")
        return ArrowEncoder(ids=taken["ids"], record_bytes_max=taken["record_bytes_max"])
    from sinks.formats.rows import RowsEncoder

    return RowsEncoder(key, ids=taken["ids"], **common)


def _avro(
    key: tuple[str, ...],
    taken: Mapping[str, Any],
    registry: Registry | None,
    folder: Path | None,
) -> Encoder:
    from sinks.formats.avro import AvroEncoder
    from sinks.formats.registry import load_registry

    subjects = _choice("avro", "subjects", taken, ("topic", "record", "topic_record"))
    debezium = _choice("avro", "envelope", taken, ("rows", "debezium")) == "debezium"
    if registry is None:
        registry = load_registry(taken["registry"], folder)
    return AvroEncoder(
        registry,
        key,
        topic=taken["topic"],
        subjects=subjects,  # type: ignore[arg-type]  # one of the choices
        debezium=debezium,
        tombstones=taken["tombstones"],
        name=taken["name"],
        table=taken["table"],
    )


def _choice(
    format: str,  # noqa: A002
    option: str,
    taken: Mapping[str, Any],
    choices: tuple[str, ...],
) -> str:
    value = taken[option]
    if value not in choices:
        raise ConfigError(
            f"option {option!r} of format {format!r} is {value!r}; it is one of: "
            f"{', '.join(choices)}"
        )
    return str(value)
