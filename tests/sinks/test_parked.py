"""What was parked is delivered to brokers, queues and streams later, and once where they promise
it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_parked import BAD, GOOD, Feed
from tests.support.message_targets import message_target

Capture = pytest.CaptureFixture[str]


@pytest.mark.needs("pubsub")
@pytest.mark.parametrize("kind", ["http", "nats", "rabbitmq", "redis", "sqs", "kinesis", "pubsub"])
def test_messages_come_later_with_their_ids(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, capsys: Capture
) -> None:
    target = message_target(kind, tmp_path, request)
    feed = Feed(tmp_path, target.toml, select=BAD)
    feed.insert(0, 6)
    feed.insert(6, 6)
    assert feed.run() == 0, capsys.readouterr()
    before = [event.event_id for event in target.events()]
    assert len(before) == 8
    feed.configure(GOOD)
    assert feed.parked("replay") == 0, capsys.readouterr()
    feed.insert(12, 2)
    assert feed.run() == 0, capsys.readouterr()
    found = [event.event_id for event in target.events()]
    assert len(found) == len({*found}) == 14
    assert {*before} < {*found}
    if target.offset is not None:
        offset = target.offset()
        assert offset is not None
        assert offset.version == 4
