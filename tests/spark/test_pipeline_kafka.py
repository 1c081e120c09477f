"""`tailer spark` to Kafka, killed again and again while a real writer commits: readers of committed
records see each event exactly once.

Every 10 of ``TAILER_TORTURE_ROUNDS`` are a kill (2); ``--randomly-seed`` repeats the moments.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import ClassVar

import pytest

from tests.integration.kafka_trial import Daemon, Trial, survives
from tests.kafka.broker import Broker
from tests.spark.test_pipeline import CONFS
from tests.support.components import java_major, require
from tests.support.outcomes import record_outcome

ROUNDS = max(2, int(os.environ.get("TAILER_TORTURE_ROUNDS", "0")) // 10)
pytestmark = pytest.mark.needs("kafka")


class OnSpark(Daemon):
    """`tailer spark` of the same feed. Its Java ends when it misses its driver."""

    command: ClassVar = [
        "spark", "--driver-bytes-max", "0", "--master", "local[2]",
        *(part for conf in CONFS for part in ("--conf", conf)),
    ]  # fmt: skip


def kills(trial: Trial) -> Counter[str]:
    """Kill it while events are coming, and start it again."""
    seen = Counter[str]()
    for _ in range(ROUNDS):
        trial.wait_for_events()
        trial.daemon.kill()
        trial.daemon.start()
        seen["kills"] += 1
    return seen


@pytest.mark.slow
@pytest.mark.timeout(300 + 60 * ROUNDS)
def test_each_event_comes_exactly_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require("Java 17 or newer", java_major() >= 17)
    with Broker() as broker:
        seen = survives(tmp_path, broker, kills, program=OnSpark)
    record_outcome(capsys, "Spark pipeline to Kafka, exactly once", **seen)
