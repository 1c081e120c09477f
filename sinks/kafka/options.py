"""The options of the Kafka sink, checked: names as in Kafka's own clients, with underscores."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sinks.formats.load import encoder_settings, format_setting
from sinks.formats.registry import locate_files
from sinks.kafka.client.security import Security
from sinks.shared.record_form import build_record_form
from sinks.shared.routes import Route
from tailer.changes import ChangeBatch
from tailer.errors import ConfigError
from tailer.setting_fields import declared, settings_of
from tailer.settings import REQUIRED, Setting, SettingTable

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_PLACEHOLDERS = ("feed", "table")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_NOT_IN_TOPICS = re.compile(r"[^A-Za-z0-9._-]+")
_SERVER = re.compile(r"(\[[^\]]+\]|[^:/\s]+):\d{1,5}")
#: How long to wait for more records before sending a batch.
LINGER_MS = 5
#: The longest wait for the response to one request, and for the first broker.
_REQUEST_MS, _BOOTSTRAP_MS = 15_000, 10_000
#: What the sink fills in for its encoder.
_FILLED_IN = ("name", "topic")


def _check_servers(text: str) -> str:
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
        form="host:port[,host:port]", elsewhere=("metadata_broker_list",), parse=_check_servers,
    ))
    topic: str = declared(Setting(
        "text", REQUIRED, "The topic; `{feed}` is replaced by the feed's name, `{table}` by the "
        "table's name (from its metadata, or the option `table`), and any other name in braces by "
        "that column's value in each row.", form="a topic's name",
    ))
    format: str = declared(format_setting(
        "Format of the records; the sink also takes the format's options.",
    ))
    delivery: str = declared(Setting(
        "text", "exactly-once", "With `exactly-once`, progress is stored in Kafka, in the "
        "transaction of the data.", choices=("exactly-once", "at-least-once"),
    ))
    notice_topic: str = declared(Setting(
        "text", "", "Topic for notices (schema changes, losses, skipped versions, snapshots, "
        "heartbeats) as JSON, written in the transaction that moves past them.", unset="none",
        advanced=True,
    ))
    create_topics: bool = declared(Setting(
        "flag", True, "Create missing topics, with the brokers' defaults.", advanced=True,
    ))
    compression: str = declared(Setting(
        "text", "none", "Compression of record batches; all but gzip need the extra `compression`.",
        choices=("none", "gzip", "snappy", "lz4", "zstd"),
        elsewhere=("compression_type", "compression_codec"),
    ))
    client_id: str = declared(Setting(
        "text", "delta-tailer", "Client id in the brokers' logs.", advanced=True,
    ))
    transactional_id: str = declared(Setting(
        "text", "delta-tailer.{feed}", "Transactional id; it must differ between installations "
        "that share a cluster.", advanced=True,
    ))
    progress_topic: str = declared(Setting(
        "text", "delta-tailer-progress", "Topic of progress records: one partition, compacted; the "
        "key is the feed's name.", advanced=True,
    ))
    batch_bytes: int = declared(Setting(
        "whole", 1_000_000, "Maximum bytes per record batch; at most the topic's "
        "`max.message.bytes`.", unit="bytes", elsewhere=("batch_size",), advanced=True,
    ))
    transaction_bytes: int = declared(Setting(
        "whole", 32 * 1024 * 1024, "Maximum bytes per transaction; a larger batch takes several.",
        unit="bytes", advanced=True,
    ))
    transaction_timeout_ms: int = declared(Setting(
        "whole", 60_000, "When Kafka aborts an uncommitted transaction; at most the brokers' "
        "`transaction.max.timeout.ms`.", unit="milliseconds",
        # A transaction takes several requests; a shorter one would be ended before its commit.
        least=1_000, advanced=True,
    ))
    delivery_timeout_ms: int = declared(Setting(
        "whole", 30_000, "How long to wait for an acknowledgement before the feed retries from its "
        "offset.", unit="milliseconds", least=100, elsewhere=("message_timeout_ms",), advanced=True,
    ))
    # fmt: on
    security: Security
    encoder: dict[str, Any] = field(repr=False)  # may hold a registry's password

    @property
    def exactly_once(self) -> bool:
        """Return whether progress is kept in Kafka, in one transaction with the data."""
        return self.delivery == "exactly-once"

    @property
    def route(self) -> Route:
        """Return the topic as a route by columns."""
        return Route(self.topic, "topic", _PLACEHOLDERS, _NOT_IN_TOPICS)

    def find_common_topic(self, feed: str) -> str | None:
        """Return the topic of all rows, if that is known before the first one."""
        table = self.encoder.get("table") or None
        if self.route.columns or (table is None and "{table}" in self.topic):
            return None
        return fill_topic_name(self.topic, feed, table)

    def split_by_topic(self, feed: str, batch: ChangeBatch) -> Iterator[tuple[str, ChangeBatch]]:
        """Yield the topics of a batch's rows, and the rows of each."""
        table = self.encoder.get("table") or batch.state.metadata.name or None
        route = self.route
        if not route.columns:
            yield fill_topic_name(self.topic, feed, table), batch
            return
        if "{table}" in self.topic:
            fill_topic_name("{table}", feed, table)  # or the metadata has no name
        for name, rows in route.split_rows(batch, {"feed": feed, "table": table or ""}):
            yield fill_topic_name(name, feed), rows

    def build_form(self, feed: str) -> dict[str, Any]:
        """Return the form of a feed's records: the options that determine it, by name."""
        # {table} may be the name in the metadata; a change of that is not a change of options.
        table = self.encoder.get("table") or "{table}"
        topic = self.topic.replace("{feed}", feed).replace("{table}", table)
        return build_record_form(self.encoder, topic=topic, format=self.format)

    @property
    def request_timeout_ms(self) -> int:
        """Return how long to wait for the response to one request."""
        return min(_REQUEST_MS, self.delivery_timeout_ms - LINGER_MS)

    @property
    def bootstrap_timeout_ms(self) -> int:
        """Return how long to wait for the first broker."""
        return min(_BOOTSTRAP_MS, self.delivery_timeout_ms)

    @classmethod
    def from_options(cls, taken: Mapping[str, Any], folder: Path) -> KafkaOptions:
        """Return checked options; paths in them are relative to ``folder``.

        Raises :class:`ConfigError` naming a key that does not fit the others.
        """
        _check_names(taken)
        encoder = {key: taken[key] for key in format_settings(taken["format"])}
        if "registry" in encoder:
            encoder["registry"] = locate_files(encoder["registry"], folder)
        return cls(
            **{key: taken[key] for key in settings_of(cls)},
            security=Security.from_options(
                {key: taken[key] for key in settings_of(Security)}, folder
            ),
            encoder=encoder,
        )


SETTINGS = {**settings_of(KafkaOptions), **settings_of(Security)}


def format_settings(format: str) -> dict[str, Setting]:  # noqa: A002  # the option's name
    """Return the settings that the sink takes of a format."""
    found = encoder_settings(format)
    return {name: found[name] for name in found if name not in _FILLED_IN}


def _check_names(taken: Mapping[str, Any]) -> None:
    for key in ("topic", "transactional_id", "progress_topic", "notice_topic"):
        for name in _PLACEHOLDER.findall(taken[key]):
            if key != "topic" and name != "feed":
                raise _make_error(key, taken[key], "may hold {feed}, and nothing else in braces")
        if key != "transactional_id" and taken[key]:
            fill_topic_name(
                Route(taken[key], key, _PLACEHOLDERS, _NOT_IN_TOPICS).mask_columns("c"), "f", "t"
            )


def _make_error(key: str, value: Any, what: str) -> ConfigError:
    return SettingTable("sink 'kafka'", SETTINGS).wrong(key, f"is {value!r}, and {what}")


def fill_topic_name(template: str, feed: str, table: str | None = None) -> str:
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
