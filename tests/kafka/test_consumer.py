"""What consumers make of a topic: the table again, in every format."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest
from confluent_kafka import Producer

from tailer.errors import ConfigError, SinkRejected, TailerError, TransientError
from tailer.testing.table import TableBuilder
from tests.kafka.broker import Broker
from tests.kafka.deliveries import RENAMED, deliver, history_table, snapshot_rows
from tests.kafka.sinks import fresh, made
from tests.kafka.topics import create_topic
from tests.support.topic_consumer import (
    KeyedTable,
    MultisetTable,
    canonical_row,
    consume,
)
from tests.support.topic_records import TopicRow, read_topic

FORMATS: dict[str, dict[str, Any]] = {
    "rows": {},
    "debezium": {},
    "debezium with schema": {"schema": True},
    "cloudevents": {},
}

PLAIN = {"sasl_mechanism": "PLAIN", "sasl_plain_username": "a", "sasl_plain_password": "b"}
QUICK = {"bootstrap_timeout_ms": 3000}


def delivered(
    kafka: Broker, folder: Path, name: str, *, duplicates: bool, keyed: bool
) -> tuple[TableBuilder, str]:
    """The table, and the topic that has its events."""
    table, topic = history_table(folder, duplicates=duplicates), fresh()
    options = {"key": ["id"]} if keyed else {}
    create_topic(kafka.bootstrap, topic, 3)
    sink = made(
        kafka.bootstrap,
        topic,
        format=name.split(maxsplit=1)[0],
        **options,
        **FORMATS[name],
    )
    anyio.run(deliver, table, sink)
    return table, topic


def renamed(row: TopicRow) -> TopicRow:
    return replace(row, row={RENAMED if k == "v" else k: v for k, v in row.row.items()})


def expected(table: TableBuilder) -> Counter[Any]:
    return Counter(map(canonical_row, snapshot_rows(table)))


def schema_of(table: TableBuilder) -> pa.Schema:
    return pa.schema([field.remove_metadata() for field in table.schema])


@pytest.mark.parametrize("name", FORMATS)
def test_a_table_without_a_key_is_rebuilt_with_its_duplicate_rows(
    kafka: Broker, tmp_path: Path, name: str
) -> None:
    table, topic = delivered(kafka, tmp_path, name, duplicates=True, keyed=False)
    rebuilt = MultisetTable()
    consume(read_topic(kafka.bootstrap, topic), schema_of(table), rebuilt, rename=renamed)
    assert rebuilt.result() == expected(table)
    assert max(rebuilt.result().values()) == 3


@pytest.mark.parametrize("name", FORMATS)
def test_a_table_with_a_key_is_rebuilt_across_a_change_of_keys(
    kafka: Broker, tmp_path: Path, name: str
) -> None:
    table, topic = delivered(kafka, tmp_path, name, duplicates=False, keyed=True)
    keyed, counted = KeyedTable(), MultisetTable()
    consume(read_topic(kafka.bootstrap, topic), schema_of(table), keyed, counted, rename=renamed)
    assert keyed.result() == expected(table)
    assert counted.result() == expected(table)


def test_what_is_no_change_event_is_named(kafka: Broker, tmp_path: Path) -> None:
    table, topic = history_table(tmp_path, duplicates=False), create_topic(kafka.bootstrap, fresh())
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(topic, b'{"some": "thing"}')
    producer.flush(20)
    with pytest.raises(SinkRejected, match="record at partition 0, offset 0 is no change event"):
        consume(read_topic(kafka.bootstrap, topic), schema_of(table), MultisetTable())


def test_a_topic_that_is_not_there_is_named(kafka: Broker) -> None:
    with pytest.raises(ConfigError, match="there is no topic 'nothing' at"):
        list(read_topic(kafka.bootstrap, "nothing"))


@pytest.mark.parametrize(
    ("servers", "settings", "kind", "said"),
    [
        ("127.0.0.1:9", {}, TransientError, "ECONNREFUSED"),
        (None, {"security_protocol": "SASL_PLAINTEXT"} | PLAIN, TransientError, "IllegalSaslState"),
        (None, {"isolation": "read_committed"}, ConfigError, "isolation"),
    ],
)
def test_a_broker_that_does_not_let_one_read_is_named(
    kafka: Broker,
    servers: str | None,
    settings: dict[str, Any],
    kind: type[TailerError],
    said: str,
) -> None:
    with pytest.raises(kind, match=said):
        list(read_topic(servers or kafka.bootstrap, "orders", settings | QUICK))
