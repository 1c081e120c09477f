"""Protobuf through Kafka: a table whose column gets a new name, its schemas in a real registry."""

from __future__ import annotations

import json
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import pytest

from tailer.errors import SinkRejected
from tailer.testing.table import TableBuilder
from tests.kafka.broker import Broker
from tests.kafka.deliveries import deliver, history_table, snapshot_rows
from tests.kafka.sinks import fresh, made
from tests.kafka.topics import create_topic
from tests.support.protobuf import read_message
from tests.support.registry import Registry
from tests.support.topic_consumer import canonical_row
from tests.support.topic_records import Message, read_topic

pytestmark = pytest.mark.needs("registry")


def read(registry: Registry, data: bytes) -> dict[str, Any]:
    """A key or value, with the schema that its id names."""
    assert (data[0], data[5]) == (0, 0)
    _, answer = registry.call("GET", f"/schemas/ids/{int.from_bytes(data[1:5], 'big')}")
    return read_message(json.loads(answer)["schema"], data[6:])


def delivered(
    kafka: Broker, registry: Registry, source: TableBuilder, **options: Any
) -> list[Message]:
    """The records of a new feed to a topic of its own."""
    topic = fresh()
    create_topic(kafka.bootstrap, topic, 2)
    own = {"registry": {"url": registry.url}, "format": "protobuf", "key": ["id"], **options}
    anyio.run(deliver, source, made(kafka.bootstrap, topic, **own))
    return list(read_topic(kafka.bootstrap, topic))


def test_a_table_is_rebuilt_and_a_replay_is_the_same(
    kafka: Broker, registry: Registry, tmp_path: Path
) -> None:
    registry.call("PUT", "/config", '{"compatibility":"BACKWARD"}')
    table = history_table(tmp_path, duplicates=False)
    # Subjects of the record's name, which both topics have.
    options = {"envelope": "debezium", "subject_name_strategy": "record", "table": fresh()}
    messages = delivered(kafka, registry, table, **options)
    rows: dict[bytes, dict[str, Any]] = {}
    for message in messages:
        assert message.key is not None
        assert message.value is not None
        event = read(registry, message.value)
        rows.pop(message.key, None)
        if event["op"] != "d":
            number = event["after"]["n"]
            value = event["after"].get("value") or event["after"]["v"]
            rows[message.key] = {
                "id": event["after"]["id"],
                "value": value,
                "n": None if number is None else Decimal(number),
            }
        shown = str(int.from_bytes(message.value[1:5], "big")).encode()
        assert message.headers["_schema_id"] == shown
    assert Counter(map(canonical_row, rows.values())) == Counter(
        map(canonical_row, snapshot_rows(table))
    )
    assert len({message.value[1:5] for message in messages if message.value}) == 2, "two names"

    def content(found: list[Message]) -> list[Any]:
        return sorted((m.partition, m.key, m.value, sorted(m.headers.items())) for m in found)

    again = delivered(kafka, registry, table, **options)
    assert content(again) == content(messages)


def test_a_schema_that_is_refused_stops_the_feed_with_nothing_written(
    kafka: Broker, registry: Registry, tmp_path: Path
) -> None:
    registry.call("PUT", "/config", '{"compatibility":"BACKWARD"}')
    table, topic = history_table(tmp_path, duplicates=False), fresh()
    other = 'syntax = "proto3"; message Value { optional bool id = 1; }'
    body = json.dumps({"schemaType": "PROTOBUF", "schema": other})
    assert registry.call("POST", f"/subjects/{topic}-value/versions", body)[0] == 200
    own = {"registry": {"url": registry.url}, "format": "protobuf", "key": ["id"]}
    with pytest.raises(SinkRejected, match=f"refuses the schema of subject '{topic}-value'"):
        anyio.run(deliver, table, made(kafka.bootstrap, topic, **own))
    assert list(read_topic(kafka.bootstrap, topic)) == []
