"""To Kafka exactly once: many small versions and a large one, beside librdkafka with ready bytes.

    python -m tests.benchmarks.bench_kafka [--rounds 5] [--tables small large] [--quick]

* `small`: 5,000 versions of 100 rows;
* `large`: one version of 1,000,000 rows.

The loop sends ready bytes of the size of an event's value, without our records' headers (100 bytes
each), with a transaction for each 10,000 of them. Both are timed without their start, by turns; a
first round does not count.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from pathlib import Path
from uuid import uuid4

import psutil

from tests.benchmarks.feed_tables import many_files
from tests.benchmarks.kafka_contenders import OURS, TRANSACTIONS
from tests.benchmarks.measure import (
    ROOT,
    Cost,
    Peak,
    busy_s,
    environment,
    median_cost,
    print_costs,
    python,
)
from tests.benchmarks.results import Results, options
from tests.kafka.broker import Broker
from tests.kafka.topics import create_topic, delete_topic

PARTITIONS = 6
VERSIONS, VERSIONS_QUICK, ROWS_OF_A_VERSION = 5_000, 20, 100
ROWS, ROWS_QUICK = 1_000_000, 1_000
TABLES = ("small", "large")
#: About what the value of an event of the table has.
VALUE_BYTES = {"small": 200, "large": 260}


def table(name: str, folder: Path, *, quick: bool) -> tuple[Path, int]:
    """A table, and the number of its changes."""
    if name == "large":
        rows = ROWS_QUICK if quick else ROWS
        return many_files(1, rows), rows
    versions = VERSIONS_QUICK if quick else VERSIONS
    write = python("tests.benchmarks.runs_contenders", "write", folder / "small", versions)
    subprocess.run(write, check=True, env=environment())
    return folder / "small", versions * ROWS_OF_A_VERSION


def processor_s(broker: Broker) -> float:
    """The processor seconds that the broker has used so far."""
    assert broker.process is not None
    times = psutil.Process(broker.process.pid).cpu_times()
    return float(times.user + times.system)


def contend(name: str, broker: Broker, topic: str, work: str) -> Cost:
    """What a contender's work costs, without its start."""
    command = python("tests.benchmarks.kafka_contenders", name, broker.bootstrap, topic, work)
    busy, started = busy_s() - processor_s(broker), time.perf_counter()
    with subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        peak = Peak(process.pid)
        peak.start()
        said, _ = process.communicate(timeout=900)
        peak.stop()
        assert process.returncode == 0, name
    found = json.loads(said.splitlines()[-1])
    others = busy_s() - processor_s(broker) - busy - found["whole"]
    others /= time.perf_counter() - started
    return Cost(found["seconds"], found["processor"], peak.bytes / 2**20, others)


def bench(broker: Broker, works: dict[str, str], rounds: int) -> dict[str, Cost]:
    """Run all by turns, each into a topic of its own, and return the median of each."""
    costs: dict[str, list[Cost]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            topic = f"bench-{uuid4()}"  # a feed refuses a topic that was made again
            create_topic(broker.bootstrap, topic, PARTITIONS)
            cost = contend(name, broker, topic, work)
            delete_topic(broker.bootstrap, topic)
            if number or not rounds:
                costs[name].append(cost)
    return {name: median_cost(runs) for name, runs in costs.items()}


def main() -> None:
    """Measure, show, and end with 1 where a bound is not kept."""
    parser = options(__doc__)
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES)
    asked = parser.parse_args()
    results = Results(asked.quick)
    with tempfile.TemporaryDirectory(prefix="tailer-bench-") as folder:
        with Broker(heap="1g", jvm=[]) as broker:
            for name in asked.tables:
                path, rows = table(name, Path(folder), quick=asked.quick)
                works = {OURS: str(path), TRANSACTIONS: f"{rows}x{VALUE_BYTES[name]}"}
                costs = bench(broker, works, 0 if asked.quick else asked.rounds)
                print_costs(costs, name)
                results.ratio(f"{name}-kafka", costs[OURS], costs[TRANSACTIONS])
        results.end()


if __name__ == "__main__":
    main()
