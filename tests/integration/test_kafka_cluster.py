"""Three brokers, one of which is killed at a time while a real writer commits: the coordinator of
the transactions, the leaders of data and progress. Each event comes exactly once.

``TAILER_TORTURE_ROUNDS`` / 30 is how often one is killed (3); above 100, librdkafka's driver
is tried too.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from tailer.changes import Offset
from tests.integration.test_kafka_bounce import (
    PARTITIONS,
    Daemon,
    Watcher,
    check,
    moved,
    running,
    wait_for,
)
from tests.integration.test_kill import Writer
from tests.kafka.brokers import Brokers
from tests.kafka.sinks import fresh
from tests.kafka.topics import create_topic, read_topic

TORTURE = int(os.environ.get("TAILER_TORTURE_ROUNDS", "100"))
ROUNDS = max(3, TORTURE // 30)
DRIVERS = ["kafka-python", "librdkafka"] if TORTURE > 100 else ["kafka-python"]


def roll(
    daemon: Daemon,
    brokers: Brokers,
    writer: Writer,
    watcher: Watcher,
    moments: random.Random,
) -> Counter[str]:
    """Kill one broker after the other, each while events are coming."""
    seen = Counter[str]()
    for i in range(ROUNDS):
        role = ("coordinator", "data", "progress")[i % 3]
        before, wanted = len(watcher.events), moments.randint(1, 400)
        wait_for(lambda b=before, w=wanted: moved(daemon, writer, watcher, b + w), daemon, "stuck")
        victim = {
            "coordinator": lambda: brokers.coordinator(f"{daemon.topic}-w"),
            "data": lambda: brokers.leader(daemon.topic, moments.randrange(PARTITIONS)),
            "progress": lambda: brokers.leader(f"{daemon.topic}-progress"),
        }[role]()
        time.sleep(moments.uniform(0.0, 0.05))
        victim.kill()
        time.sleep(moments.uniform(0.0, 3.0))  # longer than a broker's session, or not
        victim.start()
        brokers.wait_until_in_sync()
        seen[role] += 1
        assert writer.error is None, writer.error
    return seen


@pytest.mark.slow
@pytest.mark.timeout(300 + 30 * ROUNDS)
@pytest.mark.parametrize("driver", DRIVERS)
def test_each_event_comes_exactly_once_while_brokers_are_killed(
    driver: str, brokers: Brokers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed, topic = random.randrange(2**32), fresh("orders")
    create_topic(brokers.bootstrap, topic, PARTITIONS, replicas=3)
    writer, watcher = Writer(tmp_path, seed), Watcher(brokers, topic)
    own = {"topic": topic, "progress_topic": f"{topic}-progress", "transactional_id": f"{topic}-w"}
    daemon = Daemon(tmp_path, brokers, driver=driver, key=["id"], **own)
    daemon.start()
    try:
        with running(watcher):
            with running(writer):
                seen = roll(daemon, brokers, writer, watcher, random.Random(seed))
            end = Offset(writer.table.version() + 1)
            wait_for(lambda: daemon.offset() >= end, daemon, "the end is not reached")
            events = read_topic(brokers.bootstrap, topic)
            wait_for(lambda: len(watcher.events) >= len(events), daemon, "lost by the watcher")
        daemon.stop()
    finally:
        daemon.kill()
    with capsys.disabled():
        print(
            f"\nseed {seed}: {dict(seen)}, {writer.table.version() + 1} versions, "
            f"{len(events)} events, {daemon.log().count('had lost the end')} markers written"
        )
    check(events, writer, keyed=True)
    check(watcher.events, writer, keyed=True)
