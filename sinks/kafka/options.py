"""The options of the Kafka sink, checked: names as in Kafka's own clients, with underscores."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sinks.formats.load import FORMATS, SETTINGS, encoder_settings
from sinks.formats.registry import located
from sinks.kafka.client.security import Security
from sinks.kafka.option_names import ANSWERS, spelling, with_dots
from tailer.errors import ConfigError
from tailer.settings import REQUIRED, Setting, SettingTable, declared, settings_of

__all__ = ["KafkaOptions", "topic_name"]

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_PLACEHOLDERS = ("feed", "table")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_SERVER = re.compile(r"(\[[^\]]+\]|[^:/\s]+):\d{1,5}")
_OTHER_TOPICS = ("transaction_topic", "notice_topic", "park_topic")
#: What the sink fills in for its encoder.
_FILLED_IN = ("name", "topic")


def _servers(text: str) -> str:
    """Check a list of brokers, as a ``parse``."""
    if not all(_SERVER.fullmatch(server.strip()) for server in text.split(",")):
        raise ValueError(text)
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaOptions:
    """One sink's options. Bytes are counted before compression."""

    # fmt: off
    bootstrap_servers: str = declared(Setting(
        "text", REQUIRED, "Initial brokers, separated by commas.",
        form="host:port[,host:port]", elsewhere=("metadata_broker_list",), parse=_servers,
    ))
    topic: str = declared(Setting(
        "text", REQUIRED, "The topic; `{feed}` is replaced by the feed's name, and `{table}` by "
        "the table's name (from its metadata, or the option `table`).", form="a topic's name",
    ))
    format: str = declared(Setting(
        "text", "rows", "Format of the records; the sink also takes the format's options.",
        choices=tuple(FORMATS),
    ))
    delivery: str = declared(Setting(
        "text", "exactly-once", "With `exactly-once`, progress is stored in Kafka, in the "
        "transaction of the data.", choices=("exactly-once", "at-least-once"),
    ))
    driver: str = declared(Setting(
        "text", "kafka-python", "The client library; librdkafka needs the extra `librdkafka`.",
        choices=("kafka-python", "librdkafka"),
    ))
    client_id: str = declared(Setting("text", "delta-tailer", "Client id in the brokers' logs."))
    transactional_id: str = declared(Setting(
        "text", "delta-tailer.{feed}", "Transactional id; it must differ between installations "
        "that share a cluster.",
    ))
    progress_topic: str = declared(Setting(
        "text", "delta-tailer-progress", "Topic of progress records: one partition, compacted; the "
        "key is the feed's name.",
    ))
    transaction_topic: str = declared(Setting(
        "text", "", "Topic for markers at the beginning and end of each version.", unset="none",
    ))
    notice_topic: str = declared(Setting(
        "text", "", "Topic for notices (schema changes, losses, skipped versions, snapshots, "
        "heartbeats) as JSON, written in the transaction that moves past them.", unset="none",
    ))
    append_to_existing: bool = declared(Setting(
        "flag", False, "For a single start: append to a topic that has records but no progress of "
        "this feed.",
    ))
    accept_changes: bool = declared(Setting(
        "flag", False, 'For a single start: accept changed options; see "When topic, format or key '
        'change".',
    ))
    create_topics: bool = declared(Setting("flag", True, "Create missing topics."))
    partitions: int = declared(Setting(
        "whole", -1, "Partitions of created topics; -1 means the broker's default.",
        also=(-1,),
    ))
    replication_factor: int = declared(Setting(
        "whole", -1, "Replicas of created topics; -1 means the broker's default.",
        also=(-1,),
    ))
    topic_config: dict[str, str] = declared(Setting(
        "table", {}, "Kafka configuration of created topics.",
    ))
    compression: str = declared(Setting(
        "text", "none", "Compression of record batches; all but gzip need the extra `compression`.",
        choices=("none", "gzip", "snappy", "lz4", "zstd"),
        elsewhere=("compression_type", "compression_codec"),
    ))
    linger_ms: int = declared(Setting(
        "whole", 5, "How long to wait for more records before sending a "
        "batch.", unit="milliseconds", least=0,
        elsewhere=("queue_buffering_max_ms",),
    ))
    batch_bytes: int = declared(Setting(
        "whole", 1_000_000, "Maximum bytes per record batch; at most the topic's "
        "`max.message.bytes`.", unit="bytes", elsewhere=("batch_size",),
    ))
    in_flight_bytes: int = declared(Setting(
        "whole", 32 * 1024 * 1024, "Maximum unacknowledged bytes.", unit="bytes",
        elsewhere=("buffer_memory",),
    ))
    transaction_rows: int = declared(Setting(
        "whole", 131_072, "Maximum rows per transaction; a larger batch takes several.",
        unit="rows",
    ))
    transaction_bytes: int = declared(Setting(
        "whole", 32 * 1024 * 1024, "Maximum bytes per transaction; a larger batch takes several.",
        unit="bytes",
    ))
    transaction_timeout_ms: int = declared(Setting(
        "whole", 60_000, "When Kafka aborts an uncommitted transaction; at most the brokers' "
        "`transaction.max.timeout.ms`.", unit="milliseconds",
        # A transaction takes several requests; a shorter one would be ended before its commit.
        least=1_000,
    ))
    delivery_timeout_ms: int = declared(Setting(
        "whole", 30_000, "How long to wait for an acknowledgement before the feed retries from its "
        "offset; at least the sum of `request_timeout_ms` and `linger_ms`.", unit="milliseconds",
        elsewhere=("message_timeout_ms",),
    ))
    request_timeout_ms: int = declared(Setting(
        "whole", 15_000, "How long to wait for the response to one request.", unit="milliseconds",
    ))
    bootstrap_timeout_ms: int = declared(Setting(
        "whole", 10_000, "How long to wait for the first broker.", unit="milliseconds",
    ))
    on_oversize: str = declared(Setting(
        "text", "fail", "What to do with an event that is too large for the topic; `park` writes a "
        "note with its id, version, file and size to `park_topic` "
        "instead.", choices=("fail", "park"),
    ))
    park_topic: str = declared(Setting("text", "", "Topic for these notes.", unset="none"))
    # fmt: on
    security: Security
    encoder: dict[str, Any] = field(repr=False)  # may hold a registry's password

    @property
    def exactly_once(self) -> bool:
        """Return whether progress is kept in Kafka, in one transaction with the data."""
        return self.delivery == "exactly-once"

    @classmethod
    def take(cls, options: Mapping[str, Any], folder: Path) -> KafkaOptions:
        """Return the options of one configuration table; paths in it are relative to ``folder``.

        Raises :class:`ConfigError` naming the key that is missing, unknown or wrong.
        """
        given = _TABLE.rename(dict(with_dots(options, _TABLES)))
        of_format = encoder_settings(_TABLE.value("format", given))
        chosen = {name: of_format[name] for name in of_format if name not in _FILLED_IN}
        taken = replace(_TABLE, settings={**chosen, **_OWN}).take(given)
        _check(taken)
        taken["topic_config"] = {k: _text(v) for k, v in with_dots(taken["topic_config"])}
        encoder = {key: taken[key] for key in chosen}
        if "registry" in encoder:
            encoder["registry"] = located(encoder["registry"], folder)
        return cls(
            **{key: taken[key] for key in settings_of(cls)},
            security=Security.of({key: taken[key] for key in settings_of(Security)}, folder),
            encoder=encoder,
        )


