"""The options of the Kafka sink, checked: names as in Kafka's own clients, with underscores."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sinks.formats.load import FORMATS, encoder_options
from sinks.formats.registry import located
from sinks.kafka.option_names import our_names, with_dots
from sinks.kafka.security import Security
from tailer.errors import ConfigError
from tailer.sink import take_options

__all__ = ["COMPRESSIONS", "DELIVERIES", "DRIVERS", "KafkaOptions", "topic_name"]

#: A transaction takes several requests; one that is shorter is ended by Kafka before its commit.
_TRANSACTION_MS_MIN = 1_000

DELIVERIES = ("exactly-once", "at-least-once")
DRIVERS = ("kafka-python", "librdkafka")
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
OVERSIZE = ("fail", "park")

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_PLACEHOLDERS = ("feed", "table")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")

#: Type and default of each; a format brings its own besides.
_ALLOWED: dict[str, tuple[type, Any]] = {
    "bootstrap_servers": (str, ...),
    "topic": (str, ...),
    "format": (str, "rows"),
    "delivery": (str, "exactly-once"),
    "driver": (str, "kafka-python"),
    "client_id": (str, "delta-tailer"),
    "transactional_id": (str, "delta-tailer.{feed}"),
    "progress_topic": (str, "delta-tailer-progress"),
    "transaction_topic": (str, ""),
    "notice_topic": (str, ""),
    "append_to_existing": (bool, False),
    "accept_changes": (bool, False),
    "create_topics": (bool, True),
    "partitions": (int, -1),
    "replication_factor": (int, -1),
    "topic_config": (dict, {}),
    "compression": (str, "none"),
    "linger_ms": (int, 5),
    "batch_bytes": (int, 1_000_000),
    "in_flight_bytes": (int, 32 * 1024 * 1024),
    "transaction_rows": (int, 131_072),
    "transaction_bytes": (int, 32 * 1024 * 1024),
    "transaction_timeout_ms": (int, 60_000),
    "delivery_timeout_ms": (int, 30_000),
    "request_timeout_ms": (int, 15_000),
    "bootstrap_timeout_ms": (int, 10_000),
    "on_oversize": (str, "fail"),
    "park_topic": (str, ""),
}
_CHOICES = {
    "delivery": DELIVERIES,
    "driver": DRIVERS,
    "compression": COMPRESSIONS,
    "on_oversize": OVERSIZE,
}
_AT_LEAST_ONE = (
    "batch_bytes",
    "in_flight_bytes",
    "transaction_rows",
    "transaction_bytes",
    "transaction_timeout_ms",
    "delivery_timeout_ms",
    "request_timeout_ms",
    "bootstrap_timeout_ms",
)


#: All options, those of the formats too.
_EVERY = {
    **{name: None for kind in FORMATS for name in encoder_options(kind)},
    **_ALLOWED,
    **Security.ALLOWED,
}
_OTHER_TOPICS = ("transaction_topic", "notice_topic", "park_topic")


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """One sink's options. Bytes are counted before compression; -1 is the broker's default.

    ``topic`` may hold {feed} and {table}. ``transaction_rows`` and ``transaction_bytes`` bound one
    transaction: a batch above them takes several.
    """

    bootstrap_servers: str
    topic: str
    format: str
    delivery: str
    driver: str
    client_id: str
    transactional_id: str
    progress_topic: str
    transaction_topic: str
    notice_topic: str
    append_to_existing: bool
    accept_changes: bool
    create_topics: bool
    partitions: int
    replication_factor: int
    topic_config: dict[str, str]
    compression: str
    linger_ms: int
    batch_bytes: int
    in_flight_bytes: int
    transaction_rows: int
    transaction_bytes: int
    transaction_timeout_ms: int
    delivery_timeout_ms: int
    request_timeout_ms: int
    bootstrap_timeout_ms: int
    on_oversize: str
    park_topic: str
    security: Security
    encoder: dict[str, Any] = field(repr=False)  # may hold a registry's password

    @property
    def exactly_once(self) -> bool:
        """Whether progress is kept in Kafka, in one transaction with the data."""
        return self.delivery == "exactly-once"

    @classmethod
    def take(cls, options: Mapping[str, Any], folder: Path) -> KafkaOptions:
        """The options of one configuration table; paths in it are relative to ``folder``.

        Raises :class:`ConfigError` naming the key that is missing, unknown or wrong.
        """
        options = our_names(options, _EVERY)
        wanted = options.get("format", _ALLOWED["format"][1])
        if not isinstance(wanted, str):
            raise ConfigError(f"option 'format' of sink 'kafka' is {wanted!r}, not a str")
        # The sink fills in the feed's name and the topic's.
        of_format = {k: v for k, v in encoder_options(wanted).items() if k not in ("name", "topic")}
        taken = take_options("kafka", options, {**of_format, **_ALLOWED, **Security.ALLOWED})
        _check(taken)
        taken["topic_config"] = {k: _text(v) for k, v in with_dots(taken["topic_config"])}
        encoder = {key: taken[key] for key in of_format}
        if "registry" in encoder:
            encoder["registry"] = located(encoder["registry"], folder)
        return cls(
            **{key: taken[key] for key in _ALLOWED},
            security=Security.of({key: taken[key] for key in Security.ALLOWED}, folder),
            encoder=encoder,
        )


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check(taken: dict[str, Any]) -> None:
    for key, choices in _CHOICES.items():
        if taken[key] not in choices:
            raise _wrong(key, taken[key], f"must be one of {', '.join(choices)}")
    for key in _AT_LEAST_ONE:
        if taken[key] < 1:
            raise _wrong(key, taken[key], "must be greater than 0")
    for key in ("partitions", "replication_factor"):
        if taken[key] < 1 and taken[key] != -1:
            raise _wrong(key, taken[key], "must be greater than 0, or -1 for the broker's default")
    if taken["transaction_timeout_ms"] < _TRANSACTION_MS_MIN:
        what = f"must be at least {_TRANSACTION_MS_MIN}, or Kafka ends transactions under way"
        raise _wrong("transaction_timeout_ms", taken["transaction_timeout_ms"], what)
    if taken["linger_ms"] < 0:
        raise _wrong("linger_ms", taken["linger_ms"], "must not be negative")
    if taken["delivery_timeout_ms"] < taken["request_timeout_ms"] + taken["linger_ms"]:
        raise _wrong(
            "delivery_timeout_ms",
            taken["delivery_timeout_ms"],
            "must be at least request_timeout_ms + linger_ms",
        )
    if taken["on_oversize"] == "park" and not taken["park_topic"]:
        raise ConfigError("sink 'kafka' with on_oversize = 'park' needs the option 'park_topic'")
    _check_names(taken)


def _check_names(taken: dict[str, Any]) -> None:
    for key in ("topic", "transactional_id", "progress_topic", *_OTHER_TOPICS):
        for name in _PLACEHOLDER.findall(taken[key]):
            if name not in _PLACEHOLDERS or (name == "table" and key != "topic"):
                allowed = "{feed} and {table}" if key == "topic" else "{feed}"
                raise _wrong(key, taken[key], f"may hold {allowed}, and nothing else in braces")
        if key != "transactional_id" and taken[key]:
            topic_name(taken[key], "f", "t")


def _wrong(key: str, value: Any, what: str) -> ConfigError:
    return ConfigError(f"option {key!r} of sink 'kafka' is {value!r}; it {what}")


def topic_name(template: str, feed: str, table: str | None = None) -> str:
    """A template with its placeholders filled in. Raises :class:`ConfigError` if that gives no
    legal name of a topic (letters, digits, ``.``, ``_`` and ``-``, at most 249)."""
    if "{table}" in template and not table:
        raise ConfigError(
            f"the topic {template!r} asks for the table's name, and the table has none in its "
            "metadata; give it as the option 'table'"
        )
    name = template.replace("{feed}", feed).replace("{table}", table or "")
    if not _TOPIC.fullmatch(name) or name in (".", ".."):
        raise ConfigError(
            f"{name!r} (from {template!r}) is no name for a topic: letters, digits, '.', '_' and "
            "'-' only, 249 at most"
        )
    return name
