"""To Kafka exactly once: many small versions and a large one, beside librdkafka with ready bytes.

    python -m tests.benchmarks.bench_kafka_runs [--rounds 5] [--tables small large] [--quick]

* `small`: 5,000 versions of 100 rows;
* `large`: one version of 1,000,000 rows.

The loop sends ready bytes of the size of an event's value, without our records' headers (100 bytes
each), with a transaction for each 10,000 of them. Both are timed without their start, by turns; a
first round does not count.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from uuid import uuid4

from tests.benchmarks.bench_kafka import DEFAULT, PARTITIONS, contend
from tests.benchmarks.feed_tables import many_files
from tests.benchmarks.kafka_contenders import TRANSACTIONS
from tests.benchmarks.measure import Cost, environment, median_cost, print_costs, python
from tests.benchmarks.results import Results, options
from tests.kafka.broker import Broker
from tests.kafka.topics import create_topic, delete_topic

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


def bench(broker: Broker, works: dict[str, str], rounds: int) -> dict[str, Cost]:
    """Run all by turns, each into a topic of its own, and return the median of each."""
    costs: dict[str, list[Cost]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            topic = f"bench-{uuid4()}"  # a feed refuses a topic that was made again
            create_topic(broker.bootstrap, topic, PARTITIONS)
            cost, _ = contend(name, broker, topic, work)
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
                works = {DEFAULT: str(path), TRANSACTIONS: f"{rows}x{VALUE_BYTES[name]}"}
                costs = bench(broker, works, 0 if asked.quick else asked.rounds)
                print_costs(costs, name)
                results.ratio(f"{name}-kafka", costs[DEFAULT], costs[TRANSACTIONS])
        results.end()


if __name__ == "__main__":
    main()
