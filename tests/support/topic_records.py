"""Reading a topic of change events back: records as signed rows, in the table's types.

For verification and tests, not for production consumers: values are decoded one by one. The formats
``rows``, ``debezium`` (with and without schema), ``cloudevents`` (structured and binary) and
``arrow`` are recognized by the records' content and headers; ``avro`` needs its registry and is
refused. Only committed records are read.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tailer.changes import is_arrow_variant, variant_json
from tailer.errors import ConfigError, SinkRejected, TransientError

_METADATA = ("_change_type", "_commit_version", "_commit_timestamp")
_LEAVING = ("delete", "update_preimage")
_BOOTSTRAP_MS = 10_000
_POLL_MS = 200
#: How long a broker without answers is waited for.
_PATIENCE_S = 60.0
_EPOCH_DATE = dt.date(1970, 1, 1).toordinal()


@dataclass(frozen=True, slots=True)
class Message:
    """One record of a topic, with the headers that occur once."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A row that was added (``sign`` 1) or removed (-1) in a version, with the format's values,
    the fields that are not the table's among them.

    ``connect``: values as Kafka Connect's JSON converter writes them; ``typed``: as Arrow does.
    """

    sign: int
    version: int
    row: Mapping[str, Any]
    connect: bool = False
    typed: bool = False


def read_topic(
    bootstrap_servers: str, topic: str, settings: Mapping[str, Any] | None = None
) -> Iterator[Message]:
    """Yield the committed records of all partitions up to their present ends, in order in each.

    ``settings`` are further ones of kafka-python's consumer. Raises :class:`ConfigError` for an
    unknown topic or setting, :class:`TransientError` if no broker answers, with the client's
    messages, such as one about a wrong password.
    """
    from kafka import KafkaConsumer, TopicPartition
    from kafka.errors import KafkaConfigurationError, KafkaError

    own = {
        "isolation_level": "read_committed",
        "enable_auto_commit": False,
        "group_id": None,
        "bootstrap_timeout_ms": _BOOTSTRAP_MS,
    }
    heard = _Heard()
    logging.getLogger("kafka").addHandler(heard)
    try:
        given = {"bootstrap_servers": bootstrap_servers, **own, **(settings or {})}
        consumer = KafkaConsumer(**given)
        try:
            numbers = consumer.partitions_for_topic(topic)
            if not numbers:
                raise ConfigError(f"there is no topic {topic!r} at {bootstrap_servers}")
            places = [TopicPartition(topic, number) for number in sorted(numbers)]
            consumer.assign(places)
            consumer.seek_to_beginning(*places)
            yield from _records(consumer, consumer.end_offsets(places))
        finally:
            consumer.close()
    except KafkaConfigurationError as e:
        raise ConfigError(f"a setting of the consumer of topic {topic!r} is wrong: {e}") from e
    except KafkaError as e:
        said = f"{e}; {heard.last}" if heard.last else str(e)
        raise TransientError(
            f"topic {topic!r} can't be read from {bootstrap_servers}: {said}"
        ) from e
    finally:
        logging.getLogger("kafka").removeHandler(heard)


def _records(consumer: Any, ends: Mapping[Any, int]) -> Iterator[Message]:
    """Yield the records of a consumer before these offsets of its partitions."""
    left = {(place.topic, place.partition): end for place, end in ends.items()}
    give_up = time.monotonic() + _PATIENCE_S
    while any(_position(consumer, place) < end for place, end in ends.items()):
        polled = consumer.poll(timeout_ms=_POLL_MS, max_records=5000)
        if polled:
            give_up = time.monotonic() + _PATIENCE_S
        elif time.monotonic() > give_up:
            raise TransientError(f"Kafka has sent nothing for {_PATIENCE_S:g} s, before the end")
        for found in polled.values():
            for record in found:
                if record.offset < left[record.topic, record.partition]:
                    yield _message(record)


def _position(consumer: Any, place: Any) -> int:
    """Return a consumer's position; -1 while it is not known yet."""
    position = consumer.position(place, timeout_ms=_POLL_MS)
    return -1 if position is None else int(position)


