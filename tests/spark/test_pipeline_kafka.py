"""`tailer spark` to Kafka while a real writer commits, and the driver, its Java with the executors,
or the tasks' Python is killed again and again: readers of committed records see each event once.

Every 10 of ``TAILER_TORTURE_ROUNDS`` are a kill (2); ``--randomly-seed`` repeats the moments.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import psutil
import pytest

from tests.integration.kafka_trial import Daemon, Trial, survives
from tests.kafka.broker import Broker
from tests.spark.test_pipeline import CONFS
from tests.support.components import java_major, require
from tests.support.outcomes import record_outcome

ROUNDS = max(2, int(os.environ.get("TAILER_TORTURE_ROUNDS", "0")) // 10)
pytestmark = pytest.mark.needs("kafka")


class OnSpark(Daemon):
    """`tailer spark` of the same feed. Its Java ends when it misses its driver. Every other start
    leaves all to tasks; in the others the driver decodes its share."""

    command: ClassVar = [
        "spark", "--driver-bytes-max", "0", "--master", "local[2]",
        *(part for conf in CONFS for part in ("--conf", conf)),
    ]  # fmt: skip

    def start(self) -> None:
        place = self.command.index("--driver-bytes-max") + 1
        self.command[place] = "1" if self.command[place] == "0" else "0"
        super().start()

    def list_processes(self) -> list[psutil.Process]:
        """The driver's Java, if it has started, then what that has started: the tasks' Python."""
        assert self.process is not None
        found: list[psutil.Process] = psutil.Process(self.process.pid).children(recursive=True)
        return found


def kills(trial: Trial) -> Counter[str]:
    """Kill one or another while events are coming, and start the driver again."""
    seen, daemon = Counter[str](), trial.daemon
    assert isinstance(daemon, OnSpark)
    for number in range(ROUNDS):
        trial.wait_for_events()
        there = daemon.list_processes()
        if number % 2 and there:
            of_java = trial.moments.random() < 0.5
            for process in there[:1] if of_java else there[1:]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            seen["of Java" if of_java else "of the tasks' Python"] += 1
        else:
            daemon.kill()
            daemon.start()
            seen["of the driver"] += 1
    return seen


@pytest.mark.slow
@pytest.mark.timeout(300 + 60 * ROUNDS)
def test_each_event_comes_exactly_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require("Java 17 or newer", java_major() >= 17)
    with Broker() as broker:
        seen = survives(tmp_path, broker, kills, program=OnSpark)
    record_outcome(capsys, "Spark pipeline to Kafka, exactly once", **seen)