_OWN = {**settings_of(KafkaOptions), **settings_of(Security)}
#: All options, including those of every format.
_TABLE = SettingTable(
    "sink 'kafka'", {**SETTINGS, **_OWN}, spelling=spelling, renames=True, answers=ANSWERS
)
_TABLES = tuple(name for name, setting in _TABLE.settings.items() if setting.kind == "table")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check(taken: dict[str, Any]) -> None:
    if taken["driver"] == "librdkafka" and find_spec("confluent_kafka") is None:
        raise _TABLE.wrong(
            "driver", "is 'librdkafka', which needs pip install 'delta-tailer[librdkafka]'"
        )
    if taken["delivery_timeout_ms"] < taken["request_timeout_ms"] + taken["linger_ms"]:
        what = "must be at least request_timeout_ms + linger_ms"
        raise _wrong("delivery_timeout_ms", taken["delivery_timeout_ms"], what)
    if taken["on_oversize"] == "park" and not taken["park_topic"]:
        raise _TABLE.wrong("park_topic", "is missing, and on_oversize = 'park' needs it")
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
    return _TABLE.wrong(key, f"is {value!r}, and {what}")


def topic_name(template: str, feed: str, table: str | None = None) -> str:
    """Fill in a template's placeholders. Raises :class:`ConfigError` if the result is not a legal
    topic name (letters, digits, ``.``, ``_`` and ``-``, at most 249)."""
    if "{table}" in template and not table:
        raise ConfigError(
            f"the topic {template!r} asks for the table's name, and the table has none in its "
            "metadata; give it as the option 'table'"
        )
    name = template.replace("{feed}", feed).replace("{table}", table or "")
    if not _TOPIC.fullmatch(name) or name in (".", ".."):
        raise ConfigError(
            f"{name!r} (from {template!r}) is not a topic's name: letters, digits, '.', '_' and "
            "'-' only, 249 at most"
        )
    return name
