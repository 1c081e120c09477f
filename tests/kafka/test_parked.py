"""What was parked is in the topic later, in a transaction of its own, and once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.test_parked import BAD, GOOD, Feed
from tests.kafka.broker import Broker
from tests.kafka.sinks import fresh
from tests.support.topic_records import read_topic

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_records_come_later(delivery: str, kafka: Broker, tmp_path: Path, capsys: Capture) -> None:
    topic = fresh()
    sink = (
        f'type = "kafka"\nbootstrap_servers = "{kafka.bootstrap}"\ntopic = "{topic}"\n'
        f'delivery = "{delivery}"'
    )
    feed = Feed(tmp_path, sink, select=BAD)

    def read() -> list[int]:
        return [
            json.loads(message.value or b"")["id"] for message in read_topic(kafka.bootstrap, topic)
        ]

    feed.insert(0, 6)
    feed.insert(6, 6)
    assert feed.run() == 0, capsys.readouterr()
    assert sorted(read()) == [0, 1, 3, 4, 6, 7, 9, 10]
    feed.configure(GOOD)
    assert feed.parked("replay") == 0, capsys.readouterr()
    assert sorted(read()) == list(range(12))
    feed.insert(12, 2)
    assert feed.run() == 0, capsys.readouterr()
    assert sorted(read()) == list(range(14))
