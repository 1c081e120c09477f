"""What `bench_kafka` measures, each in a process of its own: `python -m ... CONTENDER BOOTSTRAP
TOPIC TABLE COMPRESSION`. Prints one JSON object: the seconds that the work took, without start-up,
and the number of records.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

__all__ = ["BATCH_BYTES", "CONTENDERS", "TRANSACTIONS", "main", "now", "since", "values"]

#: Wall seconds, processor seconds of this process, records (0: all of the table's).
Work = tuple[float, float, int]

#: One way to fill a topic: of a broker, the topic, a table and the compression.
Contender = Callable[[str, str, str, str], Work]

Headers = list[tuple[str, str | bytes | None]]

#: What ready bytes are sent with is like what our own events are like.
VALUE_BYTES = 300
EVENT_ID = b"6bc6027b7e969d57880f77479425aa9a-250000-i"
SEND_LOOP_RECORDS = 150_000
#: Of all of them: what a topic takes by default, and our own default.
BATCH_BYTES = 1_000_000
TRANSACTION_RECORDS = 10_000


def now() -> tuple[float, float]:
    """The wall clock and this process's processor time, in seconds."""
    return time.perf_counter(), time.process_time()


def since(began: tuple[float, float]) -> tuple[float, float]:
    """What has passed of both."""
    wall, processor = now()
    return wall - began[0], processor - began[1]


def values(count: int, size: int = VALUE_BYTES) -> list[bytes]:
    """Ready JSON of the size that the table's events have."""
    head = '{"id":%d,"customer":"customer %d","note":"'
    made = []
    for i in range(count):
        text = head % (i, i % 5000)
        made.append((text + "x" * (size - len(text) - 2) + '"}').encode())
    return made


def ours(delivery: str) -> Contender:
    """The table's whole feed, by the daemon's own feed, from the table to the broker."""

    def run(bootstrap: str, topic: str, table: str, compression: str) -> Work:
        import anyio
        import kafka  # noqa: F401  # as the others' clients: a start is not counted

        from sinks.kafka.sink import KafkaSink
        from tailer.changes import Offset
        from tailer.feed.options import FeedOptions
        from tailer.feed.progress import FeedProgress
        from tailer.feed.run import Feed, run_feed
        from tailer.log.table import TableLog
        from tailer.offsets.memory import MemoryOffsetStore
        from tailer.store.local import LocalStore

        options = {"bootstrap_servers": bootstrap, "topic": topic}
        options |= {"delivery": delivery, "progress_topic": f"{topic}-progress"}
        options["compression"] = compression
        log = TableLog(LocalStore(table))
        progress = FeedProgress("bench", time.time)

        async def start(_: TableLog) -> Offset:
            return Offset(1)

        async def work() -> Work:
            last = await log.latest_version()
            feed = Feed(
                name=topic,
                log=log,
                sink=KafkaSink.from_options(options, Path.cwd()),
                offsets=MemoryOffsetStore(),
                start=start,
                progress=progress,
                jitter=lambda: 0.5,
                options=FeedOptions(),
                last=last,
            )
            gc.freeze()  # as the command does with what it has loaded
            began = now()
            await run_feed(feed)
            return *since(began), 0

        return anyio.run(work)

    return run


def send_loop(bootstrap: str, topic: str, _: str, compression: str) -> Work:
    """kafka-python's ``send()``, ready bytes."""
    from kafka import KafkaProducer

    made = values(SEND_LOOP_RECORDS)
    producer = KafkaProducer(
        bootstrap_servers=bootstrap,
        batch_size=BATCH_BYTES,
        linger_ms=50,
        retry_backoff_ms=5,
        compression_type=None if compression == "none" else compression,
    )
    began = now()
    for value in made:
        producer.send(topic, value)
    producer.flush()
    taken = since(began)
    producer.close()
    return *taken, len(made)


def librdkafka_loop(*, headers: bool) -> Contender:
    """confluent-kafka's ``produce()``, ready bytes, with headers like our events' or without."""
    own: Headers = [("_commit_version", b"1"), ("_origin", b"files"), ("_event_id", EVENT_ID)]
    own.append(("_change_type", b"insert"))
    return partial(_librdkafka_loop, own if headers else None)


