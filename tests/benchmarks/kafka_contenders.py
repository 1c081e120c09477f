"""What `bench_kafka` measures, each in a process of its own: `python -m ... CONTENDER BOOTSTRAP
TOPIC WORK`. Prints one JSON object: the seconds that the work took, without start-up.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from pathlib import Path

from tailer.sink import make_sink

#: Wall seconds, and processor seconds of this process.
Work = tuple[float, float]

OURS = "exactly once"
TRANSACTIONS = "librdkafka, transactions"
#: Of both: what a topic takes by default, and our own default.
BATCH_BYTES = 1_000_000
TRANSACTION_RECORDS = 10_000


def now() -> Work:
    """The wall clock and this process's processor time, in seconds."""
    return time.perf_counter(), time.process_time()


def since(began: Work) -> Work:
    """What has passed of both."""
    wall, processor = now()
    return wall - began[0], processor - began[1]


def values(count: int, size: int) -> list[bytes]:
    """Ready JSON of the size that the table's events have."""
    head = '{"id":%d,"customer":"customer %d","note":"'
    made = []
    for i in range(count):
        text = head % (i, i % 5000)
        made.append((text + "x" * (size - len(text) - 2) + '"}').encode())
    return made


def ours(bootstrap: str, topic: str, table: str) -> Work:
    """The table's whole feed, by the daemon's own feed, from the table to the broker."""
    import anyio
    import kafka  # noqa: F401  # as the others' clients: a start is not counted

    from tailer.changes import Offset
    from tailer.feed.options import FeedOptions
    from tailer.feed.progress import FeedProgress
    from tailer.feed.run import Feed, run_feed
    from tailer.log.table import TableLog
    from tailer.offsets.memory import MemoryOffsetStore
    from tailer.store.local import LocalStore

    options = {"bootstrap_servers": bootstrap, "topic": topic}
    options["progress_topic"] = f"{topic}-progress"
    log = TableLog(LocalStore(table))
    progress = FeedProgress("bench", time.time)

    async def start(_: TableLog) -> Offset:
        return Offset(1)

    async def work() -> Work:
        last = await log.latest_version()
        feed = Feed(
            name=topic,
            log=log,
            sink=make_sink("kafka", options, Path.cwd()),
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
        return since(began)

    return anyio.run(work)


def transactions(bootstrap: str, topic: str, work: str) -> Work:
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
        }
    )
    began = now()
    producer.init_transactions()
    for first in range(0, count, TRANSACTION_RECORDS):
        producer.begin_transaction()
        for value in made[first : first + TRANSACTION_RECORDS]:
            producer.produce(topic, value)
        producer.commit_transaction()
    return since(began)


def main() -> None:
    """Run one contender."""
    name, *where = sys.argv[1:]
    seconds, processor = {OURS: ours, TRANSACTIONS: transactions}[name](*where)
    found = {"seconds": seconds, "processor": processor}
    print(json.dumps(found | {"whole": time.process_time()}))


if __name__ == "__main__":
    main()
