"""A topic that is deleted, or deleted and made again, under a feed: the public suite."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tailer.errors import TailerError
from tailer.sink import make_sink
from tailer.testing.conformance import TargetConformance
from tailer.testing.conformance.sink import MakeSink
from tailer.testing.conformance.target import Change, ReadIds
from tests.kafka.broker import Broker
from tests.kafka.sinks import fresh
from tests.kafka.topics import admin, create_topic, delete_records, delete_topic, events


class KafkaTarget(TargetConformance):
    may_go_on = frozenset({"emptied"})  # retention does that

    delivery: str

    @pytest.fixture
    def topic(self) -> str:
        return fresh()

    @pytest.fixture
    def make_sink(self, kafka: Broker, topic: str, tmp_path: Path) -> MakeSink:
        options = {
            "bootstrap_servers": kafka.bootstrap,
            "topic": topic,
            "delivery": self.delivery,
            "progress_topic": f"{topic}-progress",
            "transactional_id": topic,
        }
        return lambda: make_sink("kafka", options, tmp_path)

    @pytest.fixture
    def changes(self, kafka: Broker, topic: str) -> Mapping[str, Change]:
        def removed() -> None:
            there = admin(kafka.bootstrap).list_topics(timeout=100).topics
            for name in {topic, f"{topic}-progress"} & there.keys():
                delete_topic(kafka.bootstrap, name)

        def replaced() -> None:
            delete_topic(kafka.bootstrap, topic)
            create_topic(kafka.bootstrap, topic)

        def emptied() -> None:
            delete_records(kafka.bootstrap, topic)

        return {"removed": removed, "replaced": replaced, "emptied": emptied}

    @pytest.fixture
    def read_ids(self, kafka: Broker, topic: str) -> ReadIds:
        def read() -> list[int]:
            if topic not in admin(kafka.bootstrap).list_topics(timeout=100).topics:
                return []
            return [row["id"] for row in events(kafka.bootstrap, topic)]

        return read


@pytest.mark.slow  # each waits half a minute for a topic that is gone
class TestExactlyOnce(KafkaTarget):
    delivery = "exactly-once"


class TestKnownByOffsets(KafkaTarget):
    """Between two looks at the topics' ids, as in a backlog of small transactions."""

    delivery = "exactly-once"

    @pytest.fixture(autouse=True)
    def seldom(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sinks.kafka.background_checks._TOPIC_CHECK_S", 1e9)

    @pytest.fixture
    def changes(self, kafka: Broker, topic: str) -> Mapping[str, Change]:
        def replaced() -> None:
            delete_topic(kafka.bootstrap, topic)
            create_topic(kafka.bootstrap, topic)

        return {"replaced": replaced}


@pytest.mark.slow
class TestAtLeastOnce(KafkaTarget):
    """What was sent to the new topic by then stays, and is not acknowledged."""

    delivery = "at-least-once"

    def _check_ids(self, read_ids: ReadIds, what: str, end: TailerError | None) -> None:  # noqa: ARG002
        if what == "emptied":
            assert end is None
        else:
            assert "deleted and created again" in str(end) or "is gone" in str(end)
