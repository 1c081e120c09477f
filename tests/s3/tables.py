"""Tables on S3 for the tests, and what a feed of them delivers."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tailer.changes import ChangeBatch, Offset
from tailer.feed.options import FeedOptions, RetryOptions
from tailer.feed.progress import FeedProgress
from tailer.feed.run import Feed, run_feed
from tailer.log.follow import FollowOptions
from tailer.log.table import TableLog
from tailer.offsets import OffsetStore
from tailer.offsets.memory import MemoryOffsetStore
from tailer.sink import Sink
from tailer.storage import open_store
from tailer.store import Store
from tailer.store.traffic import Traffic
from tests.s3.fixture import Bucket
from tests.s3.objects import Objects

QUICK = FeedOptions(
    follow=FollowOptions(poll_min_s=0.01, poll_max_s=0.05),
    retry=RetryOptions(pause_min_s=0.01, pause_max_s=0.1),
)


async def upload(folder: Path, bucket: Bucket, key: str) -> None:
    """Put every file of a folder that is not there yet below a key, in the order of names."""
    async with Objects(bucket) as objects:
        known = set(await objects.keys(f"{key}/"))
        for file in sorted(folder.rglob("*")):  # noqa: ASYNC240 - a test's own few files
            if file.is_file():
                name = file.relative_to(folder).as_posix()
                if f"{key}/{name}" not in known:
                    await objects.put(f"{key}/{name}", file.read_bytes())


class Collected(Sink):
    """A sink that keeps the events, each once: what comes again must be the same."""

    def __init__(
        self, before_write: Callable[[ChangeBatch], Awaitable[None]] | None = None
    ) -> None:
        self.events: dict[str, dict[str, Any]] = {}
        self.repeated = 0
        self.before_write = before_write

    async def open(self, feed: str) -> Offset | None:  # noqa: ARG002
        """It has no offset of its own."""
        return None

    async def write(self, batch: ChangeBatch) -> None:
        """Keep the events of a batch."""
        if self.before_write is not None:
            await self.before_write(batch)
        rows = zip(batch.event_ids().to_pylist(), batch.rows.to_pylist(), strict=True)
        for event_id, row in rows:
            self.repeated += event_id in self.events
            assert self.events.setdefault(event_id, row) == row, event_id

    async def aclose(self) -> None:
        """Nothing is open."""


async def deliver(
    store: Store,
    start: Offset,
    last: int,
    *,
    sink: Collected | None = None,
    offsets: OffsetStore | None = None,
    options: FeedOptions = QUICK,
) -> Collected:
    """Run a feed from an offset up to a version, its retries included."""
    sink = sink or Collected()

    async def begin(_: TableLog) -> Offset:
        return start

    feed = Feed(
        name="orders",
        log=TableLog(store),
        sink=sink,
        offsets=offsets or MemoryOffsetStore(),
        start=begin,
        progress=FeedProgress("orders", lambda: 0.0),
        jitter=random.Random(0).random,
        options=options,
        last=last,
    )
    await run_feed(feed)
    return sink


class Counted(Traffic):
    """Counts requests by operation."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.received = 0
        self.retries = 0

    def request(self, operation: str, status: str, received: int) -> None:  # noqa: ARG002
        """See :class:`tailer.store.traffic.Traffic`."""
        self.requests[operation] += 1
        self.received += received

    def retry(self, operation: str) -> None:  # noqa: ARG002
        """See :class:`tailer.store.traffic.Traffic`."""
        self.retries += 1


def store_of(bucket: Bucket, key: str = "orders", traffic: Traffic | None = None) -> Store:
    """The store of a table."""
    return open_store(bucket.address(key), bucket.options, traffic)
