"""The buffers of record batches are used again, and only when nobody can send them any more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from sinks.kafka.client.kafka_python import KafkaPythonDriver, Packed
from sinks.kafka.client.record_batch import Body
from sinks.kafka.options import SETTINGS, KafkaOptions, format_settings
from tailer.settings import SettingTable
from tailer.sink.encoder import Records
from tests.kafka.broker import Broker
from tests.kafka.sinks import fresh
from tests.kafka.topics import create_topic, read_topic

pytestmark = pytest.mark.usefixtures("compiled")


@contextmanager
def driver_to(broker: Broker, compression: str) -> Iterator[tuple[KafkaPythonDriver, str]]:
    topic = fresh()
    create_topic(broker.bootstrap, topic, 2)
    settings = {"bootstrap_servers": broker.bootstrap, "topic": topic, "compression": compression}
    table = SettingTable("kafka", {**format_settings("rows"), **SETTINGS})
    checked = table.take(settings)
    options = KafkaOptions.from_options(checked, Path.cwd())
    driver = KafkaPythonDriver(options, None)
    try:
        yield driver, topic
    finally:
        driver.close()


def numbered(first: int) -> Records:
    """More than a batch of records, each of which says its number."""
    values = [f"{i} ".encode() * 300 for i in range(first, first + 1_000)]
    return Records(None, pa.array(values, pa.binary()), (), 5)


def buffer_of(packed: Packed) -> bytearray:
    assert isinstance(packed, Body)
    return packed.buffer


def test_a_buffer_is_used_again_when_its_batch_is_acknowledged(kafka: Broker) -> None:
    with driver_to(kafka, "none") as (driver, topic):
        sent = driver.pack_records(numbered(100_000))
        for packed in sent:
            driver.send(topic, 0, packed)
        under_way = {id(buffer_of(packed)) for packed in sent}
        before = driver.pack_records(numbered(0))
        assert not under_way & {id(buffer_of(packed)) for packed in before}
        driver.flush()
        after = driver.pack_records(numbered(0))
        assert under_way & {id(buffer_of(packed)) for packed in after}


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_is_sent_from_used_buffers_arrives_whole(kafka: Broker, compression: str) -> None:
    with driver_to(kafka, compression) as (driver, topic):
        for turn in range(6):
            for packed in driver.pack_records(numbered(turn * 1_000)):
                driver.send(topic, turn % 2, packed)
            if turn % 2:
                driver.flush()
        found = sorted(event.value or b"" for event in read_topic(kafka.bootstrap, topic))
    assert found == sorted(f"{i} ".encode() * 300 for i in range(6_000))
