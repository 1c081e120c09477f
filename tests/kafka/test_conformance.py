"""The Kafka sink against the public suite of sinks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tailer.sink import make_sink
from tailer.testing.conformance import SinkConformance, TargetFaults
from tailer.testing.conformance.sink import Event, MakeSink, ReadEvents
from tests.kafka.broker import Broker
from tests.kafka.sinks import fresh
from tests.kafka.topics import admin, read_topic


class KafkaConformance(SinkConformance):
    """One partition: the suite asks for the order of all events."""

    delivery: str

    @pytest.fixture
    def topic(self) -> str:
        return fresh()

    @pytest.fixture
    def options(self, kafka: Broker, topic: str) -> dict[str, Any]:
        return {
            "bootstrap_servers": kafka.bootstrap,
            "topic": topic,
            "delivery": self.delivery,
            "progress_topic": f"{topic}-progress",
            "transactional_id": topic,
        }

    @pytest.fixture
    def target_faults(self, kafka: Broker, options: dict[str, Any], tmp_path: Path) -> TargetFaults:
        hasty = {**options, "delivery_timeout_ms": 2000}
        return TargetFaults(
            hasty=lambda: make_sink("kafka", hasty, tmp_path),
            still=kafka.still,
        )

    @pytest.fixture
    def make_sink(self, options: dict[str, Any], tmp_path: Path) -> MakeSink:
        return lambda: make_sink("kafka", options, tmp_path)

    @pytest.fixture
    def read_events(self, kafka: Broker, topic: str) -> ReadEvents:
        def read() -> Sequence[Event]:
            if topic not in admin(kafka.bootstrap).list_topics(timeout=100).topics:
                return []
            return [
                Event(
                    event.id,
                    event.headers["_change_type"].decode(),
                    int(event.headers["_commit_version"]),
                    (event.key, event.value, tuple(sorted(event.headers.items()))),
                )
                for event in read_topic(kafka.bootstrap, topic)
            ]

        return read


class TestExactlyOnce(KafkaConformance):
    delivery = "exactly-once"


class TestAtLeastOnce(KafkaConformance):
    delivery = "at-least-once"