def _librdkafka_loop(
    headers: Headers | None, bootstrap: str, topic: str, _: str, compression: str
) -> Work:
    from confluent_kafka import Producer

    made = values(1_000_000)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 50,
            "batch.size": BATCH_BYTES,
            "queue.buffering.max.messages": 0,
            "queue.buffering.max.kbytes": 1024 * 1024,
            "compression.type": compression,
        }
    )
    failed: list[Any] = []

    def delivered(error: Any, _: Any) -> None:
        if error:
            failed.append(error)

    began = now()
    for i, value in enumerate(made):
        producer.produce(topic, value, on_delivery=delivered, headers=headers)
        if i % 1000 == 0:
            producer.poll(0)
    left = producer.flush(120)
    taken = since(began)
    assert not left, left
    assert not failed, failed[:3]
    return *taken, len(made)


def transactions(bootstrap: str, topic: str, work: str, compression: str) -> Work:
    """confluent-kafka's ``produce()``, ready bytes, a transaction for each 10,000 of them.

    ``work`` has the number of records and the bytes of one, as ``500000x200``.
    """
    from confluent_kafka import Producer

    count, size = map(int, work.split("x"))
    made = values(count, size)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": topic,
            "linger.ms": 50,
            "batch.size": BATCH_BYTES,
            "queue.buffering.max.messages": 0,
            "queue.buffering.max.kbytes": 1024 * 1024,
            "compression.type": compression,
        }
    )
    began = now()
    producer.init_transactions()
    for first in range(0, count, TRANSACTION_RECORDS):
        producer.begin_transaction()
        for value in made[first : first + TRANSACTION_RECORDS]:
            producer.produce(topic, value)
        producer.commit_transaction()
    return *since(began), count


def spark(producer: dict[str, str]) -> Contender:
    """readChangeFeed to Kafka in Spark's batch, at least once, in a session that is warm, with
    these settings of Kafka's producer."""

    def run(bootstrap: str, topic: str, table: str, compression: str) -> Work:
        import os
        import tempfile

        from tests.benchmarks.spark_kafka import kafka_jars
        from tests.support.components import start_spark

        os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {kafka_jars()} pyspark-shell"
        session = start_spark(Path(tempfile.mkdtemp()), small=False)

        def write(first: int, last: int) -> None:
            frame = (
                session.read.format("delta")
                .option("readChangeFeed", "true")
                .option("startingVersion", first)
                .option("endingVersion", last)
                .load(table)
            )
            events = frame.selectExpr("to_json(struct(*)) AS value").write.format("kafka")
            events = events.option("kafka.bootstrap.servers", bootstrap).option("topic", topic)
            events = events.option("kafka.compression.type", compression)
            for key, value in producer.items():
                events = events.option(f"kafka.{key}", value)
            events.save()

        history = session.sql(f"DESCRIBE HISTORY delta.`{table}` LIMIT 1")
        last = history.collect()[0]["version"]
        write(1, 1)  # warm up
        began = now()
        write(1, last)
        taken = since(began)
        session.stop()
        return *taken, 0

    return run


#: What Spark's producer does best with; by itself it sends 16 KiB at a time.
SPARKS_BEST = {"acks": "all", "batch.size": str(BATCH_BYTES), "linger.ms": "50"}

CONTENDERS: dict[str, Contender] = {
    "exactly once": ours("exactly-once"),
    "at least once": ours("at-least-once"),
    "Spark, readChangeFeed to Kafka": spark(SPARKS_BEST),
    "Spark, as it comes": spark({}),
    "kafka-python send() loop": send_loop,
    "librdkafka produce() loop": librdkafka_loop(headers=False),
    "librdkafka produce(), with headers": librdkafka_loop(headers=True),
}

#: Not among those of `bench_kafka`, for it has another table.
TRANSACTIONS = "librdkafka, transactions"


def main() -> None:
    """Run one contender."""
    name, *where = sys.argv[1:]
    contender = transactions if name == TRANSACTIONS else CONTENDERS[name]
    seconds, processor, count = contender(*where)
    found = {"seconds": seconds, "processor": processor, "records": count}
    print(json.dumps(found | {"whole": time.process_time()}))


if __name__ == "__main__":
    main()
