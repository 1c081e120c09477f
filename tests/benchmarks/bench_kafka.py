"""From a Delta table's change feed to Kafka: 1,000,000 events of some 300 bytes, end to end,
beside what Spark does with the same table, and the client libraries with bytes that are ready.

    python -m tests.benchmarks.bench_kafka [--rounds N] [--only PART]... [--compression NAME]

Says how exactly once compares with each, and ends with 1 where it is less than 5 times as
fast as a loop over kafka-python's ``send()``, 3 times as fast as Spark as it comes, or behind a
loop of librdkafka's. Spark stands there twice: its producer sends 16 KiB at a time unless it is
told to send as much as ours does.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from uuid import uuid4

import psutil
import pyarrow as pa
import pyarrow.compute as pc

from tests.benchmarks.kafka_contenders import BATCH_BYTES, CONTENDERS
from tests.benchmarks.measure import ROOT, Cost, Peak, busy_s, environment, python
from tests.benchmarks.tables import bench_folder
from tests.kafka.broker import Broker
from tests.kafka.topics import create_topic, delete_topic

__all__ = ["contend", "main", "make_table"]

EVENTS = 1_000_000
PARTITIONS = 6
JAVA = "Java producer-perf-test"
DEFAULT = "exactly once"
BOUNDS = {
    "Spark, as it comes": 3.0,
    "kafka-python send() loop": 5.0,
    "librdkafka produce() loop": 1.0,
}


def make_table() -> Path:
    """500,000 rows inserted, half of them updated: 1,000,000 events from version 1 on."""
    import deltalake

    folder = bench_folder() / "kafka-1"
    if (folder / "_delta_log" / f"{3:020d}.json").exists():
        return folder
    rows = EVENTS // 2
    for part in range(2):
        ids = pa.arange(part * rows // 2, (part + 1) * rows // 2)
        text = ids.cast(pa.string())
        table = pa.table(
            {
                "id": ids,
                "customer": pc.binary_join_element_wise("customer ", text, ""),
                "amount": pc.divide(ids.cast(pa.float64()), 7.0),
                "status": pa.array(["open"] * len(ids)),
                "note": pc.binary_join_element_wise("n" * 60, text, " "),
                "updated": pc.add(ids, 1_700_000_000_000_000).cast(pa.timestamp("us", "UTC")),
            }
        )
        if part == 0:
            deltalake.DeltaTable.create(
                str(folder), table.schema, configuration={"delta.enableChangeDataFeed": "true"}
            )
        deltalake.write_deltalake(str(folder), table, mode="append")
    deltalake.DeltaTable(str(folder)).update(
        predicate=f"id < {rows // 2}", updates={"status": "'paid'"}
    )
    return folder


def java_perf(broker: Broker, topic: str, compression: str) -> float:
    """Records a second that Java's own tool says it has sent."""
    command = ["java", "-Xmx512m", "-cp", f"{broker.home}/lib/*"]
    command += ["org.apache.kafka.tools.ProducerPerformance", "--topic", topic]
    command += ["--num-records", str(EVENTS), "--record-size", "300", "--throughput", "-1"]
    command += ["--producer-props", f"bootstrap.servers={broker.bootstrap}", "acks=all"]
    command += [f"batch.size={BATCH_BYTES}", "linger.ms=50", f"compression.type={compression}"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return float(re.findall(r"([\d.]+) records/sec", answer.stdout)[-1])


def run(
    name: str, broker: Broker, table: Path, compression: str = "none"
) -> tuple[float, float, float]:
    """Records a second, processor seconds a million records, and the peak of MiB."""
    topic = f"bench-{uuid4()}"  # a feed refuses a topic that was made anew
    create_topic(broker.bootstrap, topic, PARTITIONS)
    try:
        if name == JAVA:
            return java_perf(broker, topic, compression), 0.0, 0.0
        cost, records = contend(name, broker, topic, str(table), compression)
        count = records or EVENTS
        return count / cost.wall_s, cost.cpu_s * 1_000_000 / count, cost.peak_mib
    finally:
        delete_topic(broker.bootstrap, topic)  # so that the disk holds one at a time


def processor_s(broker: Broker) -> float:
    """The processor seconds that the broker has used so far."""
    assert broker.process is not None
    times = psutil.Process(broker.process.pid).cpu_times()
    return float(times.user + times.system)


def contend(
    name: str, broker: Broker, topic: str, table: str, compression: str = "none"
) -> tuple[Cost, int]:
    """What a contender's work costs, without its start, and the number of records (0: all)."""
    command = python("tests.benchmarks.kafka_contenders", name, broker.bootstrap, topic, table)
    busy, started = busy_s() - processor_s(broker), time.perf_counter()
    with subprocess.Popen(
        [*command, compression], cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        peak = Peak(process.pid)
        peak.start()
        said, _ = process.communicate(timeout=900)
        peak.stop()
        assert process.returncode == 0, name
    found = json.loads(said.splitlines()[-1])
    others = busy_s() - processor_s(broker) - busy - found["whole"]
    others /= time.perf_counter() - started
    cost = Cost(found["seconds"], found["processor"], peak.bytes / 2**20, others)
    return cost, found["records"]


def main() -> None:
    """Measure all, by turns, and compare the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--compression", default="none")
    asked = parser.parse_args()
    table = make_table()
    parts = asked.only or [""]
    names = [name for name in [*CONTENDERS, JAVA] if any(part in name for part in parts)]
    rates: dict[str, list[float]] = {name: [] for name in names}
    with Broker(heap="1g", jvm=[]) as broker:
        for name in ("librdkafka produce() loop", DEFAULT):  # one that has just started is slow
            run(name, broker, table, asked.compression)
        for turn in range(asked.rounds):
            # What comes behind another has its dirty pages and deleted segments to bear with.
            first = turn * len(names) // asked.rounds
            for name in names[first:] + names[:first]:
                rate, processor, mib = run(name, broker, table, asked.compression)
                rates[name].append(rate)
                print(
                    f"{name:34} {rate:10,.0f}/s {processor:6.2f} CPU s a million {mib:6.0f} MiB",
                    flush=True,
                )
    print()
    medians = {name: median(found) for name, found in rates.items()}
    for name, rate in medians.items():
        print(f"{name:34} {rate:10,.0f} records/s")
    if DEFAULT not in medians:
        return
    print()
    beyond = False
    for name in [name for name in names if name != DEFAULT]:
        ratio, bound = medians[DEFAULT] / medians[name], BOUNDS.get(name, 0.0)
        wanted = f", of {bound:g} wanted" if bound else ""
        print(f"{DEFAULT} is {ratio:.2f} times {name}{wanted}")
        beyond |= ratio < bound
    sys.exit(1 if beyond else 0)


if __name__ == "__main__":
    main()
