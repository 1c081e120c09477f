"""Three brokers that end one at a time while a real writer commits: killed are the coordinator of
the transactions and the leaders of data and progress; then each is stopped and started in turn,
as in an upgrade. Each event comes exactly once.

``TAILER_TORTURE_ROUNDS`` / 30 is how often one is killed (3), with a rolling restart behind each
three.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.kafka_trial import PARTITIONS, Trial, survives
from tests.kafka.broker import Broker
from tests.kafka.brokers import Brokers
from tests.kafka.sinks import fresh
from tests.support.outcomes import record_outcome

TORTURE = int(os.environ.get("TAILER_TORTURE_ROUNDS", "100"))
ROUNDS = max(3, TORTURE // 30)
ROLES = ("coordinator", "data", "progress")


def victim(trial: Trial, brokers: Brokers, role: str) -> Broker:
    """The broker that has a role at this moment."""
    if role == "coordinator":
        return brokers.coordinator(trial.transactional_id)
    if role == "data":
        return brokers.leader(trial.topic, trial.moments.randrange(PARTITIONS))
    return brokers.leader(f"{trial.topic}-progress")


def kill_and_roll(trial: Trial, brokers: Brokers) -> Counter[str]:
    """Kill one broker after the other, each while events are coming; now and then restart all of
    them in turn."""
    seen = Counter[str]()
    for i in range(ROUNDS):
        role = ROLES[i % len(ROLES)]
        trial.wait_for_events()
        broker = victim(trial, brokers, role)
        broker.kill()
        time.sleep(trial.moments.uniform(0.0, 3.0))  # longer than a broker's session, or not
        broker.start()
        brokers.wait_until_in_sync()
        seen[f"kill {role}"] += 1
        if role != ROLES[-1]:
            continue
        for broker in brokers:
            trial.wait_for_events()
            broker.stop()
            broker.start()
            brokers.wait_until_in_sync()
            seen["stop"] += 1
    return seen


@pytest.mark.slow
@pytest.mark.timeout(300 + 60 * ROUNDS)
def test_each_event_comes_exactly_once_while_brokers_end(
    brokers: Brokers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = survives(
        tmp_path,
        brokers,
        lambda trial: kill_and_roll(trial, brokers),
        topic=fresh("orders"),
        replicas=3,
    )
    record_outcome(capsys, "Kafka, exactly once, three brokers", **seen)
