"""Avro through Kafka: a table whose column gets a new name, its schemas in a real registry."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import fastavro
import pytest

from tailer.errors import SinkRejected
from tests.kafka.broker import Broker
from tests.kafka.deliveries import deliver, history_table, snapshot_rows
from tests.kafka.sinks import fresh, made
from tests.kafka.topics import create_topic
from tests.support.registry import Registry
from tests.support.topic_consumer import canonical_row
from tests.support.topic_records import read_topic

pytestmark = pytest.mark.needs("registry")


def read(registry: Registry, schemas: dict[int, Any], data: bytes) -> dict[str, Any]:
    """A key or value, with the schema that its id names."""
    number = int.from_bytes(data[1:5], "big")
    if number not in schemas:
        answer = json.loads(registry.call("GET", f"/schemas/ids/{number}")[1])
        schemas[number] = fastavro.parse_schema(json.loads(answer["schema"]))
    found = fastavro.schemaless_reader(io.BytesIO(data[5:]), schemas[number])
    assert isinstance(found, dict)
    return found


def avro(kafka: Broker, registry: Registry, topic: str, **options: Any) -> Any:
    own = {"registry": {"url": registry.url}, "format": "avro", "key": ["id"], **options}
    return made(kafka.bootstrap, topic, **own)


@pytest.mark.parametrize(
    "compatibility", ["BACKWARD", pytest.param("FULL", marks=pytest.mark.slow)]
)
def test_a_table_is_rebuilt_from_avro(
    kafka: Broker, registry: Registry, tmp_path: Path, compatibility: str
) -> None:
    registry.call("PUT", "/config", json.dumps({"compatibility": compatibility}))
    table, topic = history_table(tmp_path, duplicates=False), fresh()
    create_topic(kafka.bootstrap, topic, 2)
    anyio.run(deliver, table, avro(kafka, registry, topic, envelope="debezium"))
    schemas: dict[int, Any] = {}
    rows: dict[str, dict[str, Any]] = {}
    for message in read_topic(kafka.bootstrap, topic):
        assert message.key is not None
        assert message.value is not None
        key = repr(read(registry, schemas, message.key))
        event = read(registry, schemas, message.value)
        rows.pop(key, None)
        if event["op"] != "d":
            after = {"value" if k == "v" else k: v for k, v in event["after"].items()}
            rows[key] = after
        assert (
            message.headers["_schema_id"] == str(int.from_bytes(message.value[1:5], "big")).encode()
        )
    assert Counter(map(canonical_row, rows.values())) == Counter(
        map(canonical_row, snapshot_rows(table))
    )
    assert len(schemas) == 3, "one for the key, and one for the rows under either name"


def test_a_schema_that_is_refused_stops_the_feed_with_nothing_written(
    kafka: Broker, registry: Registry, tmp_path: Path
) -> None:
    registry.call("PUT", "/config", '{"compatibility":"BACKWARD"}')
    table, topic = history_table(tmp_path, duplicates=False), fresh()
    other = '{"type":"record","name":"Other","fields":[{"name":"x","type":"string"}]}'
    body = json.dumps({"schemaType": "AVRO", "schema": other})
    assert registry.call("POST", f"/subjects/{topic}-value/versions", body)[0] == 200
    with pytest.raises(SinkRejected, match=f"refuses the schema of subject '{topic}-value'"):
        anyio.run(deliver, table, avro(kafka, registry, topic))
    assert list(read_topic(kafka.bootstrap, topic)) == []