class _Heard(logging.Handler):
    """Collects kafka-python's log messages about failing connections, which it does not raise.

    A time-out replaces no other message: the last try may have had a few milliseconds.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if line.startswith("Bootstrap connection") and not (self.last and "timed out" in line):
            self.last = line.partition(" (backoff")[0]


def _message(record: Any) -> Message:
    headers = dict(record.headers)
    return Message(record.partition, record.offset, record.key, record.value, headers)


def rows_of(message: Message) -> Iterator[TopicRow]:
    """Yield the rows of a record, none for a tombstone. An update in one event gives two rows.

    Raises :class:`SinkRejected`, naming partition and offset, for a record that is not a change
    event.
    """
    if message.value is None:
        return
    try:
        yield from _event_rows(message, message.value)
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        where = f"partition {message.partition}, offset {message.offset}"
        raise SinkRejected(
            f"the record at {where} is no change event in a format that can be read here "
            f"({type(e).__name__}: {e})"
        ) from e


def _event_rows(message: Message, value: bytes) -> Iterator[TopicRow]:
    content = message.headers.get("content-type", b"")
    if content == b"application/vnd.apache.arrow.stream":
        yield from _arrow_rows(value)
        return
    document = json.loads(value, parse_float=Decimal)
    if "ce_type" in message.headers:
        yield _cloud_event(
            {name.removeprefix("ce_"): data.decode() for name, data in message.headers.items()},
            document,
        )
    elif content.startswith(b"application/cloudevents+json"):
        yield _cloud_event(document, document["data"])
    elif "_change_type" in document:
        sign = -1 if document["_change_type"] in _LEAVING else 1
        data = {k: v for k, v in document.items() if k not in _METADATA}
        yield TopicRow(sign, document["_commit_version"], data)
    else:
        yield from _envelope(document)


def _cloud_event(attributes: Mapping[str, Any], data: Any) -> TopicRow:
    kind = attributes["type"].rpartition(".")[2]
    return TopicRow(-1 if kind in _LEAVING else 1, int(attributes["deltaversion"]), data)


def _envelope(document: Mapping[str, Any]) -> Iterator[TopicRow]:
    connect = "schema" in document and "payload" in document
    event = document["payload"] if connect else document
    version = event["source"]["commit_version"]
    for sign, image in ((-1, event["before"]), (1, event["after"])):
        if image is not None:
            yield TopicRow(sign, version, image, connect)


def _arrow_rows(value: bytes) -> Iterator[TopicRow]:
    for row in pa.ipc.open_stream(value).read_all().to_pylist():
        sign = -1 if row["_change_type"] in _LEAVING else 1
        data = {k: v for k, v in row.items() if k not in _METADATA}
        yield TopicRow(sign, row["_commit_version"], data, typed=True)


def topic_values(row: TopicRow, fields: Sequence[pa.Field]) -> dict[str, Any]:
    """Return a row's values in Python types for these fields; missing columns are null.

    A variant becomes its JSON text with sorted keys.
    """
    return {f.name: _typed(row.row.get(f.name), f.type, row) for f in fields}


def _typed(value: Any, data_type: pa.DataType, how: TopicRow) -> Any:
    types = pa.types
    if value is None:
        return None
    if is_arrow_variant(data_type):
        return _variant(value, how)
    if types.is_struct(data_type):
        return {f.name: _typed(value[f.name], f.type, how) for f in data_type}
    if types.is_list(data_type):
        return [_typed(item, data_type.value_type, how) for item in value]
    if types.is_map(data_type):
        return _map(value, data_type, how)
    if how.typed:
        return value
    if types.is_binary(data_type):
        return base64.b64decode(value, validate=True)
    if types.is_floating(data_type):
        number = float(value)
        return pa.scalar(number, data_type).as_py() if data_type == pa.float32() else number
    if types.is_decimal(data_type):
        return _decimal(value, data_type, how)
    if types.is_date(data_type):
        return dt.date.fromordinal(value + _EPOCH_DATE) if how.connect else _date(value)
    if types.is_timestamp(data_type):
        return _timestamp(value)
    return value


def _date(value: str) -> dt.date:
    return dt.date.fromisoformat(value)


def _timestamp(value: str | int) -> dt.datetime:
    if isinstance(value, int):  # Connect's, in microseconds
        return dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=value)  # noqa: DTZ001  # has none
    return dt.datetime.fromisoformat(value)


def _decimal(value: Any, data_type: pa.DataType, how: TopicRow) -> Decimal:
    if not how.connect:
        return Decimal(value)
    unscaled = int.from_bytes(base64.b64decode(value, validate=True), "big", signed=True)
    digits = tuple(map(int, str(abs(unscaled))))
    return Decimal((int(unscaled < 0), digits, -data_type.scale))


def _map(value: Any, data_type: pa.MapType, how: TopicRow) -> list[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        pairs = list(value.items())
    elif how.typed:
        pairs = [tuple(pair) for pair in value]
    else:
        pairs = [(entry["key"], entry["value"]) for entry in value]
    plain = isinstance(value, Mapping) and not pa.types.is_string(data_type.key_type)
    return [
        (
            _key(key, data_type.key_type, how) if plain else _typed(key, data_type.key_type, how),
            _typed(item, data_type.item_type, how),
        )
        for key, item in pairs
    ]


def _key(key: str, data_type: pa.DataType, how: TopicRow) -> Any:
    """Parse a map's key, which is a string in JSON whatever its type."""
    if pa.types.is_boolean(data_type):
        return key == "true"
    if pa.types.is_integer(data_type):
        return int(key)
    return _typed(key, data_type, how)


def _variant(value: Any, how: TopicRow) -> str:
    if how.typed:
        return variant_key(variant_json(value["value"], value["metadata"]))
    return variant_key(value if how.connect else json.dumps(value, default=str))


def variant_key(text: str) -> str:
    """Return a variant's JSON text in a form that equal variants share."""
    return json.dumps(json.loads(text, parse_float=Decimal), sort_keys=True, default=str)
