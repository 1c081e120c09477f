"""Two daemons of one feed to Kafka, under one lease: whichever owns it is killed again and again
while a real writer commits, and its standby takes over. Readers of committed records see each event
exactly once.

``TAILER_TORTURE_ROUNDS`` is how often (4); ``--randomly-seed`` repeats the moments.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.kafka_trial import Daemon, Trial, survives
from tests.kafka.broker import Broker
from tests.support.forking import Process
from tests.support.outcomes import record_outcome

ROUNDS = int(os.environ.get("TAILER_TORTURE_ROUNDS", "4"))
pytestmark = [pytest.mark.java, pytest.mark.needs("kafka")]


class Pair(Daemon):
    """A daemon and its standby. Who runs longest is the owner."""

    standby: Process | None = None

    def start(self) -> None:
        """Start what is missing: both, or a standby."""
        if self.process is None:
            super().start()
        owner = self.process
        super().start()
        self.process, self.standby = owner, self.process

    def kill(self) -> None:
        """Kill the owner; the standby is it from now on."""
        super().kill()
        self.process, self.standby = self.standby, None

    def kill_both(self) -> None:
        """Kill them in the one moment."""
        assert self.standby is not None
        assert self.process is not None
        self.standby.kill()
        self.process.kill()
        self.standby.wait()
        self.process.wait()
        self.process = self.standby = None

    def end(self) -> None:
        """Leave nothing behind, the standby neither."""
        while self.process is not None:
            self.kill()

    def stop(self) -> None:
        """End the standby, then the owner."""
        assert self.standby is not None
        self.standby.terminate()
        assert self.standby.wait() == 0, self.log()
        super().stop()


def kill_owners(trial: Trial) -> Counter[str]:
    """Kill the owner while events are coming, one time in ten the standby with it."""
    seen = Counter[str]()
    pair = trial.daemon
    assert isinstance(pair, Pair)
    for _ in range(ROUNDS):
        trial.wait_for_events()
        if trial.moments.random() < 0.1:
            pair.kill_both()
            seen["both"] += 1
        else:
            pair.kill()
        pair.start()
        seen["kills"] += 1
    return seen


@pytest.mark.slow
@pytest.mark.timeout(300 + 20 * ROUNDS)
def test_each_event_comes_exactly_once_when_the_owner_is_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Broker() as broker:
        facts = survives(tmp_path, broker, kill_owners, program=Pair)
    record_outcome(capsys, "Kafka, exactly once, two daemons", **facts)
