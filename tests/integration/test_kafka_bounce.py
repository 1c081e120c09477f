"""Broker and daemon are ended in turn, hard and clean, while a real writer commits; readers of
committed records, one that looks on and one at the end, see each event exactly once.

The shape of Kafka's own test of transactions. ``TAILER_TORTURE_ROUNDS`` / 10 is how often something
is ended (8); ``--randomly-seed`` repeats the moments.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.integration.kafka_trial import (
    PARTITIONS,
    PATIENCE_S,
    TOPIC,
    Daemon,
    Trial,
    check,
    running,
    survives,
    wait_for,
)
from tests.integration.test_kill import Writer
from tests.kafka.broker import Broker
from tests.kafka.topics import create_topic, read_topic
from tests.support.outcomes import record_outcome

ROUNDS = max(4, int(os.environ.get("TAILER_TORTURE_ROUNDS", "40")) // 10)
pytestmark = [pytest.mark.java, pytest.mark.needs("kafka")]


def bounce(trial: Trial, rounds: int) -> Counter[str]:
    """End broker and daemon in turn, hard and clean, each while events are coming."""
    turns = [(who, how) for how in ("kill", "stop") for who in ("broker", "daemon")]
    seen = Counter[str]()
    for i in range(rounds):
        who, how = turns[i % len(turns)]
        trial.wait_for_events()
        target = trial.daemon if who == "daemon" else trial.broker
        assert isinstance(target, Broker | Daemon)
        getattr(target, how)()
        if trial.moments.random() < 0.5:
            time.sleep(trial.moments.uniform(0.0, 1.0))
        target.start()
        seen[f"{how} {who}"] += 1
    return seen


@pytest.mark.slow
@pytest.mark.timeout(300 + 30 * ROUNDS)
@pytest.mark.parametrize("case", ["keyed", "without keys"])
def test_each_event_comes_exactly_once(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keyed = case == "keyed"
    rounds = ROUNDS if keyed else max(4, ROUNDS // 2)
    with Broker() as broker:
        seen = survives(tmp_path, broker, lambda t: bounce(t, rounds), keyed=keyed)
    record_outcome(capsys, f"Kafka, exactly once, broker and daemon, {case}", **seen)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_zombie_writes_nothing_that_is_seen(tmp_path: Path) -> None:
    with Broker() as broker:
        create_topic(broker.bootstrap, TOPIC, PARTITIONS)
        writer = Writer(tmp_path, 1)
        options: dict[str, Any] = {"key": ["id"]}
        zombie = Daemon(tmp_path, broker, **options)
        newer = Daemon(tmp_path, broker, "newer", **options)
        zombie.start()
        assert zombie.process is not None
        try:
            with running(writer):
                wait_for(lambda: _follow(zombie, writer) > 5, zombie, "it does not start")
                zombie.process.send_signal(signal.SIGSTOP)
                newer.start()
                reached = zombie.offset().version + 5
                wait_for(lambda: _follow(newer, writer) > reached, newer, "no take-over")
                zombie.process.send_signal(signal.SIGCONT)
                assert zombie.process.wait(PATIENCE_S) == 1
                reached = newer.offset().version + 3
                wait_for(lambda: _follow(newer, writer) > reached, newer, "the newer one ended")
            end = (writer.table.version() + 1, 0)
            wait_for(lambda: newer.offset().position >= end, newer, "the end is not reached")
            newer.stop()
        finally:
            zombie.kill()
            newer.kill()
        assert "taken over by a newer daemon" in zombie.log()
        check(read_topic(broker.bootstrap, TOPIC), writer, keyed=True)


def _follow(daemon: Daemon, writer: Writer) -> int:
    """How far the daemon is, which the writer is told."""
    version = daemon.offset().version
    writer.read_version = max(writer.read_version, version)
    return version
